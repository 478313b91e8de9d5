// Package providerfake has a storage provider in memory that works correctly, except where a
// test scripts it to fail.
//
// A [Provider] is a storage.Provider and its own source of volumes and filesystems. Volume
// "volume-0" gets the ID "vol-0", filesystem "filesystem-0" the ID "fs-0". Creating one again
// for the same owner ([storage.OwnerOf]) returns the same object; creating it for another
// owner fails. An ID that the provider has not assigned counts as storage that was made
// before. Unscripted, the provider passes the conformance suite storage/provider/providertest.
//
// The provider is a [calls.Journal] of the calls that it receives, and a [calls.Script] that
// makes them fail, block or return too few results; an unknown name panics. An operation that takes time is
//
//	provider.FailItem("CreateVolumes", "volume-0", storage.InProgress(err), storage.InProgress(err))
//
// and one that panics is
//
//	provider.OnCall("CreateVolumes", func(context.Context) error { panic("out of order") })
//
// Methods that return no error can be made to panic too, by name: Scope, Dynamic,
// SourcesByPool, MaxConcurrentCalls, FilesystemRemark, VolumeRemark, ShouldCreateVolume and so
// on.
//
// Subjects are tags; that of an attachment is two tags: "volume-0 machine-0".
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

// Options configures a provider. The zero value is a dynamic provider of the environment's
// scope that supports and accepts everything.
type Options struct {
	// Journal records the calls; nil: the provider has its own.
	Journal *calls.Journal
	// Prefix precedes the names of calls in the journal, but not in the script.
	Prefix string
	// Rules check the operations; nil: the provider has its own. Providers that work on the
	// same entities share one.
	Rules *Rules

	// Scope is the provider's scope; zero: the environment.
	Scope storage.Scope
	// Static says that the provider is static: it makes nothing while a model runs.
	Static bool
	// Unreleasable says that the provider cannot release what it made.
	Unreleasable bool
	// Unsupported are the kinds of storage that the provider does not make.
	Unsupported []storage.StorageKind

	// SourcesByPool is the result of storage.PoolSources.
	SourcesByPool bool
	// FixedSize makes sources whose volumes and filesystems cannot grow: they implement
	// neither storage.VolumeResizer nor storage.FilesystemResizer, nor any other optional
	// capability of sources, such as keeping resource tags.
	FixedSize bool
	// Remark returns the results of storage.FilesystemRemarker and storage.VolumeRemarker;
	// nil: no remark.
	Remark func(id string) string
	// CheckVolume and CheckFilesystem return the results of storage.VolumeChecker and
	// storage.FilesystemChecker for one volume or filesystem; nil: all are as they were
	// attached, and calls are not in the journal.
	CheckVolume     func(volumeId string) error
	CheckFilesystem func(filesystemId string) error
	// IsNewVolume is the result of storage.NewVolumes; nil: false.
	IsNewVolume func(volumeId string) bool
	// VolumeFile is the result of storage.FileVolumes; nil: no file.
	VolumeFile func(volumeId string) string

	// MountsVolumes is the result of storage.MountedVolumes; nil: false.
	MountsVolumes func(attributes map[string]any) bool

	// MaxConcurrentCalls is the result of storage.ConcurrentSource; 0: one at a time.
	MaxConcurrentCalls int
	// These are the results of storage.VolumeQualifier, FilesystemQualifier,
	// VolumeDeletionGuard and FilesystemDeletionGuard; nil: true.
	ShouldCreateVolume      func(storage.VolumeParams) bool
	ShouldCreateFilesystem  func(storage.FilesystemParams) bool
	ShouldDestroyVolume     func(volumeId string) bool
	ShouldDestroyFilesystem func(filesystemId string) bool

	// AttachOnCreate makes CreateVolumes attach volumes too.
	AttachOnCreate bool
	// EditCreated and EditAttached change the result for a volume that has been created or
	// attached, EditCreatedFilesystem and EditMounted that for a filesystem; nil: it stays as
	// it is. They must not call the provider.
	EditCreated           func(*storage.CreateVolumesResult)
	EditAttached          func(*storage.VolumeAttachment)
	EditCreatedFilesystem func(*storage.CreateFilesystemsResult)
	EditMounted           func(*storage.FilesystemAttachment)
}

