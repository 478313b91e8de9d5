package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// backup is an older state, and what was wanted then.
type backup struct {
	path string
	// copied says that it is a plain copy of the state file, not one made by the command.
	copied bool
	want   map[*instance]*want
	// unmade are the instances that may not have been made: nobody had seen them attached.
	unmade map[*instance]bool
	// made is how often storage had been created, and moved how often the directory had been
	// moved.
	made, moved int
}

// goBack restores the older state if there is one, and takes the next backup.
func (s *soak) goBack() error {
	if s.backup != nil {
		if err := s.restore(s.backup); err != nil {
			return fmt.Errorf("restoring %s: %w", s.backup.path, err)
		}
		if s.rand.IntN(4) == 0 { // it may be needed once more
			return nil
		}
		if err := s.dropBackup(); err != nil {
			return err
		}
	}
	return s.takeBackup()
}

// dropBackup removes the older state, which is no longer useful.
func (s *soak) dropBackup() error {
	if s.backup == nil {
		return nil
	}
	path := s.backup.path
	s.backup = nil
	return os.Remove(path)
}

func (s *soak) takeBackup() error {
	s.figures.backups++
	b := &backup{
		path:   filepath.Join(s.dir, fmt.Sprintf("backup-%d", s.figures.backups)),
		copied: s.rand.IntN(3) == 0,
		want:   map[*instance]*want{},
		unmade: map[*instance]bool{},
	}
	busy := false
	if b.copied {
		if err := s.halt(); err != nil {
			return err
		}
		if err := s.offlineCopy(s.statePath(), b.path); err != nil {
			return err
		}
		if err := s.start(); err != nil {
			return err
		}
	} else {
		if s.rand.IntN(2) == 0 { // while the agent is busy
			busy = true
			if err := s.operateOnce(); err != nil {
				return err
			}
		}
		if err := s.must(s.stowage, "backup", b.path); err != nil {
			return err
		}
	}
	for _, i := range s.all {
		if b.want[i] = nil; i.want != nil {
			w := *i.want
			b.want[i] = &w
		}
		b.unmade[i] = busy || !i.made
	}
	b.made, b.moved = s.figures.creations, s.figures.moves
	s.backup = b
	return nil
}

// operateOnce makes a request, if there is one to make.
func (s *soak) operateOnce() error {
	o, err := s.nextOperation(nil)
	if o == nil || err != nil {
		return err
	}
	return s.operate(o)
}

func (s *soak) statePath() string { return filepath.Join(s.stowage.DataDir, stateFile) }

// offlineCopy copies the state file as a user does without the command.
func (s *soak) offlineCopy(from, to string) error {
	s.note("cp %s %s", from, to)
	_, err := program("cp", from, to)
	return err
}

// restore restores an older state, and checks what becomes of everything that was made,
// removed, attached and detached since.
func (s *soak) restore(b *backup) error {
	s.figures.restores++
	if s.rand.IntN(3) == 0 { // the agent is busy with it when it ends
		if err := s.operateOnce(); err != nil {
			return err
		}
	}
	if err := s.halt(); err != nil {
		return err
	}
	if b.copied {
		s.figures.copiedBack++
		if err := s.offlineCopy(b.path, s.statePath()); err != nil {
			return err
		}
	} else if err := s.restoreFile(b); err != nil {
		return err
	}
	if s.figures.moves > b.moved {
		if err := s.adoptMoved(); err != nil {
			return err
		}
	}
	if err := s.start(); err != nil {
		return err
	}
	if s.rand.IntN(3) == 0 {
		delay := s.delay()
		<-time.After(delay)
		s.note("kill -9 %s after the start with an older state", delay)
		if err := errors.Join(s.kill(), s.start()); err != nil {
			return err
		}
	}
	if err := s.deleteAllSnapshots(); err != nil {
		return err
	}
	since := s.rewind(b)
	if err := s.acceptInUse(since.inUse); err != nil {
		return err
	}
	if err := s.removeMissing(b, since); err != nil {
		return err
	}
	if err := s.claimOrphans(since.made); err != nil {
		return err
	}
	return s.converge(time.Now())
}

