package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/e2e/internal/command"
)

// mostSnapshots is how many snapshots there are at most at a time, and mostLargeSnapshots how many of
// them are of large volumes.
const (
	mostSnapshots      = 4
	mostLargeSnapshots = 1
	large              = 200 // MiB
)

// snapshot is a snapshot that the user has requested.
type snapshot struct {
	name string
	of   *instance // its volume may be gone
	*kind
	// wanted says that the snapshot is to exist, and settled that it was shown as made since.
	wanted, settled bool
	// uuid names its files, once it is settled, and size is that of the volume, in MiB.
	uuid string
	size uint64
	// data was synced to the storage before the request.
	data map[string]datum
}

// nextSnapshot chooses a request that makes a snapshot, deletes some, or makes storage from one. It
// returns nil if that is not possible.
func (s *soak) nextSnapshot(free []*instance, flying []*operation) (*operation, error) {
	var settled, unneeded []*snapshot
	for _, name := range slices.Sorted(maps.Keys(s.snapshots)) {
		one := s.snapshots[name]
		if !one.settled || slices.ContainsFunc(slices.Concat(flying, s.doubtful), one.isIn) {
			continue
		}
		settled = append(settled, one)
		needed := func(i *instance) bool { return i.from == one && !i.made }
		if !slices.ContainsFunc(slices.Collect(maps.Values(s.all)), needed) {
			unneeded = append(unneeded, one)
		}
	}
	switch n := s.rand.IntN(9); {
	case n < 4:
		return s.makeSnapshot(free), nil
	case n < 5 && len(unneeded) > 0:
		s.rand.Shuffle(len(unneeded), func(i, j int) { unneeded[i], unneeded[j] = unneeded[j], unneeded[i] })
		return deleteSnapshots(unneeded[:1+s.rand.IntN(min(2, len(unneeded)))]), nil
	case n >= 5 && len(settled) > 0:
		return s.createFrom(settled[s.rand.IntN(len(settled))])
	}
	return nil, nil
}

// isIn reports whether the operation makes, deletes or uses the snapshot.
func (one *snapshot) isIn(o *operation) bool {
	if slices.Contains(o.snapshots, one) {
		return true
	}
	for i := range o.after {
		if i.from == one {
			return true
		}
	}
	return false
}

// makeSnapshot makes a snapshot of one of the instances.
func (s *soak) makeSnapshot(free []*instance) *operation {
	name := fmt.Sprintf("snapshot-%d", s.rand.IntN(2*mostSnapshots)) // possibly a former name
	largeOnes := 0
	for _, other := range s.snapshots {
		if other.size >= large {
			largeOnes++
		}
	}
	free = slices.DeleteFunc(slices.Clone(free), func(i *instance) bool {
		return !i.onVolume() || i.settled == nil || i.settled.SizeMiB >= large && largeOnes >= mostLargeSnapshots
	})
	if len(free) == 0 || s.snapshots[name] != nil || len(s.snapshots) >= mostSnapshots {
		return nil
	}
	i := free[s.rand.IntN(len(free))]
	one := &snapshot{name: name, of: i, kind: i.kind, size: i.settled.SizeMiB, data: maps.Clone(i.data)}
	s.snapshots[name] = one
	w := *i.want
	// The storage counts as changed, so that nobody writes to it before the snapshot is made.
	o := &operation{args: []string{"snapshot", "create", name, i.name}, after: map[*instance]*want{i: &w}, snapshots: []*snapshot{one}, wanted: true}
	return s.perhapsWait(o)
}

func deleteSnapshots(all []*snapshot) *operation {
	o := &operation{args: []string{"snapshot", "delete"}, snapshots: all}
	for _, one := range all {
		o.args = append(o.args, one.name)
	}
	return o
}

// createFrom declares storage that gets the contents of the snapshot.
func (s *soak) createFrom(one *snapshot) (*operation, error) {
	o := &operation{after: map[*instance]*want{}}
	name := fmt.Sprintf("%s-%d", one.kind.name, s.rand.IntN(4*one.many))
	for n := 0; n < 10 && s.taken(name, o); n++ {
		name = fmt.Sprintf("%s-%d", one.kind.name, s.rand.IntN(4*one.many))
	}
	if s.count(one.kind, o) >= one.many || s.taken(name, o) {
		return nil, nil
	}
	size := one.size + uint64(s.rand.IntN(2))*one.grow
	if one.filesystem == "ext4" && !s.growsExt4 {
		size = one.size
	}
	i := newInstance(name, one.kind, size, filepath.Join(s.mounts, name))
	i.from, i.data, i.written, i.grown = one, maps.Clone(one.data), one.of.written, size > one.size
	o.after[i] = &want{attached: true, size: size}
	text := one.kind.declaration(name, size, 1, i.mount) + fmt.Sprintf("  from: %s\n", one.name)
	return o, s.declare(o, "storage:\n"+text)
}

// snapshotList returns the agent's list of snapshots, by name.
func (s *soak) snapshotList() (map[string]user.Snapshot, error) {
	r, err := s.command("snapshot", "list", "-o", "json")
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("refused:\n%s", r.All())
	}
	if err != nil {
		return nil, err
	}
	var list []user.Snapshot
	if err := json.Unmarshal([]byte(r.Stdout), &list); err != nil {
		return nil, fmt.Errorf("the list of snapshots: %w", err)
	}
	found := map[string]user.Snapshot{}
	for _, row := range list {
		found[row.Name] = row
	}
	return found, nil
}

