// Package userapitest has a backend for tests of those who serve or use the requests of users.
package userapitest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stowage-io/stowage/api/user"
)

// Backend answers from its fields, and records the calls.
type Backend struct {
	// Storages is what Storage returns, ClaimList what Claims returns, SnapshotList what Snapshots returns,
	// Looks what Look returns, and Err the error of all calls.
	Storages     []user.Storage
	ClaimList    []user.Claim
	SnapshotList []user.Snapshot
	Looks        []user.StorageLook
	Err          error
	// Watched are the events of Watch, which returns when the channel is closed. Watching receives when
	// Watch begins, and when it ends.
	Watched  chan user.Event
	Watching chan string

	mu    sync.Mutex
	calls []string
}

// Calls returns the calls.
func (b *Backend) Calls() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

func (b *Backend) record(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, fmt.Sprintf(format, args...))
}

// Apply implements userapi.Backend.
func (b *Backend) Apply(_ context.Context, args user.ApplyArgs) (user.ApplyResult, error) {
	b.record("apply %s %q %v", args.File, args.Content, args.DryRun)
	return user.ApplyResult{
		Changes: []user.Change{{Action: user.ActionAdd, Item: "storage", Name: "data", Detail: "x"}},
		Names:   []string{"data"},
	}, b.Err
}

// Declare implements userapi.Backend.
func (b *Backend) Declare(_ context.Context, on user.Condition, declared user.Declaration) error {
	b.record("declare %+v %+v", on, declared)
	return b.Err
}

// RemoveIf implements userapi.Backend.
func (b *Backend) RemoveIf(_ context.Context, on user.Condition) error {
	b.record("remove if %+v", on)
	return b.Err
}

// Storage implements userapi.Backend.
func (b *Backend) Storage(_ context.Context, names []string) ([]user.Storage, error) {
	b.record("storage %q", names)
	return b.Storages, b.Err
}

// Look implements userapi.Backend.
func (b *Backend) Look(_ context.Context, names []string) ([]user.StorageLook, error) {
	b.record("look %q", names)
	return b.Looks, b.Err
}

// Usage implements userapi.Backend.
func (b *Backend) Usage(_ context.Context, names []string) (user.UsageList, error) {
	b.record("usage %q", names)
	return user.UsageList{Storage: []user.MeasuredStorage{}}, b.Err
}

// Events implements userapi.Backend.
func (b *Backend) Events(_ context.Context, args user.EventsArgs) ([]user.StorageEvent, error) {
	b.record("events %+v", args)
	return []user.StorageEvent{{Time: time.Unix(1e9, 0).UTC(), Storage: "a", Number: 1, Type: "added", SizeMiB: 16, By: "uid 0"}}, b.Err
}

// Watch implements userapi.Backend.
func (b *Backend) Watch(ctx context.Context, args user.WatchArgs, send func(user.Event) error) error {
	b.record("watch %+v", args)
	b.Watching <- "begun"
	defer func() { b.Watching <- "ended" }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-b.Watched:
			if !ok {
				return b.Err
			}
			if err := send(event); err != nil {
				return err
			}
		}
	}
}

// Attach implements userapi.Backend.
func (b *Backend) Attach(_ context.Context, args user.AttachArgs) (user.ChangesResult, error) {
	b.record("attach %+v", args)
	return user.ChangesResult{Changes: []user.Change{{Action: "x", Name: "data"}}}, b.Err
}

// Claims implements userapi.Backend.
func (b *Backend) Claims(_ context.Context, names []string) ([]user.Claim, error) {
	b.record("claims %q", names)
	return b.ClaimList, b.Err
}

// Claim implements userapi.Backend.
func (b *Backend) Claim(_ context.Context, name string, request user.ClaimRequest) error {
	b.record("claim %s %+v", name, request)
	return b.Err
}

// Unclaim implements userapi.Backend.
func (b *Backend) Unclaim(_ context.Context, name string) error {
	b.record("unclaim %s", name)
	return b.Err
}

// Offer implements userapi.Backend.
func (b *Backend) Offer(_ context.Context, names []string) error {
	b.record("offer %q", names)
	return b.Err
}

