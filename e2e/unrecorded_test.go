package e2e

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// An agent is killed after it has made or attached storage, but before it has recorded that.
// If the storage is to be removed or detached, the next agent leaves nothing of it behind.
// Behaviour A2.
// Finding N1.
func TestUnrecordedStorageIsRemovedOrDetached(t *testing.T) {
	all := []string{"raw", "data", "scratch", "logs"}
	for _, test := range []struct {
		name           string
		last           string // the last step, which is not recorded
		removeOrDetach func(*state.State, []string) error
		loops, mounts  int // expected before the next agent starts
	}{
		{"made and removed", made, (*state.State).RemoveStorage, 0, 0},
		{"made and detached", made, (*state.State).DetachStorage, 0, 0},
		{"attached volumes removed", attachedVolumes, (*state.State).RemoveStorage, 2, 0},
		{"attached volumes detached", attachedVolumes, (*state.State).DetachStorage, 2, 0},
		{"formatted and removed", formatted, (*state.State).RemoveStorage, 2, 0},
		{"formatted and detached", formatted, (*state.State).DetachStorage, 2, 0},
		{"attached and removed", attached, (*state.State).RemoveStorage, 2, 3},
		{"attached and detached", attached, (*state.State).DetachStorage, 2, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMachine(t)
			m.start()
			m.stop()
			m.doUnrecorded(test.last, func(st *state.State) error { return test.removeOrDetach(st, all) })
			if loops, mounts := len(loopsBelow(t, m.dir)), len(mountsBelow(t, m.dir)); loops != test.loops || mounts != test.mounts {
				t.Fatalf("%d loop devices and %d mounts before the agent starts, want %d and %d", loops, mounts, test.loops, test.mounts)
			}
			m.start()
			m.poll("storage is still attached", func() bool {
				for _, s := range m.status() {
					if len(s.Attachments) > 0 {
						return false
					}
				}
				return true
			})
			if left := len(loopsBelow(t, m.dir)) + len(mountsBelow(t, m.dir)); left != 0 {
				t.Errorf("%d loop devices and mounts of detached storage", left)
			}
			// Commands on storage that is removed already fail.
			if len(m.status()) > 0 {
				m.run("remove", all[0], all[1], all[2], all[3])
			}
			m.poll("storage is still there", func() bool { return len(m.status()) == 0 })
			m.wantNoStorage()
			m.stop()
		})
	}
}

// The last step of an agent before it is killed, which it does not record.
const (
	made            = "made"
	attachedVolumes = "attached volumes"
	formatted       = "made the filesystem on a volume"
	attached        = "attached"
)

// doUnrecorded adds storage of four kinds to the state, and calls the providers as an agent
// does: it notes each attempt before, and records each result except those of the last step.
// Then it calls then.
func (m *machine) doUnrecorded(last string, then func(*state.State) error) {
	m.Helper()
	m.changeState(func(st *state.State) error {
		m.makeUnrecorded(st, last)
		return then(st)
	})
}