// hadEffect reports whether the list shows that the agent has recorded a request that makes or deletes
// snapshots. It fails if only a part of what was acknowledged is there.
func (o *operation) hadEffect(list map[string]user.Snapshot) bool {
	for _, one := range o.snapshots {
		row, there := list[one.name]
		if there = there && row.Status != user.SnapshotDeleting; there != o.wanted {
			return false
		}
	}
	return true
}

// resolveSnapshots determines what has become of an interrupted request that makes or deletes snapshots.
// Each snapshot is deleted by itself.
func (s *soak) resolveSnapshots(o *operation) error {
	list, err := s.snapshotList()
	if err != nil {
		return err
	}
	for _, one := range o.snapshots {
		single := &operation{args: o.args, after: o.after, snapshots: []*snapshot{one}, wanted: o.wanted}
		if single.hadEffect(list) {
			s.figures.tookEffect++
			s.note("%q had taken effect on %s", o.args, one.name)
			s.took(single)
			continue
		}
		s.note("%q had no effect on %s", o.args, one.name)
	}
	return nil
}

// tookSnapshots records that a request that makes or deletes snapshots has taken effect.
func (s *soak) tookSnapshots(o *operation) {
	for _, one := range o.snapshots {
		one.wanted, one.settled = o.wanted, false
		if o.wanted {
			s.figures.snapshots++
		}
	}
}

// cannotCopy reports whether a message says that a volume is in use, and cannot be copied: it is a block
// device, or would have to be frozen for too long. A filesystem that copies by reference copies it.
func (s *soak) cannotCopy(message string) bool {
	return s.dataDisk.kind == "ext4" && strings.Contains(message, "detach it, or use a data directory on xfs or btrfs")
}

// shownSnapshots checks the list of snapshots that the agent shows.
func (p *problems) shownSnapshots() error {
	list, err := p.snapshotList()
	if err != nil {
		return err
	}
	p.listed = list
	for name, row := range list {
		if one := p.snapshots[name]; one == nil || !one.wanted {
			p.add("snapshot %s is not gone: %+v", name, row)
		}
	}
	for name, one := range p.snapshots {
		row := list[name]
		if one.wanted && row.Status == user.SnapshotFailed && p.cannotCopy(row.Message) {
			if err := p.operate(deleteSnapshots([]*snapshot{one})); err != nil {
				return err
			}
			p.figures.inUseSnapshots++
		}
		if one.wanted && (row.Status != user.SnapshotReady || row.SizeMiB < one.size || one.uuid != "" && one.uuid != row.UUID) {
			p.add("snapshot %s of %d MiB is not ready: %+v", name, one.size, row)
		}
	}
	return nil
}

// snapshotFiles checks that the files and records of snapshots are those of the snapshots in the list.
func (p *problems) snapshotFiles() error {
	required := map[string]bool{}
	for _, row := range p.listed {
		required["volumes/snapshot-"+row.UUID], required["records/snapshot-"+row.UUID+".json"] = true, true
	}
	top := filepath.Join(p.boundStorage(), snapshotDir)
	found, err := filepath.Glob(top + "/*/*")
	if err != nil {
		return err
	}
	for _, path := range found {
		path = path[len(top)+1:]
		if !required[path] {
			p.add("%s/%s is nobody's", snapshotDir, path)
		}
		delete(required, path)
	}
	for path := range required {
		p.add("%s/%s is missing", snapshotDir, path)
	}
	return nil
}

// snapshotDir has the snapshots of loop volumes, below the directory of all storage.
const snapshotDir = "loop/snapshots"

// settleSnapshots records that all snapshots are as wanted.
func (s *soak) settleSnapshots(list map[string]user.Snapshot) {
	for name, one := range s.snapshots {
		if !one.wanted {
			delete(s.snapshots, name)
			continue
		}
		one.settled, one.uuid, one.size = true, list[name].UUID, list[name].SizeMiB
	}
}

// deleteAllSnapshots deletes the snapshots that the agent lists after its state was replaced: some of them
// may be gone. What was made since is an orphan, and is deleted, too.
func (s *soak) deleteAllSnapshots() error {
	list, err := s.snapshotList()
	if err != nil {
		return err
	}
	if names := slices.Sorted(maps.Keys(list)); len(names) > 0 {
		if err := s.must(s.stowage, append([]string{"snapshot", "delete", "--wait"}, names...)...); err != nil {
			return err
		}
	}
	ctx, cancel := limited()
	defer cancel()
	orphans, err := s.stowage.Orphans(ctx)
	if err != nil {
		return err
	}
	for _, o := range orphans {
		if o.Kind != "snapshot" {
			continue
		}
		known := slices.ContainsFunc(slices.Collect(maps.Values(s.snapshots)), func(one *snapshot) bool {
			return one.name == o.Name && (one.uuid == "" || one.uuid == o.UUID)
		})
		if !known || o.State != "orphan" {
			return fmt.Errorf("a snapshot that was not made since: %+v", o)
		}
		if err := s.must(s.stowage, "delete", o.UUID, "--now"); err != nil {
			return err
		}
		s.figures.deleted++
	}
	clear(s.snapshots)
	return nil
}

// deleteCopiedSnapshots deletes the snapshots of a copy of the directory, which must be those of the
// original.
func (s *soak) deleteCopiedSnapshots(second command.Stowage) error {
	if len(s.snapshots) == 0 {
		return nil
	}
	return s.must(second, append([]string{"snapshot", "delete", "--wait"}, slices.Sorted(maps.Keys(s.snapshots))...)...)
}

// lacksOrigin reports whether the agent shows storage as not made because its snapshot is gone.
func (i *instance) lacksOrigin(row command.Storage) bool {
	return i.from != nil && strings.Contains(row.Message, "opening the original") && strings.Contains(row.Message, "not found")
}