// Provider is a provider that a test scripts. Its methods are safe for concurrent use.
type Provider struct {
	*calls.Journal
	*calls.Script
	// Options are the options that the provider was made with. A test may change them while
	// the provider is not being called.
	Options Options

	mu          sync.Mutex
	configs     []*storage.Config
	contexts    []envcontext.ProviderCallContext
	volumes     []storage.Volume
	filesystems []storage.Filesystem
	attached    []string

	volumeSnapshots, filesystemSnapshots snapshots

	// tags are the resource tags of volumes and filesystems, by ID.
	tags map[string]map[string]string
	// removed holds the IDs of objects that have been removed.
	removed map[string]bool
}

var (
	_ storage.Provider                = (*Provider)(nil)
	_ storage.VolumeSource            = (*Provider)(nil)
	_ storage.FilesystemSource        = (*Provider)(nil)
	_ storage.ConcurrentSource        = (*Provider)(nil)
	_ storage.PoolSources             = (*Provider)(nil)
	_ storage.MountedVolumes          = (*Provider)(nil)
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
	_ storage.VolumeSnapshotter       = (*Provider)(nil)
	_ storage.FilesystemSnapshotter   = (*Provider)(nil)
	_ storage.VolumeCloner            = (*Provider)(nil)
	_ storage.FilesystemCloner        = (*Provider)(nil)
	_ storage.CapacityReporter        = (*Provider)(nil)
)

// callNames are the calls that run the script.
var callNames = []string{
	"AttachFilesystems", "AttachVolumes", "Capacity", "CheckFilesystems", "CheckVolumes",
	"CloneFilesystems", "CloneVolumes", "CreateFilesystemSnapshots", "CreateFilesystems",
	"CreateVolumeSnapshots", "CreateVolumes", "DescribeVolumes", "DestroyFilesystemSnapshots",
	"DestroyFilesystems", "DestroyVolumeSnapshots", "DestroyVolumes", "DetachFilesystems",
	"DetachVolumes", "Dynamic", "FilesystemRemark", "FilesystemSource", "IsNewVolume",
	"ListFilesystemOwners", "ListFilesystemSnapshots", "ListVolumeOwners", "ListVolumeSnapshots",
	"ListVolumes", "MaxConcurrentCalls", "ReleaseFilesystems", "ReleaseVolumes", "ResizeFilesystems",
	"ResizeVolumes", "Scope", "ShouldCreateFilesystem", "ShouldCreateVolume",
	"ShouldDestroyFilesystem", "ShouldDestroyVolume", "SourcesByPool", "TagFilesystems", "TagVolumes",
	"ValidateFilesystemParams", "ValidateVolumeParams", "VolumeFile", "VolumeRemark", "VolumeSource",
}

// New returns a provider that has made nothing yet.
func New(options Options) *Provider {
	if options.Journal == nil {
		options.Journal = calls.NewJournal()
	}
	if options.Rules == nil {
		options.Rules = NewRules(nil)
	}
	return &Provider{
		Journal: options.Journal, Script: calls.NewScript(callNames...), Options: options,
		tags: make(map[string]map[string]string), removed: make(map[string]bool),
	}
}

// Registry returns a function for storageprovisioner.Config's Registry, which returns a
// registry of the given providers.
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

// Breaches returns the breaches of the provider's [Rules] by the worker.
func (p *Provider) Breaches() []string { return p.Options.Rules.Breaches() }

// Configs returns the configurations that sources were requested with, in order.
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

// VolumeSource implements storage.Provider. The source is the provider itself. The script can
// make the call fail, by its name.
func (p *Provider) VolumeSource(cfg *storage.Config) (storage.VolumeSource, error) {
	if err := p.recordOpen("VolumeSource", storage.StorageKindBlock, cfg); err != nil {
		return nil, err
	}
	if p.Options.FixedSize {
		return struct{ storage.VolumeSource }{p}, nil
	}
	return p, nil
}

// FilesystemSource implements storage.Provider in the same way as VolumeSource.
func (p *Provider) FilesystemSource(cfg *storage.Config) (storage.FilesystemSource, error) {
	if err := p.recordOpen("FilesystemSource", storage.StorageKindFilesystem, cfg); err != nil {
		return nil, err
	}
	if p.Options.FixedSize {
		return struct{ storage.FilesystemSource }{p}, nil
	}
	return p, nil
}

// Supports implements storage.Provider.
func (p *Provider) Supports(kind storage.StorageKind) bool {
	known := kind == storage.StorageKindBlock || kind == storage.StorageKindFilesystem
	return known && !slices.Contains(p.Options.Unsupported, kind)
}

