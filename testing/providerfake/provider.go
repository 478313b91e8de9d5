// Package providerfake has a storage provider that does in memory what is right,
// and everything else as a test tells it to.
//
// A [Provider] is a storage.Provider and its own source of volumes and filesystems.
// Volume "volume-0" gets the id "vol-0", filesystem "filesystem-0" the id "fs-0",
// and both stay what they are however often they are created for the same owner
// ([storage.OwnerOf]); for another they are refused. An id that it has not given is
// taken to have been made long ago. Unscripted, it passes the conformance
// suite storage/provider/providertest.
//
// The provider is a [calls.Journal] of the calls that it gets, and a [calls.Script]
// that has them fail, take long or give too few results: an operation that takes
// its time is
//
//	provider.FailItem("CreateVolumes", "volume-0", storage.InProgress(err), storage.InProgress(err))
//
// and one that panics
//
//	provider.OnCall("CreateVolumes", func(context.Context) error { panic("out of order") })
//
// So can the questions that have no error be made to panic, by their names: Scope,
// Dynamic, MaxConcurrentCalls, FilesystemRemark, VolumeRemark, ShouldCreateVolume and its like.
//
// Subjects are tags, and for an attachment two tags: "volume-0 machine-0".
package providerfake

import (
	"context"
	"slices"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
)

// Options says what a provider is like. The zero value is a dynamic provider of the
// environment's scope that supports and takes everything.
type Options struct {
	// Journal takes the calls; nil: one of the provider's own.
	Journal *calls.Journal
	// Prefix goes before the names of calls in the journal, but not in the script.
	Prefix string
	// Rules check the operations; nil: Rules of the provider's own. Providers that
	// work on the same entities share one.
	Rules *Rules

	// Scope is where the provider's storage is made; zero: in the environment.
	Scope storage.Scope
	// Static providers make nothing while a model runs; false: a dynamic one.
	Static bool
	// Unreleasable providers cannot release what they made.
	Unreleasable bool
	// Unsupported are the kinds of storage that it does not make.
	Unsupported []storage.StorageKind

	// SourcesByPool is the answer of storage.PoolSources.
	SourcesByPool bool
	// FixedSize has sources whose volumes and filesystems cannot grow: they have
	// neither storage.VolumeResizer nor storage.FilesystemResizer, nor any other
	// capability that the provider itself does not have, such as keeping resource tags.
	FixedSize bool
	// Remark is the answer of storage.FilesystemRemarker and storage.VolumeRemarker;
	// nil: nothing.
	Remark func(id string) string
	// CheckVolume and CheckFilesystem are the answers of storage.VolumeChecker and
	// storage.FilesystemChecker for one volume or filesystem; nil: all are as they were
	// attached, and calls are not in the journal.
	CheckVolume     func(volumeId string) error
	CheckFilesystem func(filesystemId string) error
	// IsNewVolume is the answer of storage.NewVolumes; nil: no.
	IsNewVolume func(volumeId string) bool
	// VolumeFile is the answer of storage.FileVolumes; nil: nothing.
	VolumeFile func(volumeId string) string

	// MaxConcurrentCalls is that of storage.ConcurrentSource; 0: one at a time.
	MaxConcurrentCalls int
	// The answers of storage.VolumeQualifier, FilesystemQualifier,
	// VolumeDeletionGuard and FilesystemDeletionGuard; nil: yes.
	ShouldCreateVolume      func(storage.VolumeParams) bool
	ShouldCreateFilesystem  func(storage.FilesystemParams) bool
	ShouldDestroyVolume     func(volumeId string) bool
	ShouldDestroyFilesystem func(filesystemId string) bool

	// AttachOnCreate has CreateVolumes attach volumes, too.
	AttachOnCreate bool
	// EditCreated and EditAttached have the last word on what is returned for a
	// volume that has been created or attached, EditCreatedFilesystem and
	// EditMounted for a filesystem; nil: it stays as it is. They do not call the
	// provider.
	EditCreated           func(*storage.CreateVolumesResult)
	EditAttached          func(*storage.VolumeAttachment)
	EditCreatedFilesystem func(*storage.CreateFilesystemsResult)
	EditMounted           func(*storage.FilesystemAttachment)
}

