// Package rootfs is the provider of filesystems that are directories of the machine's own filesystem.
// The package storage/provider tells what holds for all of the machine's own providers.
package rootfs

import (
	"github.com/juju/errors"
	"github.com/juju/loggo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// ProviderType is the type of the provider.
const ProviderType storage.ProviderType = "rootfs"

// Options are the settings of a rootfs provider.
type Options struct {
	// StorageDir is the storage directory, an absolute path, of pools that have
	// no attribute storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string

	// Logger hears of filesystems that are created with a size that is not enforced.
	// Nil means the loggo logger
	// stowage.storage.provider.rootfs.
	Logger Logger
}

// Logger is the part of a loggo logger that the providers use.
type Logger interface {
	Debugf(format string, args ...any)
}

// NewProvider returns the provider of filesystems that are directories of
// the machine's own filesystem, bound to where they are wanted. They are found in
// the directory filesystems of the storage directory, under the filesystem's id.
//
// The size asked for must be available when the filesystem is created, or grows by
// it. It is enforced, and is what df shows, where the storage directory is on ext4
// or xfs mounted with project quota (mount option prjquota): the directory is then a
// quota project of its own, numbered from 1<<30, and ends as one when it is
// destroyed or released. On ext4 a process with CAP_SYS_RESOURCE may write beyond
// the size. Elsewhere, and where the storage directory is in a project already, the
// filesystem shares the space of the one it lives in, and may use less or more; the
// source's FilesystemRemark says so, and why.
//
// A directory that is there already can be imported by its absolute path, if it is
// on the filesystem of the storage directory, nothing is mounted in it, and no process has
// it or anything in it in use, as far as /proc shows (files that are open or mapped,
// working directories, programs that run). It is
// moved into the storage directory and is a filesystem like others from then on:
// destroying that destroys what is in it. Its size is what it uses, rounded up to
// MiB, and is not enforced until it is resized.
//
// A filesystem that is attached at the path of its own directory, or at no path,
// needs no mount; this cannot be read-only. All the same nothing is created or
// imported without CAP_SYS_ADMIN: what may be mounted in the directory is kept from
// harm by a mount when it is destroyed.
//
// Releasing a filesystem makes it nobody's and keeps its directory, which can be
// imported by the filesystem's id or the directory's path. Neither that nor destroying
// is possible while the directory is mounted, in whichever mount namespace; nor is
// detaching it while it is mounted in another namespace, as of a container that began with
// a copy of the machine's mounts. What is not seen is a directory that is a lower layer of
// an overlay, and a mount that is attached nowhere and held by a file descriptor. Mount
// namespaces in which no process lives are seen from Linux 6.12 on.
func NewProvider(options Options) storage.Provider {
	logger := options.Logger
	if logger == nil {
		logger = loggo.GetLogger("stowage.storage.provider.rootfs")
	}
	return &provider{
		Provider: object.Provider{Type: ProviderType, StorageDir: options.StorageDir},
		logger:   logger,
	}
}

type provider struct {
	object.Provider
	logger Logger
}

// VolumeSource implements [storage.Provider]. It is not supported.
func (p *provider) VolumeSource(*storage.Config) (storage.VolumeSource, error) {
	return nil, errors.NotSupportedf("making volumes with provider %s", p.Type)
}

// FilesystemSource implements [storage.Provider].
func (p *provider) FilesystemSource(config *storage.Config) (storage.FilesystemSource, error) {
	if err := p.ValidateConfig(config); err != nil {
		return nil, errors.Trace(err)
	}
	dir, err := p.Dir(config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	return newSource(dir, p.logger)
}

// Supports implements [storage.Provider].
func (p *provider) Supports(kind storage.StorageKind) bool {
	return kind == storage.StorageKindFilesystem
}

// Releasable implements [storage.Provider].
func (p *provider) Releasable() bool {
	return true
}

// ValidateForK8s implements [storage.Provider].
func (p *provider) ValidateForK8s(attributes map[string]any) error {
	return object.ValidateMediumForK8s(p.Type, attributes)
}