// Snapshots implements userapi.Backend.
func (b *Backend) Snapshots(_ context.Context, names []string) ([]user.Snapshot, error) {
	b.record("snapshots %q", names)
	return b.SnapshotList, b.Err
}

// CreateSnapshot implements userapi.Backend.
func (b *Backend) CreateSnapshot(_ context.Context, name string, request user.SnapshotRequest) error {
	b.record("create snapshot %s %+v", name, request)
	return b.Err
}

// DeleteSnapshot implements userapi.Backend.
func (b *Backend) DeleteSnapshot(_ context.Context, name string, force bool) error {
	b.record("delete snapshot %s %t", name, force)
	return b.Err
}

// AwaitSnapshot implements userapi.Backend.
func (b *Backend) AwaitSnapshot(ctx context.Context, name string) error {
	_, limited := ctx.Deadline()
	b.record("await snapshot %s %t", name, limited)
	return b.Err
}

// Machines implements userapi.Backend.
func (b *Backend) Machines(context.Context) ([]user.Machine, error) {
	b.record("machines")
	return []user.Machine{{Name: "web", Number: "1", Status: user.MachineUp, LastSeen: time.Unix(1e9, 0).UTC()}}, b.Err
}

// Move implements userapi.Backend.
func (b *Backend) Move(_ context.Context, args user.MoveArgs) (user.MoveResult, error) {
	b.record("move %+v", args)
	return user.MoveResult{Machines: map[string]string{"a": "web"}}, b.Err
}

// Servers implements userapi.Backend.
func (b *Backend) Servers(context.Context) ([]user.Server, error) {
	b.record("servers")
	return []user.Server{{Name: "a-1", Address: "10.0.0.1:7118", Status: user.ServerUp, Leader: true, EtcdVersion: "3.7.3"}}, b.Err
}

// RemoveServer implements userapi.Backend.
func (b *Backend) RemoveServer(_ context.Context, args user.RemoveServerArgs) error {
	b.record("remove-server %+v", args)
	return b.Err
}

// DrainMachine implements userapi.Backend.
func (b *Backend) DrainMachine(_ context.Context, args user.MachineArgs) (user.DrainMachineResult, error) {
	b.record("drain-machine %+v", args)
	return user.DrainMachineResult{Machines: map[string]string{"a": "web"}, Stays: []string{"b"}}, b.Err
}

// UndrainMachine implements userapi.Backend.
func (b *Backend) UndrainMachine(_ context.Context, args user.MachineArgs) error {
	b.record("undrain-machine %+v", args)
	return b.Err
}

// LabelMachine implements userapi.Backend.
func (b *Backend) LabelMachine(_ context.Context, args user.LabelMachineArgs) error {
	b.record("label-machine %+v", args)
	return b.Err
}

// FenceMachine implements userapi.Backend.
func (b *Backend) FenceMachine(_ context.Context, args user.FenceMachineArgs) error {
	b.record("fence-machine %+v", args)
	return b.Err
}

// RemoveMachine implements userapi.Backend.
func (b *Backend) RemoveMachine(_ context.Context, args user.RemoveMachineArgs) error {
	b.record("remove-machine %+v", args)
	return b.Err
}

// CreateToken implements userapi.Backend.
func (b *Backend) CreateToken(_ context.Context, args user.CreateTokenArgs) (string, error) {
	b.record("create-token %+v", args)
	return "a.b.c", b.Err
}

// Tokens implements userapi.Backend.
func (b *Backend) Tokens(context.Context) ([]user.Token, error) {
	b.record("tokens")
	return []user.Token{{ID: "b", Uses: 1}}, b.Err
}

// RemoveTokens implements userapi.Backend.
func (b *Backend) RemoveTokens(_ context.Context, ids []string) error {
	b.record("remove-tokens %q", ids)
	return b.Err
}

// Users implements userapi.Backend.
func (b *Backend) Users(context.Context) ([]user.User, error) {
	b.record("users")
	return []user.User{{Name: "ann", Role: "viewer", Enrolled: time.Unix(1e9, 0).UTC()}}, b.Err
}

