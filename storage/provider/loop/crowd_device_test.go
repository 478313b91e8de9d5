//go:build linux

package loop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

const (
	crowdVolumes = 100 // per member
	crowdBatch   = 25  // per call

	// crowdDir is the environment variable that makes a process of the test binary a
	// member of the crowd, with this storage directory.
	crowdDir = "STOWAGE_TEST_CROWD_DIR"
)

// TestLoopCrowd has eight users of loop volumes at once: four share a storage directory,
// the others have their own, and one is another process. A foreign program attaches and
// detaches a file without taking the lock.
func TestLoopCrowd(t *testing.T) {
	top := devicetest.Dir(t)
	shared := filepath.Join(top, "shared")
	dirs := []string{shared, shared, shared, shared}
	for n := range 3 {
		dirs = append(dirs, filepath.Join(top, fmt.Sprint("own-", n)))
	}
	foreign := newForeign(t, top, "steady")
	device := foreign.attach()
	stop := make(chan struct{})
	var others, members sync.WaitGroup
	others.Go(func() { newForeign(t, top, "restless").attachRepeatedly(stop) })

	devices := &devicesInUse{byName: make(map[string]string)}
	for n, dir := range dirs {
		members.Go(func() {
			if err := (&crowdMember{n: n, dir: dir, devices: devices}).run(); err != nil {
				t.Errorf("member %d: %v", n, err)
			}
		})
	}
	members.Go(func() {
		child := exec.Command(os.Args[0], "-test.run=^TestLoopCrowdMember$")
		child.Env = append(os.Environ(), crowdDir+"="+filepath.Join(top, "process"))
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("the other process: %v: %s", err, out)
		}
	})
	members.Wait()
	close(stop)
	others.Wait()

	foreign.check(device)
	foreign.detach(device)
	for _, dir := range append(dirs, filepath.Join(top, "process")) {
		sourcetest.CheckNoFiles(t, dir)
	}
	if left := devicetest.AwaitLoops(t, top, 0); len(left) != 0 {
		t.Errorf("left attached: %v", left)
	}
}

// TestLoopCrowdMember is run by the other process.
func TestLoopCrowdMember(t *testing.T) {
	dir := os.Getenv(crowdDir)
	if dir == "" {
		t.Skip("for the process that TestLoopCrowd starts")
	}
	m := &crowdMember{n: 99, dir: dir, devices: &devicesInUse{byName: make(map[string]string)}}
	if err := m.run(); err != nil {
		t.Fatal(err)
	}
}

// devicesInUse records which volume has each device.
type devicesInUse struct {
	mu     sync.Mutex
	byName map[string]string
}

func (d *devicesInUse) take(name, volume string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if other, ok := d.byName[name]; ok {
		return errors.Errorf("device %s was given to %s and %s", name, other, volume)
	}
	d.byName[name] = volume
	return nil
}

func (d *devicesInUse) giveBack(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byName, name)
}

// crowdMember makes volumes in bulk, writes on each, reads the data back after another
// attach, and removes everything.
type crowdMember struct {
	n       int
	dir     string
	devices *devicesInUse
	source  storage.VolumeSource
}

func (m *crowdMember) run() error {
	config, err := storage.NewConfig("loop", ProviderType, storage.Attrs{storage.ConfigStorageDir: m.dir})
	if err != nil {
		return err
	}
	if m.source, err = NewProvider(Options{}).VolumeSource(config); err != nil {
		return err
	}
	for first := 0; first < crowdVolumes; first += crowdBatch {
		if err := m.batch(first); err != nil {
			return errors.Annotatef(err, "volumes from %d", first)
		}
	}
	return nil
}

