//go:build linux

package provider

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// bulk has the arguments of bulk calls for a number of filesystems.
type bulk struct {
	*testing.T
	ctx         envcontext.ProviderCallContext
	source      storage.FilesystemSource
	filesystems []storage.FilesystemParams
	attachments []storage.FilesystemAttachmentParams
	ids         []string
}

func newBulk(t *testing.T, source storage.FilesystemSource, n int, size uint64, mounts string) *bulk {
	b := &bulk{T: t, ctx: envcontext.New(context.Background()), source: source}
	for i := range n {
		tag := names.NewFilesystemTag(fmt.Sprintf("0/%d", i))
		b.filesystems = append(b.filesystems, storage.FilesystemParams{Tag: tag, Size: size})
		b.attachments = append(b.attachments, storage.FilesystemAttachmentParams{
			AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
			Filesystem:       tag,
			FilesystemId:     tag.String(),
			Path:             filepath.Join(mounts, fmt.Sprint(i)),
		})
		b.ids = append(b.ids, tag.String())
	}
	return b
}

func (b *bulk) create() {
	b.Helper()
	results, err := b.source.CreateFilesystems(b.ctx, b.filesystems)
	if err != nil {
		b.Fatal(err)
	}
	for _, r := range results {
		if r.Error != nil {
			b.Fatal(r.Error)
		}
	}
}

func (b *bulk) tryAttach() []error {
	b.Helper()
	results, err := b.source.AttachFilesystems(b.ctx, b.attachments)
	if err != nil {
		b.Fatal(err)
	}
	failures := make([]error, len(results))
	for i, r := range results {
		failures[i] = r.Error
	}
	return failures
}

func (b *bulk) attach() {
	b.Helper()
	b.allDone(b.tryAttach(), nil)
}

func (b *bulk) detach() {
	b.Helper()
	b.allDone(b.source.DetachFilesystems(b.ctx, b.attachments))
}

func (b *bulk) destroy() {
	b.Helper()
	b.allDone(b.source.DestroyFilesystems(b.ctx, b.ids))
}

func (b *bulk) allDone(failures []error, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
	for _, err := range failures {
		if err != nil {
			b.Fatal(err)
		}
	}
}

// TestBulkCallReadsTheMountsOnce checks that a call reads the mounts of the machine once if it
// needs them, for many filesystems as for one. A call that unmounts also reads the mounts of each mount
// namespace twice; a machine has few namespaces.
func TestBulkCallReadsTheMountsOnce(t *testing.T) {
	const size = 1 // MiB
	// An older agent may have mounted a tmpfs under a name of this one.
	for p, attach := range map[storage.ProviderType]int{TmpfsProviderType: 1, RootfsProviderType: 0} {
		for _, n := range []int{1, 40} {
			t.Run(fmt.Sprintf("%s, %d", p, n), func(t *testing.T) {
				top := devicetest.Dir(t)
				source, err := commonProvider(t, p).FilesystemSource(sourcetest.PoolOf(t, p, storage.Attrs{
					storage.ConfigStorageDir: filepath.Join(top, "storage"),
				}))
				if err != nil {
					t.Fatal(err)
				}
				b := newBulk(t, source, n, size, filepath.Join(top, "mnt"))
				b.create()
				for _, call := range []struct {
					name string
					do   func()
					most int
				}{{"attach", b.attach, attach}, {"attach again", b.attach, 1}, {"detach", b.detach, 30}, {"detach again", b.detach, 0}} {
					if got := devicetest.Opens(t, call.do)["mountinfo"]; got == 0 && call.most > 0 || got > call.most {
						t.Errorf("%s: mounts are read %d times", call.name, got)
					}
				}
				b.destroy()
			})
		}
	}
}

