package backend

import (
	"context"
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/executor"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Resize implements userapi.Backend.
func (b *Backend) Resize(ctx context.Context, args user.ResizeArgs) (result user.ChangesResult, err error) {
	if len(args.Names) == 0 {
		return result, errors.NewNotValid(nil, "no storage is named")
	}
	err = b.change(ctx, "", func() (*state.Changes, error) {
		situation, err := b.situation(nil)
		if err != nil {
			return nil, errors.Trace(err)
		}
		found, err := b.selectStorage(args.Names)
		if err != nil {
			return nil, err
		}
		plan, err := converge.Resize(situation, found, args.SizeMiB, args.More)
		if err != nil {
			return nil, errors.Trace(err)
		}
		result.Changes = plan.Changes
		return &plan.State, nil
	})
	if err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	return result, nil
}

// checkGrowth returns an error if the provider cannot grow the storage. The storage
// provisioner would discover the same, and retry forever.
func (b *Backend) checkGrowth(s *state.Storage) error {
	p, err := b.config.Registry.StorageProvider(s.Provider)
	if err != nil {
		return errors.Trace(err)
	}
	if p.Scope() == storage.ScopeEnviron && !b.config.Manager {
		return errors.NewNotValid(nil, noManager)
	}
	if p.Scope() == storage.ScopeMachine && !b.isLocal() {
		return nil // its source is on the machine
	}
	config, err := executor.SourceConfig(b.dir, s.Provider)
	if err != nil {
		return errors.Trace(err)
	}
	grows := false
	if s.Volume != nil {
		source, err := p.VolumeSource(config)
		if err != nil {
			return errors.Trace(err)
		}
		_, grows = source.(storage.VolumeResizer)
	} else {
		source, err := p.FilesystemSource(config)
		if err != nil {
			return errors.Trace(err)
		}
		_, grows = source.(storage.FilesystemResizer)
	}
	if !grows {
		return errors.NewNotSupported(nil, fmt.Sprintf(
			"provider %s cannot make storage larger: add larger storage, and copy the data to it", s.Provider))
	}
	return nil
}
