package provider

import (
	"context"
	"sync"

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
	// remark is what there is to say of it once it is attached or resized.
	remark() string
	// resize makes it so many bytes large, unless it is larger, and returns how
	// large it is then.
	resize(size uint64) (uint64, error)
	// destroy removes it and its record.
	destroy() error
	// release removes its record.
	release() error
}

// filesystemSource is the source of filesystems that stand on no volume.
type filesystemSource struct {
	dir  string
	kind filesystemKind

	mu sync.Mutex
	// remarks are those on filesystems that are attached, by id. They end with the
	// process: who starts next attaches all anew.
	remarks map[string]string
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

func attachedFilesystem(p storage.FilesystemAttachmentParams) string { return p.FilesystemId }

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
	return eachAtOnce(ctx, ids, itself, func(id string) error {
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
	return eachAtOnce(ctx, ids, itself, func(id string) error {
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
	paths, failures := c.mountAll(params, func(p storage.FilesystemAttachmentParams) (string, error) {
		f, err := s.mustLoad(c, p.FilesystemId)
		if err != nil {
			return "", errors.Trace(err)
		}
		path, err := f.attach(p.Path, p.ReadOnly)
		if err != nil {
			return "", errors.Trace(err)
		}
		s.setRemark(p.FilesystemId, f.remark())
		return path, nil
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
	return eachAtOnce(ctx, params, attachedFilesystem, func(p storage.FilesystemAttachmentParams) error {
		err := s.ifThere(c, p.FilesystemId, func(f machineFilesystem) error { return c.detach(f) })
		if err == nil {
			s.setRemark(p.FilesystemId, "")
		}
		return errors.Annotatef(err, "detaching filesystem %s", p.Filesystem.Id())
	}), nil
}

// ResizeFilesystems implements [storage.FilesystemResizer].
func (s *filesystemSource) ResizeFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemResizeParams) ([]storage.ResizeFilesystemsResult, error) {
	c, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Annotate(err, "resizing filesystems")
	}
	defer c.end()
	sizes, failures := collect(ctx, params, func(p storage.FilesystemResizeParams) (uint64, error) {
		size, err := sizeInBytes(p.Size)
		if err != nil {
			return 0, errors.Trace(err)
		}
		f, err := s.mustLoad(c, p.FilesystemId)
		if err != nil {
			return 0, errors.Trace(err)
		}
		if size, err = f.resize(size); err != nil {
			return 0, errors.Trace(err)
		}
		s.setRemark(p.FilesystemId, f.remark())
		return size, nil
	})
	results := make([]storage.ResizeFilesystemsResult, len(params))
	for i, p := range params {
		if failures[i] != nil {
			results[i].Error = errors.Annotatef(failures[i], "resizing filesystem %s", p.Tag.Id())
			continue
		}
		results[i].FilesystemInfo = &storage.FilesystemInfo{FilesystemId: p.FilesystemId, Size: sizes[i] >> 20}
	}
	return results, nil
}

// FilesystemRemark implements [storage.FilesystemRemarker].
func (s *filesystemSource) FilesystemRemark(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remarks[id]
}

func (s *filesystemSource) setRemark(id, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == "" {
		delete(s.remarks, id)
		return
	}
	if s.remarks == nil {
		s.remarks = make(map[string]string)
	}
	s.remarks[id] = text
}

// mustLoad returns a filesystem that is to be there.
func (s *filesystemSource) mustLoad(c *mountCall, id string) (machineFilesystem, error) {
	f, err := s.kind.load(c, id)
	if errors.Is(err, errors.NotFound) {
		return nil, storage.Permanent(errors.Annotate(err, "it was not made here"))
	}
	return f, errors.Trace(err)
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

// growTo makes a filesystem that exists as large as it is wanted to be created: more
// may be wanted by then than when the answer to its creation got lost.
func growTo(f machineFilesystem, have, want uint64) error {
	if want < have {
		return errors.Trace(checkSameSize(have, want))
	}
	_, err := f.resize(want)
	return errors.Trace(err)
}
