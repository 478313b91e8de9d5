//go:build linux

package csi_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/csi"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/providertest"
)

// harness is a provider of a fake driver.
type harness struct {
	*testing.T
	driver *fakeDriver
	config csi.Config
	dir    string // the storage directory
	ctx    envcontext.ProviderCallContext
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	devicetest.RequireRoot(t)
	h := &harness{T: t, driver: startDriver(t), dir: devicetest.Dir(t), ctx: envcontext.New(t.Context())}
	h.config = csi.Config{Name: "fake", Driver: driverName, Socket: h.driver.socket, Timeout: 20 * time.Second}
	t.Cleanup(func() {
		// Whatever a failed test has left.
		for _, m := range devicetest.Mounts(t, h.dir) {
			t.Errorf("left mounted: %s", m.Mountpoint)
		}
		for _, loop := range devicetest.AwaitLoops(t, h.driver.dir, 0) {
			t.Errorf("left attached: %s", loop)
		}
	})
	return h
}

func (h *harness) provider() storage.Provider {
	h.Helper()
	p, err := csi.New(h.config)
	if err != nil {
		h.Fatal(err)
	}
	return p
}

func (h *harness) pool(attrs storage.Attrs) *storage.Config {
	h.Helper()
	all := storage.Attrs{storage.ConfigStorageDir: h.dir}
	for k, v := range attrs {
		all[k] = v
	}
	pool, err := storage.NewConfig("fake", "fake", all)
	if err != nil {
		h.Fatal(err)
	}
	return pool
}

// volumes returns a new source of volumes, as a new process has it.
func (h *harness) volumes() storage.VolumeSource {
	h.Helper()
	s, err := h.provider().VolumeSource(h.pool(nil))
	if err != nil {
		h.Fatal(err)
	}
	return s
}

func (h *harness) filesystems() storage.FilesystemSource {
	h.Helper()
	s, err := h.provider().FilesystemSource(h.pool(nil))
	if err != nil {
		h.Fatal(err)
	}
	return s
}

func ownerTags() map[string]string {
	return map[string]string{storage.EntityUUIDTag: uuid.NewString(), storage.ModelUUIDTag: uuid.NewString()}
}

func volume(n string) storage.VolumeParams {
	return storage.VolumeParams{Tag: names.NewVolumeTag("0/" + n), Size: 8, Provider: "fake", ResourceTags: ownerTags()}
}

func (h *harness) create(p storage.VolumeParams) (*storage.Volume, error) {
	h.Helper()
	results, err := h.volumes().CreateVolumes(h.ctx, []storage.VolumeParams{p})
	if err != nil {
		h.Fatal(err)
	}
	return results[0].Volume, results[0].Error
}

func (h *harness) mustCreate(p storage.VolumeParams) *storage.Volume {
	h.Helper()
	v, err := h.create(p)
	if err != nil {
		h.Fatal(err)
	}
	return v
}

func attachment(v *storage.Volume) storage.VolumeAttachmentParams {
	return storage.VolumeAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Provider: "fake", Machine: names.NewMachineTag("0"), InstanceId: "i-0"},
		Volume:           v.Tag, VolumeId: v.VolumeId,
	}
}

func (h *harness) attach(v *storage.Volume) (*storage.VolumeAttachment, error) {
	h.Helper()
	results, err := h.volumes().AttachVolumes(h.ctx, []storage.VolumeAttachmentParams{attachment(v)})
	if err != nil {
		h.Fatal(err)
	}
	return results[0].VolumeAttachment, results[0].Error
}

func (h *harness) detach(v *storage.Volume) error {
	h.Helper()
	errs, err := h.volumes().DetachVolumes(h.ctx, []storage.VolumeAttachmentParams{attachment(v)})
	if err != nil {
		h.Fatal(err)
	}
	return errs[0]
}

func (h *harness) destroy(id string) error {
	h.Helper()
	errs, err := h.volumes().DestroyVolumes(h.ctx, []string{id})
	if err != nil {
		h.Fatal(err)
	}
	return errs[0]
}