func (m *crowdMember) batch(first int) error {
	ctx := envcontext.New(context.Background())
	var volumes []storage.VolumeParams
	var attachments []storage.VolumeAttachmentParams
	var ids []string
	for i := first; i < first+crowdBatch; i++ {
		tag := names.NewVolumeTag(fmt.Sprintf("%d/%d", m.n, i))
		volumes = append(volumes, storage.VolumeParams{Tag: tag, Size: 1, Provider: ProviderType})
		attachments = append(attachments, storage.VolumeAttachmentParams{Volume: tag, VolumeId: tag.String()})
		ids = append(ids, tag.String())
	}
	created, err := m.source.CreateVolumes(ctx, volumes)
	if err := firstError(err, created, func(r storage.CreateVolumesResult) error { return r.Error }); err != nil {
		return err
	}
	for _, use := range []func(path, text string) error{writeText, checkText} {
		attached, err := m.source.AttachVolumes(ctx, attachments)
		if err := firstError(err, attached, func(r storage.AttachVolumesResult) error { return r.Error }); err != nil {
			return err
		}
		for i, a := range attached {
			name := a.VolumeAttachment.DeviceName
			if err := m.devices.take(name, ids[i]); err != nil {
				return err
			}
			if err := use("/dev/"+name, m.dir+" "+ids[i]); err != nil {
				return err
			}
		}
		for _, a := range attached {
			m.devices.giveBack(a.VolumeAttachment.DeviceName)
		}
		if err := m.detach(attachments); err != nil {
			return err
		}
	}
	destroyed, err := m.source.DestroyVolumes(ctx, ids)
	return firstError(err, destroyed, func(err error) error { return err })
}

// detach detaches volumes, again while a device is busy, as a worker does: the disk manager of an agent
// on the same host may be reading it.
func (m *crowdMember) detach(volumes []storage.VolumeAttachmentParams) error {
	for deadline := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
		detached, err := m.source.DetachVolumes(envcontext.New(context.Background()), volumes)
		if err != nil {
			return err
		}
		var busy []storage.VolumeAttachmentParams
		for i, err := range detached {
			if errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
				busy = append(busy, volumes[i])
			} else if err != nil {
				return err
			}
		}
		if volumes = busy; len(volumes) == 0 {
			return nil
		}
	}
}

func firstError[R any](err error, results []R, failure func(R) error) error {
	for i := 0; err == nil && i < len(results); i++ {
		err = failure(results[i])
	}
	return err
}

func writeText(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if cerr := f.Close(); err == nil {
		err = cerr // closing a block device writes what is not written
	}
	return err
}

func checkText(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err != nil {
		return err
	}
	if string(got) != want {
		return errors.Errorf("%s has %q, want %q", path, got, want)
	}
	return nil
}

// foreign is a file that somebody else attaches with losetup.
type foreign struct {
	t          *testing.T
	path, text string
}

func newForeign(t *testing.T, dir, text string) *foreign {
	f := &foreign{t: t, path: filepath.Join(dir, "foreign-"+text), text: text}
	content := append([]byte(text), make([]byte, 1<<20-len(text))...)
	if err := os.WriteFile(f.path, content, 0o600); err != nil {
		t.Error(err)
	}
	return f
}

// attach returns the device, or an empty string where every device that losetup tried was
// taken.
func (f *foreign) attach() string {
	out, err := exec.Command("losetup", "--find", "--show", f.path).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// check checks that neither the device nor its contents were changed.
func (f *foreign) check(device string) {
	out, err := exec.Command("losetup", "--noheadings", "--output", "BACK-FILE", device).CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != f.path {
		f.t.Errorf("%s shows %q, %v; want %s", device, got, err, f.path)
	}
	if err := checkText(device, f.text); err != nil {
		f.t.Error(err)
	}
}

func (f *foreign) detach(device string) {
	if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
		f.t.Errorf("detaching %s: %v: %s", device, err, out)
	}
}

func (f *foreign) attachRepeatedly(stop <-chan struct{}) {
	for times := 0; ; times++ {
		select {
		case <-stop:
			f.t.Logf("the foreign file was attached %d times", times)
			return
		default:
		}
		if device := f.attach(); device != "" {
			f.check(device)
			f.detach(device)
		}
	}
}
