//go:build linux

package csi_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// chaos makes a fake driver fail, lose answers, repeat calls, carry them out late, or lie, at random.
type chaos struct {
	driver *fakeDriver
	random *rand.Rand
	// late has the call of each volume that is carried out later. Until then, the driver refuses other
	// calls for the volume, as the specification asks of it.
	late map[string]func()
}

// target returns the volume that a call is about; empty for none.
func target(request any) string {
	switch r := request.(type) {
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	case interface{ GetName() string }:
		return "id/of " + r.GetName()
	}
	return ""
}

// wrap is the answer of the driver to a call.
func (c *chaos) wrap(request any, handle func(context.Context) (any, error)) (any, error) {
	ctx := context.Background() // a driver may go on after the call has ended
	volume := target(request)
	c.driver.mu.Lock()
	fault := c.random.IntN(16)
	refusal := []codes.Code{codes.Unavailable, codes.Internal, codes.ResourceExhausted, codes.Aborted, codes.FailedPrecondition}[c.random.IntN(5)]
	lost := []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled}[c.random.IntN(3)]
	late := c.late[volume]
	if late != nil {
		delete(c.late, volume)
	}
	if volume != "" && late == nil && fault == 3 {
		c.late[volume] = func() { _, _ = handle(ctx) }
	}
	c.driver.forgets = fault == 4
	c.driver.mu.Unlock()
	switch {
	case late != nil:
		late()
		return nil, status.Error(codes.Aborted, "another call is being carried out")
	case fault == 0:
		return nil, status.Error(refusal, "refused")
	case fault == 1:
		if _, err := handle(ctx); err != nil {
			return nil, err
		}
		return nil, status.Error(lost, "the answer is lost")
	case fault == 2:
		if _, err := handle(ctx); err != nil {
			return nil, err
		}
	case volume != "" && fault == 3:
		return nil, status.Error(codes.DeadlineExceeded, "too slow")
	}
	return handle(ctx)
}

// tracked is a volume of the random test.
type tracked struct {
	params   storage.VolumeParams
	volume   *storage.Volume
	attached bool
	mark     string // what is written at its beginning
}

// Whatever the driver does, and whenever the process ends: nothing is lost, made twice or left. Each
// call opens a new source, as a new process does.
func TestRandomFaults(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := newHarness(t)
			random := rand.New(rand.NewPCG(seed, 0))
			c := &chaos{driver: h.driver, random: random, late: make(map[string]func())}
			h.driver.set(func() { h.driver.wrap = c.wrap })
			h.driver.unready = 1
			w := newWalk(h, h.driver, seed)
			w.copies = true
			w.run(120)
			h.requireClean()
		})
	}
}

// watched is a driver as seen from its own side.
type watched interface {
	// made returns how many volumes it has for an owner, by the UUID.
	made(uuid string) int
	// used returns how many volumes are in use.
	used() int
	// snapshotted returns how many snapshots it has for an owner.
	snapshotted(uuid string) int
	// files contains the files that are behind its loop devices.
	files() string
}

// made implements watched.
func (d *fakeDriver) made(uuid string) (n int) {
	d.set(func() {
		for id := range d.volumes {
			if strings.Contains(id, uuid) {
				n++
			}
		}
	})
	return n
}

// snapshotted implements watched.
func (d *fakeDriver) snapshotted(uuid string) (n int) {
	d.set(func() {
		for id := range d.snapshots {
			if strings.Contains(id, uuid) {
				n++
			}
		}
	})
	return n
}

// used implements watched.
func (d *fakeDriver) used() (n int) {
	d.set(func() {
		for _, v := range d.volumes {
			if v.node != "" || v.staged != "" || v.published != "" || v.device != "" {
				n++
			}
		}
	})
	return n
}

// files implements watched.
func (d *fakeDriver) files() string { return d.dir }

// walk makes, uses and removes volumes at random.
type walk struct {
	*harness
	seen    watched
	random  *rand.Rand
	volumes []*tracked
	made    int
	// copies: the driver makes snapshots, and volumes from them.
	copies bool
}

func newWalk(h *harness, seen watched, seed uint64) *walk {
	w := &walk{harness: h, seen: seen, random: rand.New(rand.NewPCG(seed, 1))}
	for range 4 {
		w.volumes = append(w.volumes, &tracked{})
	}
	return w
}

// run makes steps, and removes all volumes.
func (w *walk) run(steps int) {
	w.Helper()
	for range steps {
		w.step(w.volumes[w.random.IntN(len(w.volumes))])
	}
	for _, v := range w.volumes {
		w.remove(v)
	}
}

func (w *walk) step(v *tracked) {
	w.Helper()
	switch {
	case v.volume == nil:
		w.create(v)
	case w.copies && w.random.IntN(4) == 0:
		w.copy(v)
	case v.attached && w.random.IntN(3) == 0:
		w.use(v) // again, as after a restart
	case v.attached:
		w.detach(v)
	case w.random.IntN(3) == 0:
		w.remove(v)
	default:
		w.use(v)
	}
}

// until repeats a call until it succeeds, or is no longer wanted. It returns the last error.
func (w *walk) until(wanted bool, call func() error) error {
	w.Helper()
	var err error
	for range 500 {
		if err = call(); err == nil {
			return nil
		}
		if storage.IsPermanent(err) {
			w.Fatalf("permanent: %v", err)
		}
		if !wanted && w.random.IntN(3) == 0 {
			return err
		}
	}
	w.Fatalf("it never succeeds: %v", err)
	return err
}

