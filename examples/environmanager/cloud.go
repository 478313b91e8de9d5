package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// cloud holds the disks. It stands for a network service; a real provider would have a client
// for that service.
type cloud struct {
	out io.Writer // receives a log of the requests

	mu    sync.Mutex
	disks map[string]*disk // by ID
}

type disk struct {
	size     uint64
	instance instance.Id // empty while it is not attached
	readOnly bool
}

// maxSize is the size of the largest disk, in MiB.
const maxSize = 16 << 20

func newCloud(out io.Writer) *cloud { return &cloud{out: out, disks: make(map[string]*disk)} }

// open makes the provider: it is a storage.ProviderFactory. The provider defines which
// settings its operator can give.
func (c *cloud) open(settings io.Reader, environ storage.ProviderEnviron) (storage.Provider, error) {
	if environ.Scope != storage.ScopeEnviron {
		return nil, errors.NotSupportedf("making the cloud's disks from a machine")
	}
	var parsed struct {
		DisksPerCall int `json:"disks-per-call"`
	}
	decoder := json.NewDecoder(settings)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&parsed); err != nil {
		return nil, errors.NewNotValid(err, "settings")
	}
	if parsed.DisksPerCall < 0 {
		return nil, errors.NotValidf("negative disks-per-call %d", parsed.DisksPerCall)
	}
	return &provider{cloud: c, disksPerCall: parsed.DisksPerCall}, nil
}

// provider makes volumes that are disks of a cloud. It is its own source: its pools have no
// settings, so all sources would be the same.
type provider struct {
	cloud *cloud
	// disksPerCall is the most disks that the cloud makes in one call; 0: no limit.
	disksPerCall int
}

var (
	_ storage.Provider     = (*provider)(nil)
	_ storage.VolumeSource = (*provider)(nil)
)

func (p *provider) VolumeSource(pool *storage.Config) (storage.VolumeSource, error) {
	return p, p.ValidateConfig(pool)
}

// FilesystemSource returns an error: the machines' workers make filesystems on these volumes.
func (p *provider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("filesystems from the cloud")
}

func (p *provider) Supports(kind storage.StorageKind) bool { return kind == storage.StorageKindBlock }
func (p *provider) Scope() storage.Scope                   { return storage.ScopeEnviron }
func (p *provider) Dynamic() bool                          { return true }
func (p *provider) Releasable() bool                       { return false }
func (p *provider) DefaultPools() []*storage.Config        { return nil }

func (p *provider) ValidateConfig(pool *storage.Config) error {
	for name := range pool.Attrs() {
		return errors.NotValidf("attribute %q of storage pool %q", name, pool.Name())
	}
	return nil
}

func (p *provider) ValidateForK8s(attributes map[string]any) error {
	return errors.NotValidf("the cloud's disks in Kubernetes")
}

// ValidateVolumeParams returns an error for a volume that the cloud can never make, so that it
// is not retried.
func (p *provider) ValidateVolumeParams(v storage.VolumeParams) error {
	if v.Size == 0 || v.Size > maxSize {
		return errors.NotValidf("size %d MiB of volume %s (at most %d)", v.Size, v.Tag.Id(), maxSize)
	}
	return nil
}

// CreateVolumes uses a volume's tag as its ID. So a volume that an interrupted call has made
// is found, rather than made twice.
func (p *provider) CreateVolumes(_ envcontext.ProviderCallContext, volumes []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	fmt.Fprintf(p.cloud.out, "cloud:     asked for %d disks in one call\n", len(volumes))
	created := 0
	return ask(p, volumes, func(v storage.VolumeParams) (r storage.CreateVolumesResult) {
		if r.Error = p.ValidateVolumeParams(v); r.Error != nil {
			return r
		}
		id := v.Tag.String()
		d, ok := p.cloud.disks[id]
		if !ok {
			if p.disksPerCall > 0 && created == p.disksPerCall {
				// The limit is temporary, so this is an ordinary error, which is retried.
				// storage.Permanent would say that it is not temporary, and storage.InProgress
				// that the cloud is working on it.
				r.Error = errors.Errorf("the cloud makes %d disks at a time", p.disksPerCall)
				return r
			}
			created++
			d = &disk{size: v.Size}
			p.cloud.disks[id] = d
		}
		r.Volume = &storage.Volume{Tag: v.Tag, VolumeInfo: info(id, d)}
		return r
	})
}