// records returns the names of the records.
func (h *harness) records() []string {
	h.Helper()
	var all []string
	for _, kind := range []string{"*", "*/snapshots"} {
		found, err := filepath.Glob(filepath.Join(h.dir, kind, "records", "*.json"))
		if err != nil {
			h.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// requireClean fails the test unless nothing is left.
func (h *harness) requireClean() {
	h.Helper()
	if left := append(h.driver.leaks(), h.records()...); len(left) > 0 {
		h.Errorf("left: %q", left)
	}
}

func TestConforms(t *testing.T) {
	h := newHarness(t)
	providertest.Run(t, providertest.Config{
		Provider:     h.provider(),
		Restart:      h.provider,
		SourceConfig: h.pool(storage.Attrs{"tier": "fast", "fs": "ext4"}),
		InvalidAttrs: storage.Attrs{"list": []any{"x"}, "mkfs-options": "x"},
		MountDir:     devicetest.Dir(t),
		Leaks: func() []string {
			all := append(h.driver.leaks(), h.records()...)
			for _, m := range devicetest.Mounts(t, h.dir) {
				all = append(all, m.Mountpoint)
			}
			return append(all, devicetest.AwaitLoops(t, h.driver.dir, 0)...)
		},
	})
}

// A driver without a controller that publishes, and without staging, is called without these steps.
func TestDriverThatOnlyPublishesOnNodes(t *testing.T) {
	h := newHarness(t)
	h.driver.set(func() { h.driver.noStaging, h.driver.noPublish = true, true })
	v := h.mustCreate(volume("0"))
	if _, err := h.attach(v); err != nil {
		t.Fatal(err)
	}
	if err := h.detach(v); err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"ControllerPublishVolume", "NodeStageVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"} {
		if n := h.driver.count(method); n != 0 {
			t.Errorf("%s was called %d times", method, n)
		}
	}
	if err := h.destroy(v.VolumeId); err != nil {
		t.Fatal(err)
	}
	h.requireClean()
}

// The answer to a creation is lost. The pool has changed when the creation is repeated.
func TestRepeatedCreationMakesNoSecondVolume(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled, codes.ResourceExhausted} {
		t.Run(code.String(), func(t *testing.T) {
			h := newHarness(t)
			h.driver.set(func() { h.driver.after = failing("CreateVolume", code) })
			p := volume("0")
			_, err := h.create(p)
			if err == nil || storage.IsNothingMade(err) || storage.IsPermanent(err) {
				t.Fatalf("creation: %v; want an error after which something may exist", err)
			}
			h.driver.set(func() { h.driver.after = nil })
			p.Attributes = map[string]any{"tier": "other"}
			v := h.mustCreate(p)
			if n := len(h.driver.leaks()); n != 1 {
				t.Errorf("%d volumes: %q", n, h.driver.leaks())
			}
			if err := h.destroy(v.VolumeId); err != nil {
				t.Fatal(err)
			}
			h.requireClean()
		})
	}
}

// A volume that a lost answer was about is found and removed, even if it is only destroyed.
func TestDestroyFindsWhatAnInterruptedCreationMade(t *testing.T) {
	h := newHarness(t)
	h.driver.set(func() { h.driver.after = failing("CreateVolume", codes.Unavailable) })
	p := volume("0")
	if _, err := h.create(p); err == nil {
		t.Fatal("the creation succeeded")
	}
	h.driver.set(func() { h.driver.after = nil })
	id := p.Tag.String() + "-" + p.ResourceTags[storage.EntityUUIDTag]
	if err := h.destroy(id); err != nil {
		t.Fatal(err)
	}
	h.requireClean()
}

func failing(method string, code codes.Code) func(context.Context, string) error {
	return func(_ context.Context, called string) error {
		if called == method {
			return status.Error(code, "injected")
		}
		return nil
	}
}

// What the driver refuses leaves nothing, unless an earlier attempt may have made it.
// Finding N43: it was refused for good then.
func TestRefusedCreation(t *testing.T) {
	for _, test := range []struct {
		code      codes.Code
		permanent bool
	}{
		{codes.InvalidArgument, true}, {codes.OutOfRange, true}, {codes.Unimplemented, true},
		{codes.Internal, false}, {codes.FailedPrecondition, false}, {codes.PermissionDenied, false}, {codes.Unknown, false},
	} {
		t.Run(test.code.String(), func(t *testing.T) {
			h := newHarness(t)
			h.driver.set(func() { h.driver.before = failing("CreateVolume", test.code) })
			_, err := h.create(volume("0"))
			if !storage.IsNothingMade(err) || storage.IsPermanent(err) != test.permanent {
				t.Errorf("%v: nothing made: %v, permanent: %v", err, storage.IsNothingMade(err), storage.IsPermanent(err))
			}
			h.requireClean()

			p := volume("1")
			h.driver.set(func() { h.driver.before, h.driver.after = nil, failing("CreateVolume", codes.Unavailable) })
			_, _ = h.create(p)
			h.driver.set(func() { h.driver.before = failing("CreateVolume", test.code) })
			if _, err := h.create(p); err == nil || storage.IsNothingMade(err) || storage.IsPermanent(err) {
				t.Errorf("after an attempt that made it: %v; want an error after which something may exist", err)
			}
			owned, err := h.volumes().(storage.VolumeOwnerLister).ListVolumeOwners(h.ctx)
			if err != nil || len(owned) != 1 || !owned[0].Incomplete {
				t.Fatalf("recorded: %+v, %v", owned, err)
			}
			if err := h.destroy(owned[0].ID); err == nil {
				t.Error("destroyed, although it is not known what there is")
			}
			h.driver.set(func() { h.driver.before, h.driver.after = nil, nil })
			v := h.mustCreate(p)
			if err := h.destroy(v.VolumeId); err != nil {
				t.Fatal(err)
			}
			h.requireClean()
		})
	}
}

// A creation is repeated with a larger size than what exists, and the volume cannot grow, or a removal
// that had begun is refused: that does not say that nothing exists.
// Finding N45: it did.
func TestRefusalAfterCreation(t *testing.T) {
	for _, method := range []string{"ControllerExpandVolume", "DeleteVolume"} {
		t.Run(method, func(t *testing.T) {
			h := newHarness(t)
			p := volume("0")
			v := h.mustCreate(p)
			h.driver.set(func() { h.driver.before = failing(method, codes.OutOfRange) })
			if method == "DeleteVolume" {
				if err := h.destroy(v.VolumeId); err == nil {
					t.Fatal("destroyed")
				}
			}
			p.Size *= 2
			if _, err := h.create(p); err == nil || storage.IsPermanent(err) || storage.IsNothingMade(err) {
				t.Errorf("%v: nothing made: %v, permanent: %v", err, storage.IsNothingMade(err), storage.IsPermanent(err))
			}
			h.driver.set(func() { h.driver.before = nil })
			if v := h.mustCreate(p); v.Size != p.Size {
				t.Errorf("it has %d MiB, and %d were requested", v.Size, p.Size)
			}
			if err := h.destroy(v.VolumeId); err != nil {
				t.Fatal(err)
			}
			h.requireClean()
		})
	}
}

// A call that hangs ends at the time limit, and holds up no other volume of the bulk call.
func TestHangingCallHoldsUpNothingElse(t *testing.T) {
	h := newHarness(t)
	h.config.Timeout = 5 * time.Second
	hangs, fine := volume("0"), volume("1")
	h.driver.set(func() {
		first := make(chan struct{}, 1)
		first <- struct{}{}
		h.driver.before = func(ctx context.Context, method string) error {
			if method != "CreateVolume" {
				return nil
			}
			select {
			case <-first:
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			default:
				return nil
			}
		}
	})
	results, err := h.volumes().CreateVolumes(h.ctx, []storage.VolumeParams{hangs, fine})
	if err != nil {
		t.Fatal(err)
	}
	var made, running int
	for _, r := range results {
		if r.Error == nil {
			made++
		} else if errors.Is(r.Error, storage.ErrInProgress) {
			running++
		}
	}
	if made != 1 || running != 1 {
		t.Errorf("got %v and %v; want one volume, and one that is in progress", results[0].Error, results[1].Error)
	}
	for _, p := range []storage.VolumeParams{hangs, fine} {
		if err := h.destroy(h.mustCreate(p).VolumeId); err != nil {
			t.Error(err)
		}
	}
	h.requireClean()
}

// The volumes of a bulk call are made at the same time.
func TestVolumesAreMadeAtOnce(t *testing.T) {
	h := newHarness(t)
	var arrived sync.WaitGroup
	arrived.Add(2)
	all := make(chan struct{})
	go func() {
		arrived.Wait()
		close(all)
	}()
	h.driver.set(func() {
		h.driver.before = func(ctx context.Context, method string) error {
			if method != "CreateVolume" {
				return nil
			}
			arrived.Done()
			select {
			case <-all:
				return nil
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
	})
	results, err := h.volumes().CreateVolumes(h.ctx, []storage.VolumeParams{volume("0"), volume("1")})
	if err != nil {
		t.Fatal(err)
	}
	h.driver.set(func() { h.driver.before = nil })
	for _, r := range results {
		if r.Error != nil {
			t.Error(r.Error)
			continue
		}
		if err := h.destroy(r.Volume.VolumeId); err != nil {
			t.Error(err)
		}
	}
}

// The process ends after any step of attaching or detaching, and the next one repeats the call.
func TestInterruptedAttachmentStagesOnce(t *testing.T) {
	steps := []string{
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume",
		"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume",
	}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			h := newHarness(t)
			v := h.mustCreate(volume("0"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h.driver.set(func() {
				h.driver.after = func(_ context.Context, method string) error {
					if method == step {
						cancel()
						return status.Error(codes.Unavailable, "the answer is lost")
					}
					return nil
				}
			})
			source := h.volumes()
			undoing := strings.Contains(step, "Un")
			if undoing {
				if _, err := h.attach(v); err != nil {
					t.Fatal(err)
				}
				errs, err := source.DetachVolumes(envcontext.New(ctx), []storage.VolumeAttachmentParams{attachment(v)})
				if err == nil && errs[0] == nil {
					t.Error("the interrupted call succeeded")
				}
			} else {
				results, err := source.AttachVolumes(envcontext.New(ctx), []storage.VolumeAttachmentParams{attachment(v)})
				if err == nil && results[0].Error == nil {
					t.Error("the interrupted call succeeded")
				}
			}
			h.driver.set(func() { h.driver.after = nil })
			// An attachment is not wanted any more, and then wanted again.
			if err := h.detach(v); err != nil {
				t.Fatal(err)
			}
			if left := devicetest.AwaitLoops(t, h.driver.dir, 0); len(left) != 0 {
				t.Errorf("detached, and still attached at %q", left)
			}
			h.driver.set(func() {
				for _, v := range h.driver.volumes {
					if v.node != "" || v.staged != "" || v.published != "" {
						t.Errorf("detached, and the driver still has %q %q %q", v.node, v.staged, v.published)
					}
				}
			})
			if _, err := h.attach(v); err != nil {
				t.Fatal(err)
			}
			if loops := devicetest.AwaitLoops(t, h.driver.dir, 1); len(loops) != 1 {
				t.Errorf("attached at %q", loops)
			}
			calls := h.driver.count("NodePublishVolume")
			if _, err := h.attach(v); err != nil || h.driver.count("NodePublishVolume") != calls {
				t.Errorf("attaching again: %v; published %d times", err, h.driver.count("NodePublishVolume"))
			}
			if err := h.destroy(v.VolumeId); err == nil {
				t.Error("an attached volume was destroyed")
			}
			if err := h.detach(v); err != nil {
				t.Fatal(err)
			}
			if err := h.destroy(v.VolumeId); err != nil {
				t.Fatal(err)
			}
			h.requireClean()
		})
	}
}

// Attached storage stays usable while the driver is away, and attaching it again needs no driver.
func TestDriverIsAway(t *testing.T) {
	h := newHarness(t)
	v := h.mustCreate(volume("0"))
	if _, err := h.attach(v); err != nil {
		t.Fatal(err)
	}
	socket := h.config.Socket
	h.config.Socket = filepath.Join(h.driver.dir, "nobody.sock")
	if _, err := h.attach(v); err != nil {
		t.Errorf("attaching again: %v", err)
	}
	err := h.detach(v)
	if err == nil || !errors.Is(err, storage.ErrTransient) || !strings.Contains(err.Error(), "nothing listens on "+h.config.Socket+": start the driver") {
		t.Errorf("detaching: %v", err)
	}
	_, err = h.create(volume("1"))
	if !storage.IsNothingMade(err) {
		t.Errorf("creating: %v; want that nothing was made", err)
	}
	h.config.Socket = socket
	if err := h.detach(v); err != nil {
		t.Fatal(err)
	}
	if err := h.destroy(v.VolumeId); err != nil {
		t.Fatal(err)
	}
	h.requireClean()
}

// The driver says that it has unpublished a volume, and has not.
func TestUnpublishedVolumeMustBeGone(t *testing.T) {
	h := newHarness(t)
	v := h.mustCreate(volume("0"))
	if _, err := h.attach(v); err != nil {
		t.Fatal(err)
	}
	h.driver.set(func() { h.driver.forgets = true })
	if err := h.detach(v); err == nil || !strings.Contains(err.Error(), "the volume is still at") {
		t.Errorf("detaching: %v", err)
	}
	if err := h.destroy(v.VolumeId); err == nil {
		t.Error("an attached volume was destroyed")
	}
	h.driver.set(func() { h.driver.forgets = false })
	if err := h.detach(v); err != nil {
		t.Fatal(err)
	}
	if err := h.destroy(v.VolumeId); err != nil {
		t.Fatal(err)
	}
	h.requireClean()
}

// A volume that grows while it is detached grows on the machine when it is attached.
func TestGrow(t *testing.T) {
	h := newHarness(t)
	v := h.mustCreate(volume("0"))
	grow := func(size uint64) {
		t.Helper()
		results, err := h.volumes().(storage.VolumeResizer).ResizeVolumes(h.ctx, []storage.VolumeResizeParams{{Tag: v.Tag, VolumeId: v.VolumeId, Size: size}})
		if err != nil || results[0].Error != nil || results[0].VolumeInfo.Size != size {
			t.Fatalf("growing to %d: %+v, %v", size, results, err)
		}
	}
	grow(16)
	if n := h.driver.count("NodeExpandVolume"); n != 0 {
		t.Errorf("NodeExpandVolume was called for a detached volume")
	}
	a, err := h.attach(v)
	if err != nil {
		t.Fatal(err)
	}
	if n := h.driver.count("NodeExpandVolume"); n != 1 {
		t.Errorf("NodeExpandVolume was called %d times, want 1", n)
	}
	grow(24)
	data, err := os.ReadFile("/sys/class/block/" + a.DeviceName + "/size")
	if got := strings.TrimSpace(string(data)); err != nil || got != "49152" {
		t.Errorf("the device has %s sectors, %v; want 49152", got, err)
	}
	if err := h.detach(v); err != nil {
		t.Fatal(err)
	}
	if err := h.destroy(v.VolumeId); err != nil {
		t.Fatal(err)
	}
	h.requireClean()
}

// Secrets reach the driver, and nobody else.
func TestSecrets(t *testing.T) {
	h := newHarness(t)
	const secret = "hunter2-and-more"
	path := filepath.Join(h.dir, "secrets.json")
	if err := os.WriteFile(path, []byte(`{"password": "`+secret+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h.config.SecretsFile = path
	v := h.mustCreate(volume("0"))
	if _, err := h.attach(v); err != nil {
		t.Fatal(err)
	}
	h.driver.set(func() {
		for _, method := range []string{"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"} {
			if h.driver.secrets[method]["password"] != secret {
				t.Errorf("%s: secrets %q", method, h.driver.secrets[method])
			}
		}
		h.driver.before = func(_ context.Context, method string) error {
			if method == "NodeUnpublishVolume" {
				return status.Error(codes.Internal, "login with "+secret+" failed")
			}
			return nil
		}
	})
	err := h.detach(v)
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "login with … failed") {
		t.Errorf("error %v", err)
	}
	for _, record := range h.records() {
		if data, err := os.ReadFile(record); err != nil || strings.Contains(string(data), secret) {
			t.Errorf("%s: %v, or it has the secret", record, err)
		}
	}
	h.driver.set(func() { h.driver.before = nil })
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.detach(v); err == nil || !strings.Contains(err.Error(), path+": others can read it: chmod 600 it") {
		t.Errorf("with secrets that others can read: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.detach(v); err != nil {
		t.Fatal(err)
	}
	if err := h.destroy(v.VolumeId); err != nil {
		t.Fatal(err)
	}
	h.requireClean()
}

func TestOtherDriver(t *testing.T) {
	h := newHarness(t)
	h.driver.set(func() { h.driver.name = "other.example.com" })
	_, err := h.create(volume("0"))
	if !storage.IsPermanent(err) || !strings.Contains(err.Error(), `"other.example.com" listens on `+h.driver.socket) {
		t.Errorf("got %v", err)
	}
	h.driver.set(func() { h.driver.name, h.driver.ready = driverName, false })
	if _, err := h.create(volume("0")); !errors.Is(err, storage.ErrTransient) || !strings.Contains(err.Error(), "not ready yet") {
		t.Errorf("got %v", err)
	}
	if err := os.Chmod(h.driver.socket, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := h.create(volume("0")); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), "others than root can write to "+h.driver.socket) {
		t.Errorf("with a socket that others can write to: %v", err)
	}
	h.requireClean()
}

// A filesystem that the driver has mounted is bound at its mount point. Somebody else's mount there
// is not touched.
func TestFilesystemIsBound(t *testing.T) {
	h := newHarness(t)
	fs := h.makeFilesystem()
	fs.mustAttach()
	file := filepath.Join(fs.Path, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fs.check(); err != nil {
		t.Error(err)
	}
	busy, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.detach(); err == nil || !strings.Contains(err.Error(), "has open "+file) {
		t.Errorf("detaching what is in use: %v; want the holder", err)
	}
	busy.Close()
	if err := fs.detach(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(fs.Path)); !os.IsNotExist(err) {
		t.Errorf("the directories that were made for it are left: %v", err)
	}
	fs.mustAttach()
	if data, err := os.ReadFile(file); err != nil || string(data) != "kept" {
		t.Errorf("after attaching again: %q, %v", data, err)
	}
	if err := fs.detach(); err != nil {
		t.Fatal(err)
	}
	fs.destroy()
	h.requireClean()
}

// A filesystem that responds no more, because its driver has lost it, can be detached.
func TestDeadFilesystem(t *testing.T) {
	h := newHarness(t)
	disk := devicetest.NewDisk(t, 320<<20, "mkfs.xfs", "-q")
	h.driver.set(func() { h.driver.dataDir = disk.Dir })
	fs := h.makeFilesystem()
	fs.mustAttach()
	devicetest.ShutDown(t, disk.Dir)
	const want = "the filesystem does not respond: see that its driver runs, detach it, and attach it again"
	if err := fs.check(); !storage.IsPermanent(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("checking: %v", err)
	}
	if err := fs.attach(); !storage.IsPermanent(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("attaching again: %v", err)
	}
	if err := fs.detach(); err != nil {
		t.Fatal(err)
	}
	h.driver.set(func() { h.driver.dataDir = filepath.Join(h.driver.dir, "data") })
	fs.destroy()
	h.requireClean()
}

// testFilesystem is a filesystem of a harness.
type testFilesystem struct {
	*harness
	storage.FilesystemAttachmentParams
}

func (h *harness) makeFilesystem() testFilesystem { return h.makeFilesystemWith(nil) }

func (h *harness) makeFilesystemWith(attributes map[string]any) testFilesystem {
	h.Helper()
	p := storage.FilesystemParams{
		Tag: names.NewFilesystemTag("0/0"), Size: 8, Provider: "fake", Attributes: attributes, ResourceTags: ownerTags(),
	}
	made, err := h.filesystems().CreateFilesystems(h.ctx, []storage.FilesystemParams{p})
	if err != nil || made[0].Error != nil {
		h.Fatal(err, made)
	}
	return h.filesystem(made[0].Filesystem.FilesystemId)
}

// filesystem is a filesystem with an ID, to be attached below a directory of its own.
func (h *harness) filesystem(id string) testFilesystem {
	h.Helper()
	return testFilesystem{h, storage.FilesystemAttachmentParams{
		AttachmentParams: storage.AttachmentParams{Provider: "fake", Machine: names.NewMachineTag("0")},
		Filesystem:       names.NewFilesystemTag("0/0"), FilesystemId: id, Path: filepath.Join(devicetest.Dir(h), "deep", "data"),
	}}
}

func (f testFilesystem) attach() error {
	f.Helper()
	results, err := f.filesystems().AttachFilesystems(f.ctx, []storage.FilesystemAttachmentParams{f.FilesystemAttachmentParams})
	if err != nil {
		f.Fatal(err)
	}
	return results[0].Error
}

func (f testFilesystem) mustAttach() {
	f.Helper()
	if err := f.attach(); err != nil {
		f.Fatal(err)
	}
}

func (f testFilesystem) check() error {
	f.Helper()
	errs, err := f.filesystems().(storage.FilesystemChecker).CheckFilesystems(f.ctx, []string{f.FilesystemId})
	if err != nil {
		f.Fatal(err)
	}
	return errs[0]
}

func (f testFilesystem) detach() error {
	f.Helper()
	errs, err := f.filesystems().DetachFilesystems(f.ctx, []storage.FilesystemAttachmentParams{f.FilesystemAttachmentParams})
	if err != nil {
		f.Fatal(err)
	}
	return errs[0]
}

func (f testFilesystem) destroy() {
	f.Helper()
	errs, err := f.filesystems().DestroyFilesystems(f.ctx, []string{f.FilesystemId})
	if err != nil || errs[0] != nil {
		f.Fatal(err, errs)
	}
}

// The attributes of a pool are parameters, apart from those of filesystems.
func TestAttributes(t *testing.T) {
	h := newHarness(t)
	attributes := map[string]any{"tier": "fast", "replicas": 3, "encrypted": true, "fs": "xfs", "mount-options": "noatime,discard"}
	requested := func() (r *csispec.CreateVolumeRequest) {
		h.driver.set(func() {
			for _, v := range h.driver.volumes {
				r = v.request
			}
		})
		return r
	}
	want := map[string]string{"tier": "fast", "replicas": "3", "encrypted": "true"}
	fs := h.makeFilesystemWith(attributes)
	r := requested()
	mount := r.GetVolumeCapabilities()[0].GetMount()
	if !maps.Equal(r.GetParameters(), want) || mount.GetFsType() != "xfs" || !slices.Equal(mount.GetMountFlags(), []string{"noatime", "discard"}) {
		t.Errorf("a filesystem was requested with %v", r)
	}
	fs.destroy()

	h.config.BlockOnly = true
	p := volume("0")
	p.Attributes = maps.Clone(attributes)
	p.Attributes["mkfs-options"] = "inode-ratio=65536" // for the machine
	v := h.mustCreate(p)
	if r := requested(); !maps.Equal(r.GetParameters(), want) || r.GetVolumeCapabilities()[0].GetBlock() == nil {
		t.Errorf("a volume was requested with %v", r)
	}
	if err := h.destroy(v.VolumeId); err != nil {
		t.Fatal(err)
	}
	if _, err := h.provider().FilesystemSource(h.pool(nil)); !errors.Is(err, errors.NotSupported) {
		t.Errorf("filesystems of a driver that makes none: %v", err)
	}
	if _, err := h.provider().VolumeSource(h.pool(storage.Attrs{"fs": "fat"})); !errors.Is(err, errors.NotValid) {
		t.Errorf("a type of filesystem that the machine cannot make: %v", err)
	}
}

// A volume whose owner has no UUID would have the name of another environment's.
func TestOwnerIsNeeded(t *testing.T) {
	h := newHarness(t)
	p := volume("0")
	delete(p.ResourceTags, storage.EntityUUIDTag)
	if err := h.volumes().ValidateVolumeParams(p); !errors.Is(err, errors.NotValid) {
		t.Errorf("got %v", err)
	}
}

func TestConfig(t *testing.T) {
	good := csi.Config{Name: "fake", Driver: driverName, Socket: "/run/csi.sock"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*csi.Config){
		"Name":        func(c *csi.Config) { c.Name = "-" },
		"Driver":      func(c *csi.Config) { c.Driver = "" },
		"Socket":      func(c *csi.Config) { c.Socket = "csi.sock" },
		"NodeSocket":  func(c *csi.Config) { c.NodeSocket = "/run/../csi.sock" },
		"SecretsFile": func(c *csi.Config) { c.SecretsFile = "secrets" },
		"Timeout":     func(c *csi.Config) { c.Timeout = -1 },
		"AtOnce":      func(c *csi.Config) { c.AtOnce = -1 },
	} {
		config := good
		change(&config)
		if err := config.Validate(); !errors.Is(err, errors.NotValid) || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	blockOnly := good
	blockOnly.BlockOnly = true
	p, err := csi.New(blockOnly)
	if err != nil {
		t.Fatal(err)
	}
	kinds := []storage.StorageKind{storage.StorageKindBlock, storage.StorageKindFilesystem}
	if got := slices.IndexFunc(kinds, func(k storage.StorageKind) bool { return !p.Supports(k) }); got != 1 {
		t.Errorf("BlockOnly: kind %d is not supported, want 1", got)
	}
}

// The driver says how much space is left: for a machine, where that can use it.
func TestCapacity(t *testing.T) {
	h := newHarness(t)
	fs, err := h.provider().FilesystemSource(h.pool(nil))
	if err != nil {
		t.Fatal(err)
	}
	for what, source := range map[string]any{"volumes": h.volumes(), "filesystems": fs} {
		capacity, err := source.(storage.CapacityReporter).Capacity(h.ctx, storage.Attrs{"tier": "fast"})
		if err != nil || capacity != 1024 {
			t.Errorf("%s: %d MiB, %v", what, capacity, err)
		}
	}
	reporter := h.volumes().(storage.CapacityReporter)
	for _, wrong := range []storage.Attrs{{"tier": "unknown"}, {"tier": []string{"fast"}}} {
		if _, err := reporter.Capacity(h.ctx, wrong); !errors.Is(err, errors.NotValid) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	h.driver.set(func() { h.driver.noCapacity = true })
	if _, err := reporter.Capacity(h.ctx, nil); !errors.Is(err, errors.NotSupported) || !strings.Contains(err.Error(), "CSI driver fake.csi.example.com does not say how much space is left") {
		t.Errorf("a driver that does not tell: %v", err)
	}

	e := newEnviron(t)
	if capacity, err := e.volumes().(storage.CapacityReporter).Capacity(e.ctx, nil); err != nil || capacity != 3<<10 {
		t.Errorf("in the environment: %d MiB, %v", capacity, err)
	}
}
