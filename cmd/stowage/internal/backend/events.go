package backend

import (
	"context"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/state"
)

const (
	defaultEvents = 1_000
	maxEvents     = 10_000
)

// Events implements userapi.Backend.
func (b *Backend) Events(_ context.Context, args user.EventsArgs) ([]user.StorageEvent, error) {
	if args.Limit < 0 {
		return nil, errors.NotValidf("limit %d", args.Limit)
	}
	limit := min(args.Limit, maxEvents)
	if limit == 0 {
		limit = defaultEvents
	}
	all, err := b.state.Events(args.Names...)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if len(all) == 0 && len(args.Names) > 0 { // storage that an older version has added may have none
		if _, err := b.selectStorage(args.Names); err != nil {
			return nil, errors.Trace(err)
		}
	}
	for len(all) > 0 && all[0].Time.Before(args.Since) {
		all = all[1:]
	}
	all = all[max(0, len(all)-limit):]
	wire := make([]user.StorageEvent, len(all))
	for i, e := range all {
		wire[i] = b.wireEvent(e)
	}
	return wire, nil
}

func (b *Backend) wireEvent(e state.Event) user.StorageEvent {
	wire := user.StorageEvent{
		Time: e.Time, Storage: e.Name, Number: e.Number, Type: string(e.Type), SizeMiB: e.SizeMiB, FormerMiB: e.FormerMiB, Text: e.Text, By: e.By,
	}
	if e.Tag != nil {
		wire.Entity = names.ReadableString(e.Tag)
	}
	if e.Machine != (names.MachineTag{}) {
		wire.Machine = b.machineName(e.Machine)
	}
	return wire
}