// restoreFile uses the command, which keeps the replaced state.
func (s *soak) restoreFile(b *backup) error {
	if err := s.offline(s.stowage, "restore", b.path); err != nil {
		return err
	}
	replaced, err := filepath.Glob(s.statePath() + ".replaced-*")
	if err != nil {
		return err
	}
	if len(replaced) == 0 {
		return errors.New("the state that was replaced is not kept")
	}
	for _, path := range replaced {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// since is what has changed since a backup.
type since struct {
	made    []*instance // not in the backup
	removed []*instance // removed or being removed, and in the backup
	inUse   []*instance // may be attached, and is detached in the backup
}

// rewind resets the model to the time of the backup, and returns what has changed since.
func (s *soak) rewind(b *backup) since {
	var all since
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		if i := s.all[name]; !hasKey(b.want, i) {
			all.made = append(all.made, i)
		}
	}
	now := s.all
	s.all = map[string]*instance{}
	for _, i := range slices.SortedFunc(maps.Keys(b.want), func(a, b *instance) int { return strings.Compare(a.name, b.name) }) {
		w := b.want[i]
		switch {
		case w == nil:
		case now[i.name] != i || i.want == nil:
			all.removed = append(all.removed, i)
		case !w.attached && (i.want.attached || i.settled == nil):
			all.inUse = append(all.inUse, i)
		}
		i.settled = nil
		if i.want = nil; w != nil {
			wanted := *w
			i.want = &wanted
		}
		s.all[i.name] = i
	}
	for _, i := range all.removed {
		i.data, i.made = map[string]datum{}, false
		if now[i.name] != i {
			i.objects = map[object]string{}
		}
	}
	s.note("made since: %s; removed since: %s; attached since: %s", namesOf(all.made), namesOf(all.removed), namesOf(all.inUse))
	return all
}

func hasKey(m map[*instance]*want, i *instance) bool { _, ok := m[i]; return ok }

func namesOf(all []*instance) []string {
	var names []string
	for _, i := range all {
		names = append(names, i.name)
	}
	return names
}

// acceptInUse accepts that storage is attached that was in use when the older state was
// restored, or attaches it if the agent has not noticed the restore.
func (s *soak) acceptInUse(inUse []*instance) error {
	ctx, cancel := limited()
	defer cancel()
	status, err := s.stowage.Status(ctx)
	if err != nil {
		return err
	}
	var detached []*instance
	for _, i := range inUse {
		s.figures.inUse++
		if row := status[i.name]; len(row.Attachments) > 0 && row.Attachments[0].Life == "alive" {
			i.want.attached = true
			continue
		}
		if i.volatile {
			i.data = map[string]datum{}
		}
		detached = append(detached, i)
	}
	return s.attach(detached)
}

// attach attaches all, once none of them is being detached any more.
func (s *soak) attach(all []*instance) error {
	o := change("attach", all, func(w want) *want { w.attached = true; return &w })
	if o == nil {
		return nil
	}
	o.mayBeRefused = false
	err := s.awaitStatus(func(status map[string]command.Storage) error {
		for _, i := range all {
			if row := status[i.name]; len(row.Attachments) > 0 && row.Attachments[0].Life != "alive" {
				return fmt.Errorf("%s is being detached still: %+v", i.name, row)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.operate(o)
}

// awaitStatus waits until the agent's status passes the check.
func (s *soak) awaitStatus(check func(map[string]command.Storage) error) error {
	ctx, cancel := limited()
	defer cancel()
	return eventually(liveness, func() error {
		status, err := s.stowage.Poll(ctx)
		if err != nil {
			return err
		}
		return check(status)
	})
}

// removeMissing checks that storage that was removed after the backup is reported as missing,
// and removes it. Storage that had not been made at the time of the backup is made again, and
// storage that still existed when the agent ended is attached, unless newer storage of the same
// name is mounted there.
func (s *soak) removeMissing(b *backup, since since) error {
	removed := since.removed
	if len(removed) == 0 {
		return nil
	}
	newer := map[string]bool{}
	for _, i := range since.made {
		newer[i.name] = true
	}
	detached := slices.DeleteFunc(slices.Clone(removed), func(i *instance) bool { return i.want.attached })
	if s.rand.IntN(2) == 0 {
		if err := s.attach(detached); err != nil {
			return err
		}
	}
	// A copy that is behind by no more than a crash may have lost is not recognized as a copy.
	noticed := !b.copied || s.figures.creations > b.made+1
	err := s.awaitStatus(func(status map[string]command.Storage) error {
		for _, i := range removed {
			row := status[i.name]
			missing := row.Status == "error" && (strings.HasPrefix(row.Message, "missing") || !noticed)
			there := (b.unmade[i] || len(i.objects) > 0) && row.Status == "attached"
			// Its filesystem was made and destroyed since, and its volume was not.
			cleared := b.unmade[i] && row.Status == "error" && strings.Contains(row.Message, "not blank")
			covered := b.unmade[i] && newer[i.name] && row.Status == "error" && strings.Contains(row.Message, " is mounted at "+i.mount)
			lacking := b.unmade[i] && i.lacksOrigin(row)
			if i.want.attached && !missing && !there && !cleared && !covered && !lacking {
				return fmt.Errorf("%s, which was removed after the backup, should be missing: %+v", i.name, row)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.figures.missing += len(removed)
	o := change("remove", removed, func(want) *want { return nil })
	o.args = append(o.args, "--wait")
	if err := s.operate(o); err != nil {
		return err
	}
	for _, i := range removed {
		delete(s.all, i.name) // a newer instance may have the name
	}
	return nil
}
