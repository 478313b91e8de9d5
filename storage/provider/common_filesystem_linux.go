package provider

import (
	"context"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// filesystemKind is what sets tmpfs and rootfs apart.
type filesystemKind interface {
	// files names the directory that holds the filesystems, or what they need.
	files() string
	// create makes a filesystem of so many bytes, or finds it made.
	create(c *mountCall, id string, size uint64) error
	// load returns a filesystem that was made, or begun; errors.IsNotFound
	// where there is none.
	load(c *mountCall, id string) (machineFilesystem, error)
}

// machineFilesystem is a filesystem during one bulk call.
type machineFilesystem interface {
	mountable
	// attach makes the filesystem usable at a path, one that it chooses if the
	// path is empty, and returns the path.
	attach(path string, readOnly bool) (string, error)
	// destroy removes it and its record.
	destroy() error
	// release removes its record.
	release() error
}

// filesystemSource is the source of filesystems that stand on no volume.
type filesystemSource struct {
	dir  string
	kind filesystemKind
}

func (s *filesystemSource) begin(ctx context.Context) (*mountCall, error) {
	return beginMounts(ctx, s.dir, s.kind.files())
}

// ValidateFilesystemParams implements [storage.FilesystemSource].
func (s *filesystemSource) ValidateFilesystemParams(p storage.FilesystemParams) error {
	_, err := sizeInBytes(p.Size)
	return errors.Annotatef(err, "filesystem %s", p.Tag.Id())
}

// CreateFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) CreateFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "creating filesystems")
	}
	defer c.end()
	infos, failures := collect(ctx, params, func(p storage.FilesystemParams) (storage.FilesystemInfo, error) {
		info := storage.FilesystemInfo{FilesystemId: p.Tag.String(), Size: p.Size}
		size, err := sizeInBytes(p.Size)
		if err != nil {
			return info, errors.Trace(err)
		}
		return info, s.kind.create(c, info.FilesystemId, size)
	})
	return madeResults(params, infos, failures), nil
}

// madeResults returns what a bulk call that creates filesystems has come to.
func madeResults(params []storage.FilesystemParams, infos []storage.FilesystemInfo, failures []error) []storage.CreateFilesystemsResult {
	results := make([]storage.CreateFilesystemsResult, len(params))
	for i, p := range params {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "creating filesystem %s", p.Tag.Id())
			continue
		}
		results[i].Filesystem = &storage.Filesystem{Tag: p.Tag, Volume: p.Volume, FilesystemInfo: infos[i]}
	}
	return results
}

// DestroyFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "destroying filesystems")
	}
	defer c.end()
	return each(ctx, ids, func(id string) error {
		return errors.Annotatef(s.ifThere(c, id, machineFilesystem.destroy), "destroying %s", id)
	}), nil
}

// ReleaseFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "releasing filesystems")
	}
	defer c.end()
	return each(ctx, ids, func(id string) error {
		return errors.Annotatef(s.ifThere(c, id, machineFilesystem.release), "releasing %s", id)
	}), nil
}

// AttachFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) AttachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "attaching filesystems")
	}
	defer c.end()
	paths, failures := collect(ctx, params, func(p storage.FilesystemAttachmentParams) (string, error) {
		f, err := s.kind.load(c, p.FilesystemId)
		if errors.Is(err, errors.NotFound) {
			return "", storage.Permanent(errors.Annotate(err, "it was not made here"))
		} else if err != nil {
			return "", errors.Trace(err)
		}
		return f.attach(p.Path, p.ReadOnly)
	})
	return mountedResults(params, paths, failures), nil
}

// mountedResults returns what a bulk call that attaches filesystems has come to.
func mountedResults(params []storage.FilesystemAttachmentParams, paths []string, failures []error) []storage.AttachFilesystemsResult {
	results := make([]storage.AttachFilesystemsResult, len(params))
	for i, p := range params {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "attaching filesystem %s", p.Filesystem.Id())
			continue
		}
		results[i].FilesystemAttachment = &storage.FilesystemAttachment{
			Filesystem:               p.Filesystem,
			Machine:                  p.Machine,
			FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: paths[i], ReadOnly: p.ReadOnly},
		}
	}
	return results
}

// DetachFilesystems implements [storage.FilesystemSource].
func (s *filesystemSource) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "detaching filesystems")
	}
	defer c.end()
	return each(ctx, params, func(p storage.FilesystemAttachmentParams) error {
		err := s.ifThere(c, p.FilesystemId, func(f machineFilesystem) error { return c.detach(f) })
		return errors.Annotatef(err, "detaching filesystem %s", p.Filesystem.Id())
	}), nil
}

// ifThere does something with a filesystem. There being none is a success.
func (s *filesystemSource) ifThere(c *mountCall, id string, do func(machineFilesystem) error) error {
	f, err := s.kind.load(c, id)
	if errors.Is(err, errors.NotFound) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	return do(f)
}
