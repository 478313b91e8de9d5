package backend

import (
	"context"
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// setMountOptions gives the providers of filesystems that are made the options with which to mount them from now
// on. It checks all of them first. Repeating it completes it.
func (b *Backend) setMountOptions(ctx context.Context, names []string, options string) error {
	found, err := b.named(names)
	if err != nil {
		return errors.Trace(err)
	}
	for _, s := range found {
		if err := b.checkMountOptions(&s); err != nil {
			return errors.Annotatef(err, "storage %q", s.Name)
		}
	}
	for _, s := range found {
		if s.Filesystem == nil || s.Filesystem.ProviderID == "" {
			continue // it is made, or taken over by another machine, with the options in the state
		}
		if err := b.setMountOptionsOf(ctx, &s, options); err != nil {
			return errors.Annotatef(err, "storage %q", s.Name)
		}
	}
	return nil
}

// checkMountOptions returns an error unless storage may get other mount options.
func (b *Backend) checkMountOptions(s *state.Storage) error {
	invalid := func(format string, args ...any) error { return errors.NewNotValid(nil, fmt.Sprintf(format, args...)) }
	provider, err := b.config.Registry.StorageProvider(s.Provider)
	switch {
	case s.Kind != storage.StorageKindFilesystem:
		return invalid("a block device has no mount options")
	case s.Asker != (state.Asker{}):
		return invalid("%s asked for it, as %s, and decides how it is mounted", s.Asker.Way, s.Asker.Name)
	case len(s.Attachments) > 0:
		return invalid("its mount options can change only while it is detached: detach it first, with `stowage detach --wait %s`", s.Name)
	case err == nil && storage.MountsVolumes(provider, s.Attributes):
		return invalid("its driver mounts it as it was made: its mount options cannot change")
	}
	return nil
}

func (b *Backend) setMountOptionsOf(ctx context.Context, s *state.Storage, options string) error {
	at := here
	if machine, ok := workerOf(s); ok {
		var err error
		if at, err = b.placeOf(machine); err != nil {
			return errors.Trace(err)
		}
	}
	_, err := b.do(ctx, at, task.Request{MountOptions: &task.MountOptions{Filesystem: filesystemRef(*s), Options: options}})
	return errors.Trace(err)
}