func (m *machine) makeUnrecorded(st *state.State, last string) {
	m.Helper()
	must := func(err error) {
		m.Helper()
		if err != nil {
			m.Fatal(err)
		}
	}
	registry := provider.CommonStorageProviders()
	host := names.NewMachineTag("0")
	add := func(name, pool string, kind storage.StorageKind) state.StorageParams {
		p := state.StorageParams{Name: name, Kind: kind, Pool: pool, Size: 16, Machine: host}
		if kind == storage.StorageKindFilesystem {
			p.MountPoint = m.mount(name)
		}
		return p
	}
	must(st.AddStorage(
		add("raw", "loop", storage.StorageKindBlock),
		add("data", "loop", storage.StorageKindFilesystem),
		add("scratch", "tmpfs", storage.StorageKindFilesystem),
		add("logs", "rootfs", storage.StorageKindFilesystem),
	))
	accessor := st.ForMachine(host)
	recorded := func(results []params.ErrorResult, err error) {
		m.Helper()
		must(err)
		if results[0].Error != nil {
			m.Fatal(results[0].Error)
		}
	}
	attempt := func(machine, tag string) {
		m.Helper()
		id := params.MachineStorageId{MachineTag: machine, AttachmentTag: tag}
		recorded(accessor.SetAttempts([]params.Attempt{{Id: id, Attempted: true}}))
	}
	tags := func(tag names.Tag) map[string]string {
		m.Helper()
		all, err := st.ResourceTags(tag)
		must(err)
		return all[0]
	}
	ctx := envcontext.New(context.Background())
	at := storage.AttachmentParams{Machine: host, InstanceId: "here"}
	config := func(kind storage.ProviderType) (storage.Provider, *storage.Config) {
		p, err := registry.StorageProvider(kind)
		must(err)
		dir := filepath.Join(m.data, "storage", string(kind))
		config, err := storage.NewConfig(string(kind), kind, storage.Attrs{storage.ConfigStorageDir: dir})
		must(err)
		return p, config
	}

	p, c := config(provider.LoopProviderType)
	volumes, err := p.VolumeSource(c)
	must(err)
	devices := backing{}
	for _, id := range []string{"0/0", "0/1"} {
		tag := names.NewVolumeTag(id)
		attempt("", tag.String())
		fresh, err := volumes.CreateVolumes(ctx, []storage.VolumeParams{{Tag: tag, Size: 16, Provider: "loop", ResourceTags: tags(tag)}})
		must(err)
		must(fresh[0].Error)
		if last == made {
			continue
		}
		info := fresh[0].Volume.VolumeInfo
		recorded(accessor.SetVolumeInfo([]params.Volume{{
			VolumeTag: tag.String(), Info: params.VolumeInfo{VolumeId: info.VolumeId, HardwareId: info.HardwareId, Size: info.Size},
		}}))
		attempt(host.String(), tag.String())
		there, err := volumes.AttachVolumes(ctx, []storage.VolumeAttachmentParams{
			{AttachmentParams: at, Volume: tag, VolumeId: info.VolumeId},
		})
		must(err)
		must(there[0].Error)
		device := there[0].VolumeAttachment
		devices[tag] = storage.BlockDevice{DeviceName: device.DeviceName, BusAddress: device.BusAddress}
		if id == "0/1" && last != attachedVolumes {
			recorded(accessor.SetVolumeAttachmentInfo([]params.VolumeAttachment{{
				VolumeTag: tag.String(), MachineTag: host.String(),
				Info: params.VolumeAttachmentInfo{DeviceName: device.DeviceName, BusAddress: device.BusAddress},
			}}))
		}
	}

	mount := func(source storage.FilesystemSource, p storage.FilesystemParams, name string) {
		m.Helper()
		attempt("", p.Tag.String())
		p.ResourceTags = tags(p.Tag)
		fresh, err := source.CreateFilesystems(ctx, []storage.FilesystemParams{p})
		must(err)
		must(fresh[0].Error)
		if last != attached {
			return
		}
		info := fresh[0].Filesystem.FilesystemInfo
		recorded(accessor.SetFilesystemInfo([]params.Filesystem{{
			FilesystemTag: p.Tag.String(), Info: params.FilesystemInfo{FilesystemId: info.FilesystemId, Size: info.Size},
		}}))
		attempt(host.String(), p.Tag.String())
		there, err := source.AttachFilesystems(ctx, []storage.FilesystemAttachmentParams{
			{AttachmentParams: at, Filesystem: p.Tag, FilesystemId: info.FilesystemId, Path: m.mount(name)},
		})
		must(err)
		must(there[0].Error)
	}
	if last == formatted || last == attached {
		mount(provider.NewManagedFilesystemSource(filepath.Join(m.data, "storage", "managed"), devices),
			storage.FilesystemParams{Tag: names.NewFilesystemTag("0/0"), Volume: names.NewVolumeTag("0/1"), Size: 16}, "data")
	}
	for _, fs := range []struct {
		kind     storage.ProviderType
		id, name string
	}{{provider.TmpfsProviderType, "0/1", "scratch"}, {provider.RootfsProviderType, "0/2", "logs"}} {
		p, c := config(fs.kind)
		source, err := p.FilesystemSource(c)
		must(err)
		mount(source, storage.FilesystemParams{Tag: names.NewFilesystemTag(fs.id), Size: 16, Provider: fs.kind}, fs.name)
	}
}

// backing has the block devices of volumes.
type backing map[names.VolumeTag]storage.BlockDevice

func (b backing) BlockDevice(tag names.VolumeTag) (storage.BlockDevice, bool) {
	device, ok := b[tag]
	return device, ok
}

func (b backing) Filesystem(names.FilesystemTag) (storage.Filesystem, bool) {
	return storage.Filesystem{}, false
}
