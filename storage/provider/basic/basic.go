// Package basic makes a [storage.Provider] of the few functions that differ between providers of
// volumes. Each handles one volume; the package makes the bulk calls of them, and answers
// everything else:
//
//	provider := &basic.Provider{Volumes: &disks{client}}
//
// The documentation of [storage.VolumeSource] says what the functions must do: above all,
// Create, Attach, Detach and Destroy are called again after an interruption, and then complete
// the work or find that it is done. Package providertest checks that.
//
// A provider whose backend has bulk calls, that makes filesystems, or that has optional
// capabilities other than those here, implements storage.Provider itself.
package basic

import (
	"slices"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// Volumes makes, attaches and removes volumes, one a call. The calls come one at a time.
type Volumes interface {
	// Create makes a volume, or returns the one that it has made for the tag before.
	Create(envcontext.ProviderCallContext, storage.VolumeParams) (storage.VolumeInfo, error)
	// List returns the IDs of all volumes.
	List(envcontext.ProviderCallContext) ([]string, error)
	// Describe returns what is known of a volume. The error for one that does not exist
	// satisfies errors.IsNotFound.
	Describe(_ envcontext.ProviderCallContext, volumeId string) (storage.VolumeInfo, error)
	// Attach attaches a volume, or describes the attachment that there is.
	Attach(envcontext.ProviderCallContext, storage.VolumeAttachmentParams) (storage.VolumeAttachmentInfo, error)
	// Detach detaches a volume, if it is attached there.
	Detach(envcontext.ProviderCallContext, storage.VolumeAttachmentParams) error
	// Destroy removes a volume, if it exists. It refuses to remove one that is attached.
	Destroy(_ envcontext.ProviderCallContext, volumeId string) error
}

// Validator is an optional capability of [Volumes]. Without it all parameters are valid.
type Validator interface {
	// Validate checks the parameters of a creation, without I/O. Create need not check them
	// again.
	Validate(storage.VolumeParams) error
}

// Releaser is an optional capability of [Volumes], which can release a volume: give it up without
// removing its data. Without it the provider is not releasable.
type Releaser interface {
	Release(_ envcontext.ProviderCallContext, volumeId string) error
}

// Provider is a dynamic provider of volumes. It is its own source for every pool.
type Provider struct {
	Volumes
	// On is the scope: whether machines or the environment make the volumes. Zero: the
	// environment.
	On storage.Scope
	// Attributes are the names of the attributes that pools and volumes may have; nil: none.
	// Validate checks their values.
	Attributes []string

	once sync.Once
	turn chan struct{} // has one element unless there is a call
}

var (
	_ storage.Provider     = (*Provider)(nil)
	_ storage.VolumeSource = (*Provider)(nil)
)

// VolumeSource implements storage.Provider.
func (p *Provider) VolumeSource(pool *storage.Config) (storage.VolumeSource, error) {
	if err := p.ValidateConfig(pool); err != nil {
		return nil, err
	}
	return p, nil
}

// FilesystemSource implements storage.Provider. Machines make filesystems on the volumes.
func (p *Provider) FilesystemSource(*storage.Config) (storage.FilesystemSource, error) {
	return nil, errors.NotSupportedf("filesystems of a provider of volumes")
}

// Supports implements storage.Provider.
func (p *Provider) Supports(kind storage.StorageKind) bool { return kind == storage.StorageKindBlock }

// Scope implements storage.Provider.
func (p *Provider) Scope() storage.Scope { return p.On }

// Dynamic implements storage.Provider.
func (p *Provider) Dynamic() bool { return true }

// Releasable implements storage.Provider.
func (p *Provider) Releasable() bool {
	_, ok := p.Volumes.(Releaser)
	return ok
}

// DefaultPools implements storage.Provider. There are none.
func (p *Provider) DefaultPools() []*storage.Config { return nil }

// ValidateConfig implements storage.Provider.
func (p *Provider) ValidateConfig(pool *storage.Config) error {
	for name := range pool.Attrs() {
		if name != storage.ConfigStorageDir && !slices.Contains(p.Attributes, name) {
			return errors.NotValidf("attribute %q of storage pool %q", name, pool.Name())
		}
	}
	return nil
}

// ValidateForK8s implements storage.Provider.
func (p *Provider) ValidateForK8s(attributes map[string]any) error {
	for name := range attributes {
		return errors.NotValidf("attribute %q in Kubernetes", name)
	}
	return nil
}

// ValidateVolumeParams implements storage.VolumeSource.
func (p *Provider) ValidateVolumeParams(params storage.VolumeParams) error {
	for name := range params.Attributes {
		if !slices.Contains(p.Attributes, name) {
			return errors.NotValidf("attribute %q of volume %s", name, params.Tag.Id())
		}
	}
	if v, ok := p.Volumes.(Validator); ok {
		return v.Validate(params)
	}
	return nil
}

// CreateVolumes implements storage.VolumeSource.
func (p *Provider) CreateVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	return each(p, ctx, params, func(params storage.VolumeParams) (r storage.CreateVolumesResult, _ error) {
		if err := p.ValidateVolumeParams(params); err != nil {
			return r, err
		}
		info, err := p.Create(ctx, params)
		r.Volume = &storage.Volume{Tag: params.Tag, VolumeInfo: info}
		return r, err
	}, func(err error) storage.CreateVolumesResult { return storage.CreateVolumesResult{Error: err} })
}