// TestBulkCallListsDevicesOnce checks that a call lists the machine's devices and mounts
// as often for many volumes as for one.
func TestBulkCallListsDevicesOnce(t *testing.T) {
	for _, n := range []int{1, 20} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			lt := newLoopTest(t)
			var params []storage.VolumeParams
			var attachments []storage.VolumeAttachmentParams
			var ids []string
			for i := range n {
				tag := names.NewVolumeTag(fmt.Sprintf("0/%d", i))
				params = append(params, storage.VolumeParams{Tag: tag, Size: sourcetest.ManagedExt4Size >> 20})
				attachments = append(attachments, lt.Attachment(tag, false)...)
				ids = append(ids, tag.String())
			}
			known := newKnownDevices()
			b := newBulk(t, NewManagedFilesystemSource(filepath.Join(lt.Dir, "managed"), known), n, sourcetest.ManagedExt4Size>>20, filepath.Join(lt.Dir, "mnt"))
			for i := range b.filesystems {
				b.filesystems[i].Volume = params[i].Tag
			}
			volumes := func(failures []error, err error) { b.allDone(failures, err) }

			for _, call := range []struct {
				name          string
				do            func()
				block, mounts int
			}{
				{"create volumes", func() {
					results, err := lt.Source.CreateVolumes(lt.Ctx, params)
					volumes(errorsOf(results, func(r storage.CreateVolumesResult) error { return r.Error }), err)
				}, 0, 0},
				{"attach volumes", func() {
					results, err := lt.Source.AttachVolumes(lt.Ctx, attachments)
					volumes(errorsOf(results, func(r storage.AttachVolumesResult) error { return r.Error }), err)
					for _, r := range results {
						a := r.VolumeAttachment
						known.add(a.Volume, storage.BlockDevice{DeviceName: a.DeviceName, BusAddress: a.BusAddress}, lt.File(a.Volume))
					}
				}, 1, 0},
				{"make filesystems", b.create, 0, 0},
				{"attach filesystems", b.attach, 1, 0},
				{"detach filesystems", b.detach, 0, 1},
				{"destroy filesystems", b.destroy, 0, 0},
				{"detach volumes", func() { volumes(lt.Source.DetachVolumes(lt.Ctx, attachments)) }, 1, 0},
				{"destroy volumes", func() { volumes(lt.Source.DestroyVolumes(lt.Ctx, ids)) }, 1, 0},
			} {
				opens := devicetest.Opens(t, call.do)
				if got := opens["block"]; got > call.block {
					t.Errorf("%s: devices are listed %d times, want %d at most", call.name, got, call.block)
				}
				// The thread that read the mounts may be gone, and its reads are not counted by name.
				if got := opens["mountinfo"]; got > call.mounts || got+opens[""] < call.mounts {
					t.Errorf("%s: mounts are read %d times, want %d", call.name, got, call.mounts)
				}
			}
		})
	}
}

func errorsOf[T any](results []T, errorOf func(T) error) []error {
	failures := make([]error, len(results))
	for i, r := range results {
		failures[i] = errorOf(r)
	}
	return failures
}

// Of two filesystems with one mount point in one call, the first gets it. A filesystem
// can be mounted within another.
func TestConflictingMountPointsInOneCall(t *testing.T) {
	forBoth(t, func(ft *filesystemTest) {
		b := newBulk(ft.T, ft.Source, 3, sourcetest.FilesystemSize, filepath.Join(ft.Top, "mnt"))
		b.create()
		for i, path := range []string{"a", "a/b", "a"} {
			b.attachments[i].Path = filepath.Join(ft.Top, "mnt", path)
		}
		failures := b.tryAttach()
		if failures[0] != nil || failures[1] != nil {
			t.Errorf("attaching: %v", failures)
		}
		sourcetest.CheckError(ft.T, failures[2], true, "mounted at")
		b.attachments[0], b.attachments[1] = b.attachments[1], b.attachments[0]
		for _, a := range b.attachments {
			failures, err := b.source.DetachFilesystems(b.ctx, []storage.FilesystemAttachmentParams{a})
			b.allDone(failures, err)
		}
		b.destroy()
	})
}
