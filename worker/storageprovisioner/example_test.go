package storageprovisioner_test

import (
	"fmt"

	"github.com/juju/clock"
	"github.com/juju/names/v5"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// A host program keeps its own state, and gives the worker access to it through
// accessors. This one wants a single volume, number 0, attached to machine 0, and prints
// what the worker records. The worker also needs a provider of volumes, here one that makes
// nothing.
func Example() {
	inventory := &inventory{attached: make(chan struct{})}
	worker, err := storageprovisioner.New(storageprovisioner.Config{
		Scope:       names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"),
		Volumes:     inventory,
		Filesystems: inventory,
		Life:        inventory,
		Environ:     inventory,
		Machines:    inventory,
		Status:      inventory,
		Clock:       clock.WallClock,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) {
			return storage.StaticProviderRegistry{
				Providers: map[storage.ProviderType]storage.Provider{"pretend": fakeProvider{}},
			}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	<-inventory.attached
	worker.Kill()
	fmt.Println("worker:", worker.Wait())
	// Output:
	// volume-0: attaching
	// volume-0 is recorded: id vol-of-volume-0, 1024 MiB
	// volume-0: attached
	// volume-0 on machine-0 is recorded: device sdx
	// worker: <nil>
}

// inventory is a host program's state. The worker calls it from one goroutine at a time.
// The two infos hold what the worker has recorded so far.
type inventory struct {
	volume     *params.VolumeInfo
	attachment *params.VolumeAttachmentInfo
	attached   chan struct{}
}

func (i *inventory) WatchVolumes() (watcher.StringsWatcher, error) {
	return newStaticWatcher([]string{"0"}), nil
}

func (i *inventory) WatchVolumeAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return newStaticWatcher([]params.MachineStorageId{{MachineTag: "machine-0", AttachmentTag: "volume-0"}}), nil
}

func (i *inventory) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	return each(tags, func(tag names.VolumeTag) params.VolumeResult {
		if i.volume == nil {
			return params.VolumeResult{Error: notProvisioned}
		}
		return params.VolumeResult{Result: params.Volume{VolumeTag: tag.String(), Info: *i.volume}}
	}), nil
}

func (i *inventory) VolumeAttachments(ids []params.MachineStorageId) ([]params.VolumeAttachmentResult, error) {
	return each(ids, func(id params.MachineStorageId) params.VolumeAttachmentResult {
		if i.attachment == nil {
			return params.VolumeAttachmentResult{Error: notProvisioned}
		}
		return params.VolumeAttachmentResult{Result: params.VolumeAttachment{
			VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, Info: *i.attachment,
		}}
	}), nil
}

func (i *inventory) VolumeParams(tags []names.VolumeTag) ([]params.VolumeParamsResult, error) {
	return each(tags, func(tag names.VolumeTag) params.VolumeParamsResult {
		return params.VolumeParamsResult{Result: params.VolumeParams{
			VolumeTag: tag.String(), Size: 1024, Provider: "pretend",
			Attachment: &params.VolumeAttachmentParams{
				VolumeTag: tag.String(), MachineTag: "machine-0", Provider: "pretend",
			},
		}}
	}), nil
}

func (i *inventory) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	return each(ids, func(id params.MachineStorageId) params.VolumeAttachmentParamsResult {
		return params.VolumeAttachmentParamsResult{Result: params.VolumeAttachmentParams{
			VolumeTag: id.AttachmentTag, MachineTag: id.MachineTag, Provider: "pretend",
		}}
	}), nil
}

func (i *inventory) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	for _, v := range volumes {
		i.volume = &v.Info
		fmt.Printf("%s is recorded: id %s, %d MiB\n", v.VolumeTag, v.Info.VolumeId, v.Info.Size)
	}
	return nil, nil // all succeeded
}

func (i *inventory) SetVolumeAttachmentInfo(attachments []params.VolumeAttachment) ([]params.ErrorResult, error) {
	for _, a := range attachments {
		i.attachment = &a.Info
		fmt.Printf("%s on %s is recorded: device %s\n", a.VolumeTag, a.MachineTag, a.Info.DeviceName)
	}
	close(i.attached)
	return nil, nil
}

func (i *inventory) SetStatus(statuses []params.EntityStatusArgs) error {
	for _, s := range statuses {
		fmt.Printf("%s: %s\n", s.Tag, s.Status)
	}
	return nil
}

func (i *inventory) Life(tags []names.Tag) ([]params.LifeResult, error) {
	return each(tags, func(names.Tag) params.LifeResult { return params.LifeResult{Life: life.Alive} }), nil
}

func (i *inventory) AttachmentLife(ids []params.MachineStorageId) ([]params.LifeResult, error) {
	return each(ids, func(params.MachineStorageId) params.LifeResult { return params.LifeResult{Life: life.Alive} }), nil
}

func (i *inventory) InstanceIds(machines []names.MachineTag) ([]params.StringResult, error) {
	return each(machines, func(names.MachineTag) params.StringResult { return params.StringResult{Result: "instance-0"} }), nil
}

func (i *inventory) WatchMachine(names.MachineTag) (watcher.NotifyWatcher, error) {
	return newStaticWatcher(struct{}{}), nil
}

func (i *inventory) WatchForEnvironConfigChanges() (watcher.NotifyWatcher, error) {
	return newStaticWatcher(struct{}{}), nil
}

func (i *inventory) EnvironConfig() (*config.Config, error) {
	return config.New(map[string]any{
		"name": "example", "type": "pretend", "uuid": "deadbeef-0bad-400d-8000-4b1d0d06f00d",
	})
}

