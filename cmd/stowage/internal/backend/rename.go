package backend

import (
	"context"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/state"
)

// stampPatience is how long a rename waits until the providers' records have the new name.
const stampPatience = 10 * time.Second

// Rename implements userapi.Backend.
func (b *Backend) Rename(ctx context.Context, args user.RenameArgs) (user.ChangesResult, error) {
	err := b.change(ctx, "", func() (*state.Changes, error) {
		return &state.Changes{Rename: []state.Rename{{Name: args.Name, To: args.To}}}, nil
	})
	if err != nil {
		return user.ChangesResult{}, errors.Trace(err)
	}
	stamping, cancel := context.WithTimeoutCause(ctx, stampPatience, errors.Errorf("not done within %v", stampPatience))
	defer cancel()
	if err := b.stampAdopted(stamping); err != nil {
		b.config.Logger.Warningf("%s", StampWarning(err))
	}
	return user.ChangesResult{Changes: []user.Change{{
		Action: user.ActionRename, Item: "storage", Name: args.To, Detail: "from " + args.Name,
	}}}, nil
}
