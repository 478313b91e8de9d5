package basic_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/basic"
	"github.com/stowage-io/stowage/storage/provider/providertest"
)

// disks makes disks in memory. Its volumes have their tags as IDs.
type disks struct {
	all     map[string]*disk
	created int
}

type disk struct {
	info storage.VolumeInfo
	on   instance.Id
}

func (d *disks) Create(_ envcontext.ProviderCallContext, p storage.VolumeParams) (storage.VolumeInfo, error) {
	id := p.Tag.String()
	if d.all[id] == nil {
		d.created++
		d.all[id] = &disk{info: storage.VolumeInfo{VolumeId: id, Size: p.Size, Persistent: true}}
	}
	return d.all[id].info, nil
}

func (d *disks) List(envcontext.ProviderCallContext) ([]string, error) {
	return slices.Collect(maps.Keys(d.all)), nil
}

func (d *disks) Describe(_ envcontext.ProviderCallContext, id string) (storage.VolumeInfo, error) {
	if d.all[id] == nil {
		return storage.VolumeInfo{}, errors.NotFoundf("disk %q", id)
	}
	return d.all[id].info, nil
}

func (d *disks) Attach(_ envcontext.ProviderCallContext, p storage.VolumeAttachmentParams) (storage.VolumeAttachmentInfo, error) {
	disk := d.all[p.VolumeId]
	switch {
	case disk == nil:
		return storage.VolumeAttachmentInfo{}, errors.NotFoundf("disk %q", p.VolumeId)
	case p.ReadOnly:
		return storage.VolumeAttachmentInfo{}, errors.NotSupportedf("read-only disks")
	}
	disk.on = p.InstanceId
	return storage.VolumeAttachmentInfo{DeviceName: "vdb"}, nil
}

func (d *disks) Detach(_ envcontext.ProviderCallContext, p storage.VolumeAttachmentParams) error {
	if disk := d.all[p.VolumeId]; disk != nil && disk.on == p.InstanceId {
		disk.on = ""
	}
	return nil
}

func (d *disks) Destroy(_ envcontext.ProviderCallContext, id string) error {
	if disk := d.all[id]; disk != nil && disk.on != "" {
		return errors.Errorf("disk %q is attached", id)
	}
	delete(d.all, id)
	return nil
}

func (d *disks) Validate(p storage.VolumeParams) error {
	if p.Size > 1<<20 {
		return errors.NotValidf("size %d MiB", p.Size)
	}
	return nil
}

// released also releases disks.
type released struct{ *disks }

func (d released) Release(_ envcontext.ProviderCallContext, id string) error {
	if disk := d.all[id]; disk != nil && disk.on != "" {
		return errors.Errorf("disk %q is attached", id)
	}
	delete(d.all, id)
	return nil
}

func TestConformance(t *testing.T) {
	pool, err := storage.NewConfig("disks", "disks", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, volumes := range map[string]basic.Volumes{
		"plain":    &disks{all: make(map[string]*disk)},
		"released": released{&disks{all: make(map[string]*disk)}},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, providertest.Config{
				Provider:     &basic.Provider{Volumes: volumes, Attributes: []string{"kind"}},
				SourceConfig: pool,
				InvalidAttrs: storage.Attrs{"colour": "blue"},
			})
		})
	}
}

func TestOnlyReleasersAreReleasable(t *testing.T) {
	if (&basic.Provider{Volumes: &disks{}}).Releasable() || !(&basic.Provider{Volumes: released{}}).Releasable() {
		t.Error("Releasable does not follow the capability")
	}
}

func TestInvalidVolumesAreNotCreated(t *testing.T) {
	d := &disks{all: make(map[string]*disk)}
	p := &basic.Provider{Volumes: d, Attributes: []string{"kind"}}
	results, err := p.CreateVolumes(envcontext.New(t.Context()), []storage.VolumeParams{
		{Tag: names.NewVolumeTag("0"), Size: 1 << 30},
		{Tag: names.NewVolumeTag("1"), Size: 1, Attributes: map[string]any{"colour": "blue"}},
		{Tag: names.NewVolumeTag("2"), Size: 1, Attributes: map[string]any{"kind": "ssd"}},
	})
	if err != nil || len(results) != 3 || d.created != 1 {
		t.Fatalf("created %d: %v, %v", d.created, results, err)
	}
	if !errors.Is(results[0].Error, errors.NotValid) || !errors.Is(results[1].Error, errors.NotValid) || results[2].Error != nil {
		t.Errorf("the results are %v", results)
	}
	if results[0].Volume != nil {
		t.Error("a failed result has a volume")
	}
}

// When the context ends, the rest of a call is not begun.
func TestCancelledCallStops(t *testing.T) {
	d := &disks{all: make(map[string]*disk)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results, err := (&basic.Provider{Volumes: d}).CreateVolumes(envcontext.New(ctx), []storage.VolumeParams{{Tag: names.NewVolumeTag("0"), Size: 1}})
	if err != nil || len(results) != 1 || !errors.Is(results[0].Error, context.Canceled) || d.created != 0 {
		t.Errorf("created %d: %v, %v", d.created, results, err)
	}
}