// The following methods serve filesystems, removals, and workers of machines. This
// example has none.

func (i *inventory) WatchBlockDevices(names.MachineTag) (watcher.NotifyWatcher, error) {
	return newStaticWatcher(struct{}{}), nil
}
func (i *inventory) VolumeBlockDevices([]params.MachineStorageId) ([]params.BlockDeviceResult, error) {
	return nil, nil
}
func (i *inventory) Remove([]names.Tag) ([]params.ErrorResult, error) { return nil, nil }
func (i *inventory) RemoveAttachments([]params.MachineStorageId) ([]params.ErrorResult, error) {
	return nil, nil
}
func (i *inventory) WatchFilesystems() (watcher.StringsWatcher, error) {
	return newStaticWatcher([]string(nil)), nil
}
func (i *inventory) WatchFilesystemAttachments() (watcher.MachineStorageIdsWatcher, error) {
	return newStaticWatcher([]params.MachineStorageId(nil)), nil
}
func (i *inventory) Filesystems([]names.FilesystemTag) ([]params.FilesystemResult, error) {
	return nil, nil
}
func (i *inventory) FilesystemAttachments([]params.MachineStorageId) ([]params.FilesystemAttachmentResult, error) {
	return nil, nil
}
func (i *inventory) FilesystemParams([]names.FilesystemTag) ([]params.FilesystemParamsResult, error) {
	return nil, nil
}
func (i *inventory) FilesystemAttachmentParams([]params.MachineStorageId) ([]params.FilesystemAttachmentParamsResult, error) {
	return nil, nil
}
func (i *inventory) SetFilesystemInfo([]params.Filesystem) ([]params.ErrorResult, error) {
	return nil, nil
}
func (i *inventory) SetFilesystemAttachmentInfo([]params.FilesystemAttachment) ([]params.ErrorResult, error) {
	return nil, nil
}

var notProvisioned = &params.Error{Message: "not provisioned yet", Code: params.CodeNotProvisioned}

// each returns a result for each argument, in their order, as bulk calls must.
func each[A, R any](args []A, result func(A) R) []R {
	results := make([]R, len(args))
	for i, arg := range args {
		results[i] = result(arg)
	}
	return results
}

// staticWatcher is a watcher of a set that never changes: it sends the full set once.
type staticWatcher[T any] struct {
	tomb    tomb.Tomb
	changes chan T
}

func newStaticWatcher[T any](full T) *staticWatcher[T] {
	w := &staticWatcher[T]{changes: make(chan T, 1)}
	w.changes <- full
	w.tomb.Go(func() error {
		<-w.tomb.Dying()
		return tomb.ErrDying
	})
	return w
}

func (w *staticWatcher[T]) Changes() <-chan T { return w.changes }
func (w *staticWatcher[T]) Kill()             { w.tomb.Kill(nil) }
func (w *staticWatcher[T]) Wait() error       { return w.tomb.Wait() }

// fakeProvider is a provider, and its own volume source. Each call reports success and
// does nothing.
type fakeProvider struct{}

func (fakeProvider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return fakeProvider{}, nil
}
func (fakeProvider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return nil, storage.Permanent(fmt.Errorf("pretended filesystems"))
}
func (fakeProvider) Supports(kind storage.StorageKind) bool          { return kind == storage.StorageKindBlock }
func (fakeProvider) Scope() storage.Scope                            { return storage.ScopeEnviron }
func (fakeProvider) Dynamic() bool                                   { return true }
func (fakeProvider) Releasable() bool                                { return false }
func (fakeProvider) DefaultPools() []*storage.Config                 { return nil }
func (fakeProvider) ValidateConfig(*storage.Config) error            { return nil }
func (fakeProvider) ValidateForK8s(map[string]any) error             { return nil }
func (fakeProvider) ValidateVolumeParams(storage.VolumeParams) error { return nil }

func (fakeProvider) CreateVolumes(_ envcontext.ProviderCallContext, args []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	return each(args, func(p storage.VolumeParams) storage.CreateVolumesResult {
		return storage.CreateVolumesResult{Volume: &storage.Volume{
			Tag:        p.Tag,
			VolumeInfo: storage.VolumeInfo{VolumeId: "vol-of-" + p.Tag.String(), Size: p.Size},
		}}
	}), nil
}

func (fakeProvider) AttachVolumes(_ envcontext.ProviderCallContext, args []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return each(args, func(p storage.VolumeAttachmentParams) storage.AttachVolumesResult {
		return storage.AttachVolumesResult{VolumeAttachment: &storage.VolumeAttachment{
			Volume: p.Volume, Machine: p.Machine,
			VolumeAttachmentInfo: storage.VolumeAttachmentInfo{DeviceName: "sdx"},
		}}
	}), nil
}

func (fakeProvider) ListVolumes(envcontext.ProviderCallContext) ([]string, error) { return nil, nil }
func (fakeProvider) DescribeVolumes(_ envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	return make([]storage.DescribeVolumesResult, len(ids)), nil
}
func (fakeProvider) DestroyVolumes(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return make([]error, len(ids)), nil
}
func (fakeProvider) ReleaseVolumes(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return make([]error, len(ids)), nil
}
func (fakeProvider) DetachVolumes(_ envcontext.ProviderCallContext, args []storage.VolumeAttachmentParams) ([]error, error) {
	return make([]error, len(args)), nil
}