func (w *walk) create(v *tracked) {
	w.Helper()
	*v = tracked{params: volume(fmt.Sprint(w.made))}
	w.made++
	wanted := w.random.IntN(4) > 0
	for range 500 {
		made, err := w.harness.create(v.params)
		if err == nil {
			v.volume = made
			break
		}
		if storage.IsPermanent(err) {
			w.Fatalf("permanent: %v", err)
		}
		if storage.IsNothingMade(err) {
			if there := w.atDriver(v); there != 0 {
				w.Fatalf("%v, but the driver has %d volumes", err, there)
			}
			if !wanted {
				return
			}
		}
	}
	if there := w.atDriver(v); v.volume == nil || there != 1 {
		w.Fatalf("created %+v, and the driver has %d volumes", v.volume, there)
	}
	if !wanted {
		w.remove(v)
	}
}

// atDriver returns how many volumes of the name the driver has.
func (w *walk) atDriver(v *tracked) int {
	return w.seen.made(v.params.ResourceTags[storage.EntityUUIDTag])
}

// use attaches a volume, and reads and writes it.
func (w *walk) use(v *tracked) {
	w.Helper()
	var at *storage.VolumeAttachment
	wanted := v.attached || w.random.IntN(4) > 0
	err := w.until(wanted, func() (err error) {
		at, err = w.harness.attach(v.volume)
		return err
	})
	v.attached = true
	if err != nil {
		w.detach(v) // it may be attached in part
		return
	}
	device, err := os.OpenFile("/dev/"+at.DeviceName, os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		w.Fatal(err)
	}
	defer device.Close()
	got := make([]byte, len(v.mark))
	if _, err := device.ReadAt(got, 0); err != nil || string(got) != v.mark {
		w.Fatalf("volume %s has %q, %v; want %q", v.volume.Tag, got, err, v.mark)
	}
	v.mark = fmt.Sprintf("%s at %d", v.volume.Tag, w.random.Uint64())
	if _, err := device.WriteAt([]byte(v.mark), 0); err != nil {
		w.Fatal(err)
	}
	w.checkAttached()
}

// copy makes a snapshot of a volume, and a volume from that, and removes both.
func (w *walk) copy(v *tracked) {
	w.Helper()
	tags := ownerTags()
	there := func() int { return w.seen.snapshotted(tags[storage.EntityUUIDTag]) }
	var s *storage.SnapshotInfo
	err := w.until(w.random.IntN(3) > 0, func() (err error) {
		s, err = w.snapshot(v.volume.VolumeId, tags)
		if storage.IsNothingMade(err) && there() != 0 {
			w.Fatalf("%v, but the driver has a snapshot", err)
		}
		return err
	})
	if err == nil {
		if there() != 1 {
			w.Fatalf("made %+v, and the driver has %d", s, there())
		}
		w.copyFrom(v, s)
	}
	for _, id := range w.snapshotsOf(tags) {
		_ = w.until(true, func() error { return w.destroySnapshot(id) })
	}
	if there() != 0 {
		w.Fatalf("the driver has a snapshot that was removed")
	}
}

// copyFrom makes a volume from a snapshot of another one, checks that it has the same data, and removes it.
func (w *walk) copyFrom(v *tracked, s *storage.SnapshotInfo) {
	w.Helper()
	c := &tracked{params: volume(fmt.Sprint(w.made)), mark: v.mark}
	w.made++
	_ = w.until(true, func() (err error) {
		c.volume, err = w.clone(c.params, storage.Origin{SnapshotId: s.SnapshotId})
		return err
	})
	w.volumes = append(w.volumes, c)
	w.use(c)
	w.remove(c)
	w.volumes = w.volumes[:len(w.volumes)-1]
}

func (w *walk) detach(v *tracked) {
	w.Helper()
	_ = w.until(true, func() error { return w.harness.detach(v.volume) })
	v.attached = false
	w.checkAttached()
}

// checkAttached checks that the driver has exactly the volumes that are attached on this machine.
func (w *walk) checkAttached() {
	w.Helper()
	want := 0
	for _, v := range w.volumes {
		if v.attached {
			want++
		}
	}
	if loops := devicetest.AwaitLoops(w, w.seen.files(), want); len(loops) != want {
		w.Fatalf("%d volumes are attached, and the driver shows %q", want, loops)
	}
	if used := w.seen.used(); used != want {
		w.Fatalf("%d volumes are attached, and %d are in use at the driver", want, used)
	}
}

func (w *walk) remove(v *tracked) {
	w.Helper()
	if v.volume == nil {
		return
	}
	if v.attached {
		w.detach(v)
	}
	_ = w.until(true, func() error { return w.harness.destroy(v.volume.VolumeId) })
	if there := w.atDriver(v); there != 0 {
		w.Fatalf("removed, and the driver has %d volumes", there)
	}
	*v = tracked{}
}

// The driver ends and comes back while calls are made.
func TestDriverRestarts(t *testing.T) {
	h := newHarness(t)
	stopped := make(chan struct{})
	ended := make(chan struct{})
	stop := h.driver.stop
	go func() {
		defer close(ended)
		for runs := 10 * time.Millisecond; ; runs += runs / 4 { // a slow machine needs longer for a call
			stop()
			stop = h.driver.listen(t)
			select {
			case <-stopped:
				return
			case <-time.After(runs):
			}
		}
	}()
	endRestarts := sync.OnceFunc(func() {
		close(stopped)
		<-ended
	})
	defer endRestarts() // also if a step fails
	w := newWalk(h, h.driver, 1)
	for range 40 {
		w.step(w.volumes[w.random.IntN(2)])
	}
	endRestarts()
	for _, v := range w.volumes {
		w.remove(v)
	}
	h.requireClean()
}
