// Package rootfs is the provider of filesystems that are directories of the machine's own
// filesystem. Package storage/provider documents what all of the machine's own providers have
// in common.
package rootfs

import (
	"github.com/juju/errors"
	"github.com/juju/loggo"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// ProviderType is the type of the provider.
const ProviderType storage.ProviderType = "rootfs"

// mountType is the type of its filesystems, which are directories.
const mountType = "rootfs"

// Options are the settings of a rootfs provider.
type Options struct {
	// StorageDir is the absolute path of the storage directory for pools without the attribute
	// storage.ConfigStorageDir. Empty: such pools are not valid.
	StorageDir string

	// Logger receives a message for each filesystem that is created with a size that is not
	// enforced. Nil means the loggo logger stowage.storage.provider.rootfs.
	Logger Logger
}

// Logger is the part of a loggo logger that the provider uses.
type Logger interface {
	Debugf(format string, args ...any)
}

// NewProvider returns the provider of filesystems that are directories of the machine's own
// filesystem, bind-mounted at their mount points. The directories are in the directory
// filesystems of the storage directory, under the filesystems' IDs.
//
// The requested size must be available when a filesystem is created, and the difference when
// it grows. If the storage directory is on ext4 or xfs mounted with project quota (mount
// option prjquota), the size is enforced, and df shows it. The directory is then a quota
// project of its own, numbered from 1<<30, until it is destroyed or released. On ext4 a
// process with CAP_SYS_RESOURCE may write beyond the size. On other filesystems, and if the
// storage directory is in a project already, the filesystem shares the space of the one it
// lives in, and may use less or more than its size. The source's FilesystemRemark says so, and
// why.
//
// An existing directory can be imported by its absolute path, if it is on the filesystem of
// the storage directory, nothing is mounted in it, and no process uses it or anything in it,
// as far as /proc shows (files that are open or mapped, working directories, running
// programs). It is moved into the storage directory and is an ordinary filesystem from then
// on: destroying the filesystem destroys its contents. Its size is what it uses, rounded up to
// MiB, and is not enforced until it is resized.
//
// A filesystem that is attached at the path of its own directory, or without a path, needs no
// mount; such an attachment cannot be read-only, and cannot have mount options. Otherwise the
// attribute "mount-options" of a filesystem chooses the options of its mount;
// docs/reference/filesystems.md lists them. Creating and importing nevertheless require
// CAP_SYS_ADMIN: destroying a filesystem uses a mount to protect what may be mounted in its
// directory.
//
// A snapshot is a directory in the directory snapshots of the storage directory, with a record and a
// quota project of its own; nothing is ever mounted from it. A directory that is attached, or that a
// process uses as far as /proc shows, is neither copied nor made a snapshot of. The program cp of GNU
// makes copies, which requires CAP_FSETID, and CAP_CHOWN, CAP_FOWNER, CAP_MKNOD and CAP_SETFCAP for
// what only they can make. Calls on the storage directory wait until a copy is complete.
//
// Releasing a filesystem removes its owner and keeps its directory, which can be imported by
// the filesystem's ID or the directory's path. A filesystem cannot be released or destroyed
// while its directory is mounted in any mount namespace. It cannot be detached while it is
// mounted in another namespace, such as that of a container that began with a copy of the
// machine's mounts. The provider does not see that a directory is a lower layer of an overlay,
// nor a mount that is attached nowhere and held by a file descriptor. It sees mount namespaces
// in which no process lives only from Linux 6.12 on.
func NewProvider(options Options) storage.Provider {
	logger := options.Logger
	if logger == nil {
		logger = loggo.GetLogger("stowage.storage.provider.rootfs")
	}
	return &provider{
		Provider: object.Provider{Type: ProviderType, StorageDir: options.StorageDir, MountType: mountType},
		logger:   logger,
	}
}

type provider struct {
	object.Provider
	logger Logger
}

// VolumeSource implements [storage.Provider]. The provider makes no volumes.
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
