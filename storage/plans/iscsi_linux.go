package plans

import (
	"context"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
)

// AttachVolume implements [Plan].
func (p *iscsi) AttachVolume(ctx context.Context, attributes map[string]string) (storage.BlockDevice, error) {
	t, err := parseTarget(attributes)
	if err != nil {
		return storage.BlockDevice{}, errors.Trace(err)
	}
	c, err := parseCHAP(attributes)
	if err != nil {
		return storage.BlockDevice{}, errors.Trace(err)
	}
	device, err := p.attach(ctx, t, c)
	return device, errors.Annotatef(err, "attaching iSCSI target %s", t)
}

func (p *iscsi) attach(ctx context.Context, t target, c chap) (storage.BlockDevice, error) {
	unlock, err := p.lock(ctx, t)
	if err != nil {
		return storage.BlockDevice{}, errors.Trace(err)
	}
	defer unlock()
	admin, err := p.admin(t)
	if err != nil {
		return storage.BlockDevice{}, errors.Trace(err)
	}
	// Replace an existing record, so that its CHAP settings do not persist.
	if err := admin.newRecord(ctx); err != nil {
		return storage.BlockDevice{}, errors.Trace(err)
	}
	for _, s := range settings(c) {
		if err := admin.set(ctx, s); err != nil {
			return storage.BlockDevice{}, errors.Trace(err)
		}
	}
	err = admin.login(ctx)
	if hasStatus(err, statusSessionExists) {
		err = nil
		if _, disks := p.look(t); len(disks) == 0 {
			err = admin.rescan(ctx)
		}
	}
	if err != nil {
		return storage.BlockDevice{}, errors.Trace(err)
	}
	return p.awaitDisk(ctx, t)
}

// DetachVolume implements [Plan].
func (p *iscsi) DetachVolume(ctx context.Context, attributes map[string]string) error {
	t, err := parseTarget(attributes)
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Annotatef(p.detach(ctx, t), "detaching iSCSI target %s", t)
}

func (p *iscsi) detach(ctx context.Context, t target) error {
	unlock, err := p.lock(ctx, t)
	if err != nil {
		return errors.Trace(err)
	}
	defer unlock()
	admin, err := p.admin(t)
	if err != nil {
		return errors.Trace(err)
	}
	err = admin.logout(ctx)
	if err != nil && !hasStatus(err, statusSessionNotFound, statusNothingFound) {
		return errors.Trace(err)
	}
	err = admin.deleteRecord(ctx)
	if err != nil && !hasStatus(err, statusNothingFound) {
		return errors.Trace(err)
	}
	return nil
}

// pause waits for the duration d, or until ctx ends.
func (p *iscsi) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-p.config.Clock.After(d):
		return nil
	case <-ctx.Done():
		return errors.Trace(ctx.Err())
	}
}