// Provider is a provider that a test scripts. Its methods are safe for concurrent
// use.
type Provider struct {
	*calls.Journal
	*calls.Script
	// Options are what the provider was made with. A test may change them while
	// the provider is not called.
	Options Options

	mu          sync.Mutex
	configs     []*storage.Config
	contexts    []envcontext.ProviderCallContext
	volumes     []storage.Volume
	filesystems []storage.Filesystem
	attached    []string
	// tags are the resource tags of volumes and filesystems, by id.
	tags map[string]map[string]string
	// removed holds the ids of what was there and is not any more.
	removed map[string]bool
}

var (
	_ storage.Provider                = (*Provider)(nil)
	_ storage.VolumeSource            = (*Provider)(nil)
	_ storage.FilesystemSource        = (*Provider)(nil)
	_ storage.ConcurrentSource        = (*Provider)(nil)
	_ storage.PoolSources             = (*Provider)(nil)
	_ storage.VolumeQualifier         = (*Provider)(nil)
	_ storage.FilesystemQualifier     = (*Provider)(nil)
	_ storage.VolumeDeletionGuard     = (*Provider)(nil)
	_ storage.FilesystemDeletionGuard = (*Provider)(nil)
	_ storage.VolumeResizer           = (*Provider)(nil)
	_ storage.FilesystemResizer       = (*Provider)(nil)
	_ storage.VolumeChecker           = (*Provider)(nil)
	_ storage.FilesystemChecker       = (*Provider)(nil)
	_ storage.FilesystemRemarker      = (*Provider)(nil)
	_ storage.FileVolumes             = (*Provider)(nil)
	_ storage.VolumeRemarker          = (*Provider)(nil)
	_ storage.NewVolumes              = (*Provider)(nil)
	_ storage.VolumeOwnerLister       = (*Provider)(nil)
	_ storage.FilesystemOwnerLister   = (*Provider)(nil)
	_ storage.VolumeTagger            = (*Provider)(nil)
	_ storage.FilesystemTagger        = (*Provider)(nil)
)

// New returns a provider that has made nothing yet.
func New(options Options) *Provider {
	if options.Journal == nil {
		options.Journal = calls.NewJournal()
	}
	if options.Rules == nil {
		options.Rules = NewRules(nil)
	}
	return &Provider{
		Journal: options.Journal, Script: new(calls.Script), Options: options,
		tags: make(map[string]map[string]string), removed: make(map[string]bool),
	}
}

// Registry returns a function for storageprovisioner.Config's Registry, which knows
// the given providers.
func Registry(providers map[storage.ProviderType]storage.Provider) func(*config.Config) (storage.ProviderRegistry, error) {
	return func(*config.Config) (storage.ProviderRegistry, error) {
		return storage.StaticProviderRegistry{Providers: providers}, nil
	}
}

// Volumes returns the volumes that the provider has made and not removed.
func (p *Provider) Volumes() []storage.Volume {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.volumes)
}

// Filesystems returns the filesystems that the provider has made and not removed.
func (p *Provider) Filesystems() []storage.Filesystem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.filesystems)
}

// Attached returns the attachments that the provider has made and not undone, as
// subjects, in the order in which they were made.
func (p *Provider) Attached() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.attached)
}

// Breaches returns what the worker has done to the provider's storage that it must
// never do, by its [Rules].
func (p *Provider) Breaches() []string { return p.Options.Rules.Breaches() }

// Configs returns the configurations that sources were asked for, in order.
func (p *Provider) Configs() []*storage.Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.configs)
}

// Contexts returns the contexts of the bulk calls, in order.
func (p *Provider) Contexts() []envcontext.ProviderCallContext {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.contexts)
}

// VolumeSource is part of storage.Provider. The source is the provider itself; the
// script can fail the call, by its name.
func (p *Provider) VolumeSource(cfg *storage.Config) (storage.VolumeSource, error) {
	if err := p.opened("VolumeSource", storage.StorageKindBlock, cfg); err != nil {
		return nil, err
	}
	if p.Options.FixedSize {
		return struct{ storage.VolumeSource }{p}, nil
	}
	return p, nil
}

// FilesystemSource is part of storage.Provider, as VolumeSource is.
func (p *Provider) FilesystemSource(cfg *storage.Config) (storage.FilesystemSource, error) {
	if err := p.opened("FilesystemSource", storage.StorageKindFilesystem, cfg); err != nil {
		return nil, err
	}
	if p.Options.FixedSize {
		return struct{ storage.FilesystemSource }{p}, nil
	}
	return p, nil
}