// RemoveUsers implements userapi.Backend.
func (b *Backend) RemoveUsers(_ context.Context, names []string) error {
	b.record("remove-users %q", names)
	return b.Err
}

// Detach implements userapi.Backend.
func (b *Backend) Detach(_ context.Context, names []string) error {
	b.record("detach %q", names)
	return b.Err
}

// Remove implements userapi.Backend.
func (b *Backend) Remove(_ context.Context, args user.RemoveArgs) error {
	b.record("remove %+v", args)
	return b.Err
}

// Release implements userapi.Backend.
func (b *Backend) Release(_ context.Context, args user.RemoveArgs) error {
	b.record("release %+v", args)
	return b.Err
}

// Retry implements userapi.Backend.
func (b *Backend) Retry(_ context.Context, names []string) error {
	b.record("retry %q", names)
	return b.Err
}

// Format implements userapi.Backend.
func (b *Backend) Format(_ context.Context, names []string) error {
	b.record("format %q", names)
	return b.Err
}

// Orphans implements userapi.Backend.
func (b *Backend) Orphans(_ context.Context, machine string) (user.OrphanList, error) {
	b.record("orphans %q", machine)
	return user.OrphanList{
		Orphans:  []user.Orphan{{Name: "lost", State: user.OrphanLost}},
		NotAsked: []user.NotAsked{{Machine: "db", Reason: "off"}},
	}, b.Err
}

// Adopt implements userapi.Backend.
func (b *Backend) Adopt(_ context.Context, args user.AdoptArgs) (user.ChangesResult, error) {
	b.record("adopt %+v", args)
	return user.ChangesResult{Changes: []user.Change{{Action: "x", Name: "data"}}}, b.Err
}

// DeleteOrphan implements userapi.Backend.
func (b *Backend) DeleteOrphan(_ context.Context, args user.DeleteOrphanArgs) (user.DeleteOrphanResult, error) {
	b.record("delete-orphan %+v", args)
	return user.DeleteOrphanResult{Deleted: []user.Orphan{{Name: "lost", State: user.OrphanLost}}, Until: time.Unix(1e9, 0).UTC()}, b.Err
}

// Backup implements userapi.Backend.
func (b *Backend) Backup(_ context.Context, args user.BackupArgs) (user.BackupResult, error) {
	b.record("backup %+v", args)
	return user.BackupResult{UUID: "u", Generation: 2, Schema: 4, Bytes: 4096}, b.Err
}

// Rename implements userapi.Backend.
func (b *Backend) Rename(_ context.Context, args user.RenameArgs) (user.ChangesResult, error) {
	b.record("rename %+v", args)
	return user.ChangesResult{Changes: []user.Change{{Action: "x", Name: "data"}}}, b.Err
}

// Resize implements userapi.Backend.
func (b *Backend) Resize(_ context.Context, args user.ResizeArgs) (user.ChangesResult, error) {
	b.record("resize %+v", args)
	return user.ChangesResult{Changes: []user.Change{{Action: "x", Name: "data"}}}, b.Err
}

// Import implements userapi.Backend.
func (b *Backend) Import(_ context.Context, args user.ImportArgs) (user.ChangesResult, error) {
	b.record("import %+v", args)
	return user.ChangesResult{Changes: []user.Change{{Action: "x", Name: "data"}}}, b.Err
}

// Pools implements userapi.Backend.
func (b *Backend) Pools(context.Context) ([]user.Pool, error) {
	b.record("pools")
	return []user.Pool{{Name: "loop", Provider: "loop", Attributes: map[string]any{"fs": "xfs"}}}, b.Err
}

// AddPool implements userapi.Backend.
func (b *Backend) AddPool(_ context.Context, args user.AddPoolArgs) error {
	b.record("add pool %+v", args)
	return b.Err
}

// RemovePools implements userapi.Backend.
func (b *Backend) RemovePools(_ context.Context, names []string) error {
	b.record("remove pools %q", names)
	return b.Err
}

// Report implements userapi.Backend.
func (b *Backend) Report(context.Context) (map[string]any, error) {
	b.record("report")
	return map[string]any{"state": "started"}, b.Err
}
