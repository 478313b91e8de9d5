package userapi

import (
	"context"

	"github.com/stowage-io/stowage/api/user"
)

// Backend carries out the requests of clients. Its methods may be called concurrently and
// return when their context ends.
type Backend interface {
	// Apply converges to a file.
	Apply(context.Context, user.ApplyArgs) (user.ApplyResult, error)
	// Storage returns the named storage, or all storage if no name is given. The error
	// satisfies errors.IsNotFound if a name is not known.
	Storage(ctx context.Context, names []string) ([]user.Storage, error)
	// Look returns what machines have of the named storage, and what workers do for it, sorted by name. A
	// machine that cannot be asked, or does not answer in time, is no error.
	Look(ctx context.Context, names []string) ([]user.StorageLook, error)
	// Usage measures how much of the named storage is used. A machine that cannot be asked, or does not answer
	// in time, is no error.
	Usage(ctx context.Context, names []string) (user.UsageList, error)
	// Events returns what happened to storage, the oldest first.
	Events(context.Context, user.EventsArgs) ([]user.StorageEvent, error)
	// Watch calls send with all of the named storage (without names, with all storage) or, from a
	// position, with what has changed since, and then with changes. It returns when the context ends
	// or send fails. A name that is not known is not an error: the storage may be added later, or may
	// have been removed. The error satisfies errors.Is(err, user.ErrGone) if what has changed since the
	// position is not known.
	Watch(ctx context.Context, args user.WatchArgs, send func(user.Event) error) error
	// Declare makes sure that storage exists and is attached, as applying a file with the
	// declaration does. If the condition is not met, it changes nothing, and the error satisfies
	// errors.Is(err, user.ErrPrecondition).
	Declare(context.Context, user.Condition, user.Declaration) error
	// RemoveIf is Remove for storage that must meet a condition, as in Declare.
	RemoveIf(context.Context, user.Condition) error
	// Attach, Detach and Remove request that the named storage be attached, detached, or
	// detached and destroyed. They return when the request is recorded, not when it is carried
	// out. If a name is not known, they return an error and change nothing.
	// The result of Attach has the storage that had failed, and is tried again.
	Attach(context.Context, user.AttachArgs) (user.ChangesResult, error)
	Detach(ctx context.Context, names []string) error
	Remove(context.Context, user.RemoveArgs) error
	// Release requests that the named storage be detached and removed from the state, with its
	// data left in place.
	Release(context.Context, user.RemoveArgs) error
	// Retry requests that failed operations of the named storage, or of all storage if no name
	// is given, be retried at once.
	Retry(ctx context.Context, names []string) error
	// Format requests that the filesystems of storage, each named by its full name, be made
	// whatever their volumes contain.
	Format(ctx context.Context, names []string) error
	// Resize requests that storage grow. It returns when the request is recorded, not when it
	// is carried out.
	Resize(context.Context, user.ResizeArgs) (user.ChangesResult, error)
	// Rename gives storage another name. If the names in the providers' records cannot be replaced now,
	// that is done later.
	Rename(context.Context, user.RenameArgs) (user.ChangesResult, error)
	// Import takes over an existing object as storage, which is then attached. If it is
	// interrupted, repeating the call completes it.
	Import(context.Context, user.ImportArgs) (user.ChangesResult, error)
	// Orphans returns the orphans, and other objects of providers that belong to no storage: those
	// of the named machine, or without a name of all that are connected. It scans twice, some seconds
	// apart, before it reports an object as an orphan.
	Orphans(ctx context.Context, machine string) (user.OrphanList, error)
	// Adopt adds storage for an orphan, detached.
	Adopt(context.Context, user.AdoptArgs) (user.ChangesResult, error)
	// DeleteOrphan destroys an orphan.
	DeleteOrphan(context.Context, user.DeleteOrphanArgs) (user.DeleteOrphanResult, error)
	// Claims returns the named claims, or all claims without names, sorted by name. The error satisfies
	// errors.IsNotFound if a name is not known.
	Claims(ctx context.Context, names []string) ([]user.Claim, error)
	// Claim makes a claim, unless the same request has made it before: it gets storage that exists, or
	// that is added, in one transaction. Errors satisfy errors.IsAlreadyExists if another request has
	// made the claim, or new storage cannot have its name, and errors.IsNotFound if no storage fits.
	Claim(ctx context.Context, name string, request user.ClaimRequest) error
	// Unclaim deletes a claim, and requests that its storage be removed if it says so.
	Unclaim(ctx context.Context, name string) error
	// Offer lets claims get the named storage, which was retained from deleted claims.
	Offer(ctx context.Context, names []string) error
	// Snapshots returns the named snapshots, or all snapshots without names, sorted by name. The error
	// satisfies errors.IsNotFound if a name is not known.
	Snapshots(ctx context.Context, names []string) ([]user.Snapshot, error)
	// CreateSnapshot requests a snapshot, unless it was requested before. It returns when the request is
	// recorded. Errors satisfy errors.IsAlreadyExists if there is a snapshot of that name of other storage,
	// and errors.IsNotFound if the storage does not exist.
	CreateSnapshot(ctx context.Context, name string, request user.SnapshotRequest) error
	// DeleteSnapshot requests that a snapshot be deleted.
	DeleteSnapshot(ctx context.Context, name string, force bool) error
	// AwaitSnapshot returns when a snapshot is made, has failed or is gone, or when the context ends.
	AwaitSnapshot(ctx context.Context, name string) error
	// Backup writes the state to a new file.
	Backup(context.Context, user.BackupArgs) (user.BackupResult, error)
	Pools(context.Context) ([]user.Pool, error)
	// AddPool creates a pool, or replaces one, for storage that is added from then on.
	AddPool(context.Context, user.AddPoolArgs) error
	// RemovePools removes the named pools, all or none.
	RemovePools(ctx context.Context, names []string) error
	// Machines returns all machines, sorted by name.
	Machines(context.Context) ([]user.Machine, error)
	// Move requests that storage be detached, and attached to another machine.
	Move(context.Context, user.MoveArgs) (user.MoveResult, error)
	// DrainMachine keeps a machine from getting storage, and requests that its storage be moved to
	// others.
	DrainMachine(context.Context, user.MachineArgs) (user.DrainMachineResult, error)
	// UndrainMachine lets a machine get storage again.
	UndrainMachine(context.Context, user.MachineArgs) error
	// LabelMachine changes the labels of a machine.
	LabelMachine(context.Context, user.LabelMachineArgs) error
	// FenceMachine makes a machine count as off. The error satisfies errors.IsNotSupported if that is
	// neither confirmed nor can be seen to.
	FenceMachine(context.Context, user.FenceMachineArgs) error
	// RemoveMachine removes a machine, with the storage that is lost with it.
	RemoveMachine(context.Context, user.RemoveMachineArgs) error
	// Servers returns the servers that keep the state together, sorted by name. The error satisfies
	// errors.IsNotSupported if there is only one.
	Servers(context.Context) ([]user.Server, error)
	// RemoveServer removes another server, whose copy of the state is of no use from then on.
	RemoveServer(context.Context, user.RemoveServerArgs) error
	// CreateToken creates a token, and returns its text, which is kept nowhere.
	CreateToken(context.Context, user.CreateTokenArgs) (string, error)
	// Tokens returns the tokens that can be used.
	Tokens(context.Context) ([]user.Token, error)
	// RemoveTokens removes tokens, each named by its ID.
	RemoveTokens(ctx context.Context, ids []string) error
	// Users returns the users with a certificate.
	Users(context.Context) ([]user.User, error)
	// RemoveUsers removes users, all or none.
	RemoveUsers(ctx context.Context, names []string) error
	// Report returns the reports of the agent's workers.
	Report(context.Context) (map[string]any, error)
}