// info also tells the machine's worker how to recognize the device.
func info(id string, d *disk) storage.VolumeInfo {
	return storage.VolumeInfo{VolumeId: id, HardwareId: "cloud-" + id, Size: d.size, Persistent: true}
}

func (p *provider) ListVolumes(envcontext.ProviderCallContext) ([]string, error) {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	return slices.Sorted(maps.Keys(p.cloud.disks)), nil
}

func (p *provider) DescribeVolumes(_ envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	return ask(p, ids, func(id string) storage.DescribeVolumesResult {
		d, ok := p.cloud.disks[id]
		if !ok {
			return storage.DescribeVolumesResult{Error: errors.NotFoundf("disk %q", id)}
		}
		info := info(id, d)
		return storage.DescribeVolumesResult{VolumeInfo: &info}
	})
}

// DestroyVolumes is idempotent, as every operation must be: destroying a disk that no longer
// exists succeeds.
func (p *provider) DestroyVolumes(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return ask(p, ids, func(id string) error {
		if d, ok := p.cloud.disks[id]; ok && d.instance != "" {
			return errors.Errorf("disk %q is attached to instance %q", id, d.instance)
		}
		delete(p.cloud.disks, id)
		return nil
	})
}

func (p *provider) ReleaseVolumes(_ envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return ask(p, ids, func(id string) error { return errors.NotSupportedf("releasing disk %q", id) })
}

func (p *provider) AttachVolumes(_ envcontext.ProviderCallContext, attachments []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return ask(p, attachments, func(a storage.VolumeAttachmentParams) (r storage.AttachVolumesResult) {
		d, ok := p.cloud.disks[a.VolumeId]
		switch {
		case !ok:
			r.Error = errors.NotFoundf("disk %q", a.VolumeId)
			return r
		case a.InstanceId == "":
			r.Error = errors.NotProvisionedf("%s", a.Machine)
			return r
		case d.instance == "":
			d.instance, d.readOnly = a.InstanceId, a.ReadOnly
		case d.instance != a.InstanceId || d.readOnly != a.ReadOnly:
			r.Error = errors.Errorf("disk %q is attached to instance %q (read-only: %t)", a.VolumeId, d.instance, d.readOnly)
			return r
		}
		r.VolumeAttachment = &storage.VolumeAttachment{
			Volume: a.Volume, Machine: a.Machine,
			VolumeAttachmentInfo: storage.VolumeAttachmentInfo{
				DeviceLink: "/dev/disk/by-id/cloud-" + a.VolumeId,
				ReadOnly:   d.readOnly,
			},
		}
		return r
	})
}

func (p *provider) DetachVolumes(_ envcontext.ProviderCallContext, attachments []storage.VolumeAttachmentParams) ([]error, error) {
	return ask(p, attachments, func(a storage.VolumeAttachmentParams) error {
		if d, ok := p.cloud.disks[a.VolumeId]; ok && d.instance == a.InstanceId {
			d.instance, d.readOnly = "", false
		}
		return nil
	})
}

// ask makes a bulk call: one result for each argument, in order. An error of the call as a
// whole would mean that nothing is known about any of them. A call over a network should also
// use the context, which ends when the worker is killed.
func ask[A, R any](p *provider, args []A, result func(A) R) ([]R, error) {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	results := make([]R, len(args))
	for n, arg := range args {
		results[n] = result(arg)
	}
	return results, nil
}
