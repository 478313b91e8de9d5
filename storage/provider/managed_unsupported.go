//go:build !linux

package provider

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// NewManagedFilesystemSource returns a source whose calls all fail: the errors
// satisfy errors.IsNotSupported. Filesystems are made on volumes on Linux only.
func NewManagedFilesystemSource(storageDir string, d storage.BackingDevices) storage.FilesystemSource {
	return unsupportedManagedSource{}
}

type unsupportedManagedSource struct{}

func (unsupportedManagedSource) err() error {
	return errors.NewNotSupported(nil, "filesystems are made on volumes on Linux only")
}

// ValidateFilesystemParams implements [storage.FilesystemSource].
func (s unsupportedManagedSource) ValidateFilesystemParams(storage.FilesystemParams) error {
	return s.err()
}

// CreateFilesystems implements [storage.FilesystemSource].
func (s unsupportedManagedSource) CreateFilesystems(envcontext.ProviderCallContext, []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	return nil, s.err()
}

// DestroyFilesystems implements [storage.FilesystemSource].
func (s unsupportedManagedSource) DestroyFilesystems(envcontext.ProviderCallContext, []string) ([]error, error) {
	return nil, s.err()
}

// ReleaseFilesystems implements [storage.FilesystemSource].
func (s unsupportedManagedSource) ReleaseFilesystems(envcontext.ProviderCallContext, []string) ([]error, error) {
	return nil, s.err()
}

// AttachFilesystems implements [storage.FilesystemSource].
func (s unsupportedManagedSource) AttachFilesystems(envcontext.ProviderCallContext, []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	return nil, s.err()
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s unsupportedManagedSource) DetachFilesystems(envcontext.ProviderCallContext, []storage.FilesystemAttachmentParams) ([]error, error) {
	return nil, s.err()
}