// ListVolumes implements storage.VolumeSource.
func (p *Provider) ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error) {
	return call(p, ctx, func() ([]string, error) { return p.List(ctx) })
}

// DescribeVolumes implements storage.VolumeSource.
func (p *Provider) DescribeVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	return each(p, ctx, ids, func(id string) (storage.DescribeVolumesResult, error) {
		info, err := p.Describe(ctx, id)
		return storage.DescribeVolumesResult{VolumeInfo: &info}, err
	}, func(err error) storage.DescribeVolumesResult { return storage.DescribeVolumesResult{Error: err} })
}

// AttachVolumes implements storage.VolumeSource.
func (p *Provider) AttachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return each(p, ctx, params, func(params storage.VolumeAttachmentParams) (storage.AttachVolumesResult, error) {
		info, err := p.Attach(ctx, params)
		return storage.AttachVolumesResult{VolumeAttachment: &storage.VolumeAttachment{
			Volume: params.Volume, Machine: params.Machine, VolumeAttachmentInfo: info,
		}}, err
	}, func(err error) storage.AttachVolumesResult { return storage.AttachVolumesResult{Error: err} })
}

// DetachVolumes implements storage.VolumeSource.
func (p *Provider) DetachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]error, error) {
	return errorOfEach(p, ctx, params, p.Detach)
}

// DestroyVolumes implements storage.VolumeSource.
func (p *Provider) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return errorOfEach(p, ctx, ids, p.Destroy)
}

// ReleaseVolumes implements storage.VolumeSource.
func (p *Provider) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return errorOfEach(p, ctx, ids, func(ctx envcontext.ProviderCallContext, id string) error {
		if r, ok := p.Volumes.(Releaser); ok {
			return r.Release(ctx, id)
		}
		return errors.NotSupportedf("releasing volume %q", id)
	})
}

// call makes one call of the volumes, when there is no other.
func call[R any](p *Provider, ctx envcontext.ProviderCallContext, one func() (R, error)) (R, error) {
	p.once.Do(func() {
		p.turn = make(chan struct{}, 1)
		p.turn <- struct{}{}
	})
	var none R
	if err := ctx.Err(); err != nil {
		return none, err
	}
	select {
	case <-p.turn:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	defer func() { p.turn <- struct{}{} }()
	return one()
}

// each makes a bulk call. When the context ends, the rest of the arguments get its error.
func each[A, R any](p *Provider, ctx envcontext.ProviderCallContext, args []A, one func(A) (R, error), failed func(error) R) ([]R, error) {
	results := make([]R, len(args))
	for i, arg := range args {
		result, err := call(p, ctx, func() (R, error) { return one(arg) })
		if err != nil {
			result = failed(err)
		}
		results[i] = result
	}
	return results, nil
}

func errorOfEach[A any](
	p *Provider, ctx envcontext.ProviderCallContext, args []A, one func(envcontext.ProviderCallContext, A) error,
) ([]error, error) {
	return each(p, ctx, args, func(arg A) (error, error) { return nil, one(ctx, arg) }, func(err error) error { return err })
}
