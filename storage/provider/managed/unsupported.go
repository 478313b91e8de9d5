//go:build !linux

package managed

import (
	"context"
	"runtime"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// NewSource returns a source whose calls all fail with errors that satisfy
// errors.IsNotSupported. Filesystems are made on volumes on Linux only.
func NewSource(storageDir string, d storage.BackingDevices) storage.FilesystemSource {
	return unsupportedSource{}
}

type unsupportedSource struct{}

func (unsupportedSource) err() error {
	return errors.NewNotSupported(nil, "filesystems are made on volumes on Linux only")
}

// ValidateFilesystemParams implements [storage.FilesystemSource].
func (s unsupportedSource) ValidateFilesystemParams(storage.FilesystemParams) error {
	return s.err()
}

// CreateFilesystems implements [storage.FilesystemSource].
func (s unsupportedSource) CreateFilesystems(envcontext.ProviderCallContext, []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	return nil, s.err()
}

// DestroyFilesystems implements [storage.FilesystemSource].
func (s unsupportedSource) DestroyFilesystems(envcontext.ProviderCallContext, []string) ([]error, error) {
	return nil, s.err()
}

// ReleaseFilesystems implements [storage.FilesystemSource].
func (s unsupportedSource) ReleaseFilesystems(envcontext.ProviderCallContext, []string) ([]error, error) {
	return nil, s.err()
}

// AttachFilesystems implements [storage.FilesystemSource].
func (s unsupportedSource) AttachFilesystems(envcontext.ProviderCallContext, []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	return nil, s.err()
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s unsupportedSource) DetachFilesystems(envcontext.ProviderCallContext, []storage.FilesystemAttachmentParams) ([]error, error) {
	return nil, s.err()
}

// ShutDown fails: the error satisfies errors.IsNotSupported.
func ShutDown(context.Context, string) ([]string, error) {
	return nil, unsupportedSource{}.err()
}

// Reidentify fails: the error satisfies errors.IsNotSupported.
func Reidentify(context.Context, string, object.Relocation) error {
	return errors.NotSupportedf("moved directories on %s", runtime.GOOS)
}

// Trash fails: the error satisfies errors.IsNotSupported.
func Trash(context.Context, string, string, storage.Owner, time.Time) error {
	return errors.NotSupportedf("the trash on %s", runtime.GOOS)
}

// PurgeTrash fails: the error satisfies errors.IsNotSupported.
func PurgeTrash(context.Context, string, time.Time) error {
	return errors.NotSupportedf("the trash on %s", runtime.GOOS)
}

// Look fails: the error satisfies errors.IsNotSupported.
func Look(context.Context, string, string) (*object.Footprint, error) {
	return nil, errors.NotSupportedf("storage on %s", runtime.GOOS)
}