// Scope implements storage.Provider.
func (p *Provider) Scope() storage.Scope {
	p.runScript("Scope")
	return p.Options.Scope
}

// Dynamic implements storage.Provider.
func (p *Provider) Dynamic() bool {
	p.runScript("Dynamic")
	return !p.Options.Static
}

// Releasable implements storage.Provider.
func (p *Provider) Releasable() bool { return !p.Options.Unreleasable }

// DefaultPools implements storage.Provider. There are none.
func (p *Provider) DefaultPools() []*storage.Config { return nil }

// ValidateConfig implements storage.Provider. Every configuration is valid.
func (p *Provider) ValidateConfig(*storage.Config) error { return nil }

// ValidateForK8s implements storage.Provider. All attributes are valid.
func (p *Provider) ValidateForK8s(map[string]any) error { return nil }

// SourcesByPool implements storage.PoolSources.
func (p *Provider) SourcesByPool() bool {
	p.runScript("SourcesByPool")
	return p.Options.SourcesByPool
}

// MountsVolumes implements storage.MountedVolumes.
func (p *Provider) MountsVolumes(attributes map[string]any) bool {
	return p.Options.MountsVolumes != nil && p.Options.MountsVolumes(attributes)
}

// MaxConcurrentCalls implements storage.ConcurrentSource.
func (p *Provider) MaxConcurrentCalls() int {
	p.runScript("MaxConcurrentCalls")
	return p.Options.MaxConcurrentCalls
}

// ShouldCreateVolume implements storage.VolumeQualifier.
func (p *Provider) ShouldCreateVolume(params storage.VolumeParams) bool {
	p.runScript("ShouldCreateVolume")
	return p.Options.ShouldCreateVolume == nil || p.Options.ShouldCreateVolume(params)
}

// ShouldCreateFilesystem implements storage.FilesystemQualifier.
func (p *Provider) ShouldCreateFilesystem(params storage.FilesystemParams) bool {
	p.runScript("ShouldCreateFilesystem")
	return p.Options.ShouldCreateFilesystem == nil || p.Options.ShouldCreateFilesystem(params)
}

// ShouldDestroyVolume implements storage.VolumeDeletionGuard.
func (p *Provider) ShouldDestroyVolume(volumeId string) bool {
	p.runScript("ShouldDestroyVolume")
	return p.Options.ShouldDestroyVolume == nil || p.Options.ShouldDestroyVolume(volumeId)
}

// ShouldDestroyFilesystem implements storage.FilesystemDeletionGuard.
func (p *Provider) ShouldDestroyFilesystem(filesystemId string) bool {
	p.runScript("ShouldDestroyFilesystem")
	return p.Options.ShouldDestroyFilesystem == nil || p.Options.ShouldDestroyFilesystem(filesystemId)
}

// FilesystemRemark implements storage.FilesystemRemarker.
func (p *Provider) FilesystemRemark(filesystemId string) string {
	p.runScript("FilesystemRemark")
	return p.remark(filesystemId)
}

// VolumeRemark implements storage.VolumeRemarker.
func (p *Provider) VolumeRemark(volumeId string) string {
	p.runScript("VolumeRemark")
	return p.remark(volumeId)
}

func (p *Provider) remark(id string) string {
	if p.Options.Remark == nil {
		return ""
	}
	return p.Options.Remark(id)
}

// VolumeFile implements storage.FileVolumes.
func (p *Provider) VolumeFile(volumeId string) string {
	p.runScript("VolumeFile")
	if p.Options.VolumeFile == nil {
		return ""
	}
	return p.Options.VolumeFile(volumeId)
}

// IsNewVolume implements storage.NewVolumes.
func (p *Provider) IsNewVolume(volumeId string) bool {
	p.runScript("IsNewVolume")
	return p.Options.IsNewVolume != nil && p.Options.IsNewVolume(volumeId)
}

// runScript runs the script for a method that has no error to return.
func (p *Provider) runScript(name string) { _ = p.Begin(context.Background(), name) }

// recordOpen records that a source has been requested, and returns an error if there cannot be
// one.
func (p *Provider) recordOpen(name string, kind storage.StorageKind, cfg *storage.Config) error {
	p.mu.Lock()
	p.configs = append(p.configs, cfg)
	p.mu.Unlock()
	if !p.Supports(kind) {
		return errors.NotSupportedf("%s storage", kind)
	}
	return p.Begin(context.Background(), name)
}