// Supports is part of storage.Provider.
func (p *Provider) Supports(kind storage.StorageKind) bool {
	known := kind == storage.StorageKindBlock || kind == storage.StorageKindFilesystem
	return known && !slices.Contains(p.Options.Unsupported, kind)
}

// Scope is part of storage.Provider.
func (p *Provider) Scope() storage.Scope {
	p.asked("Scope")
	return p.Options.Scope
}

// Dynamic is part of storage.Provider.
func (p *Provider) Dynamic() bool {
	p.asked("Dynamic")
	return !p.Options.Static
}

// Releasable is part of storage.Provider.
func (p *Provider) Releasable() bool { return !p.Options.Unreleasable }

// DefaultPools is part of storage.Provider; there are none.
func (p *Provider) DefaultPools() []*storage.Config { return nil }

// ValidateConfig is part of storage.Provider; every configuration is valid.
func (p *Provider) ValidateConfig(*storage.Config) error { return nil }

// ValidateForK8s is part of storage.Provider; all attributes are valid.
func (p *Provider) ValidateForK8s(map[string]any) error { return nil }

// SourcesByPool is part of storage.PoolSources.
func (p *Provider) SourcesByPool() bool {
	p.asked("SourcesByPool")
	return p.Options.SourcesByPool
}

// MaxConcurrentCalls is part of storage.ConcurrentSource.
func (p *Provider) MaxConcurrentCalls() int {
	p.asked("MaxConcurrentCalls")
	return p.Options.MaxConcurrentCalls
}

// ShouldCreateVolume is part of storage.VolumeQualifier.
func (p *Provider) ShouldCreateVolume(params storage.VolumeParams) bool {
	p.asked("ShouldCreateVolume")
	return p.Options.ShouldCreateVolume == nil || p.Options.ShouldCreateVolume(params)
}

// ShouldCreateFilesystem is part of storage.FilesystemQualifier.
func (p *Provider) ShouldCreateFilesystem(params storage.FilesystemParams) bool {
	p.asked("ShouldCreateFilesystem")
	return p.Options.ShouldCreateFilesystem == nil || p.Options.ShouldCreateFilesystem(params)
}

// ShouldDestroyVolume is part of storage.VolumeDeletionGuard.
func (p *Provider) ShouldDestroyVolume(volumeId string) bool {
	p.asked("ShouldDestroyVolume")
	return p.Options.ShouldDestroyVolume == nil || p.Options.ShouldDestroyVolume(volumeId)
}

// ShouldDestroyFilesystem is part of storage.FilesystemDeletionGuard.
func (p *Provider) ShouldDestroyFilesystem(filesystemId string) bool {
	p.asked("ShouldDestroyFilesystem")
	return p.Options.ShouldDestroyFilesystem == nil || p.Options.ShouldDestroyFilesystem(filesystemId)
}

// FilesystemRemark is part of storage.FilesystemRemarker.
func (p *Provider) FilesystemRemark(filesystemId string) string {
	p.asked("FilesystemRemark")
	return p.remark(filesystemId)
}

// VolumeRemark is part of storage.VolumeRemarker.
func (p *Provider) VolumeRemark(volumeId string) string {
	p.asked("VolumeRemark")
	return p.remark(volumeId)
}

func (p *Provider) remark(id string) string {
	if p.Options.Remark == nil {
		return ""
	}
	return p.Options.Remark(id)
}

// VolumeFile is part of storage.FileVolumes.
func (p *Provider) VolumeFile(volumeId string) string {
	p.asked("VolumeFile")
	if p.Options.VolumeFile == nil {
		return ""
	}
	return p.Options.VolumeFile(volumeId)
}

// IsNewVolume is part of storage.NewVolumes.
func (p *Provider) IsNewVolume(volumeId string) bool {
	p.asked("IsNewVolume")
	return p.Options.IsNewVolume != nil && p.Options.IsNewVolume(volumeId)
}

// asked runs what the script has for a question, which has no error to return.
func (p *Provider) asked(name string) { _ = p.Begin(context.Background(), name) }

// opened notes that a source has been asked for, and returns why there cannot be one.
func (p *Provider) opened(name string, kind storage.StorageKind, cfg *storage.Config) error {
	p.mu.Lock()
	p.configs = append(p.configs, cfg)
	p.mu.Unlock()
	if !p.Supports(kind) {
		return errors.NotSupportedf("%s storage", kind)
	}
	return p.Begin(context.Background(), name)
}
