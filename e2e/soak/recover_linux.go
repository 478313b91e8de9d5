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

// loseState deletes the state, and recovers it: from its copies, or from the records of
// storage alone. Without any storage, the directory would be that of a new agent.
func (s *soak) loseState() error {
	if len(s.all) == 0 {
		return nil
	}
	s.figures.losses++
	if err := s.halt(); err != nil {
		return err
	}
	if s.rand.IntN(2) == 0 {
		if err := s.unmountAllStorage(); err != nil {
			return err
		}
	}
	lost, copies := []string{s.statePath()}, true
	if s.rand.IntN(2) == 0 {
		beside, err := filepath.Glob(filepath.Join(s.stowage.DataDir, "state.*"))
		if err != nil {
			return err
		}
		lost, copies = beside, false
	}
	for _, path := range lost {
		s.note("rm %s", path)
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if err := s.refusesToStart(s.stowage, "stowage recover"); err != nil {
		return err
	}
	args := []string{"recover", "--data-dir", s.stowage.DataDir}
	if s.driver != nil {
		args = append(args, "--plugins-dir", s.driver.plugins)
	}
	if err := s.must(s.stowage, args...); err != nil {
		return err
	}
	if err := s.refusesToStart(s.stowage, "stowage recover"); err != nil {
		return fmt.Errorf("after a look at what there is: %w", err)
	}
	if err := s.offline(s.stowage, append(args, "--yes")...); err != nil {
		return err
	}
	if !copies {
		clear(s.numbers) // numbers of removed storage, which are no longer known
	}
	if err := s.start(); err != nil {
		return err
	}
	if err := s.deleteAllSnapshots(); err != nil {
		return err
	}
	if err := s.attachRecovered(copies); err != nil {
		return err
	}
	return s.dropBackup() // it has storage that was recovered differently
}

// attachRecovered attaches everything that was recovered, which must be everything that
// existed. A copy of the state may be older: it may have storage that was removed since, and
// storage that is attached in it stays attached.
func (s *soak) attachRecovered(copies bool) error {
	ctx, cancel := limited()
	defer cancel()
	status, err := s.stowage.Status(ctx)
	if err != nil {
		return err
	}
	if copies {
		if err := s.rename(status); err != nil {
			return err
		}
	}
	var detached, unwanted []*instance
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		i := s.all[name]
		row, there := status[name]
		inUse := len(row.Attachments) > 0
		attached := inUse && row.Attachments[0].Life == "alive"
		switch {
		case !there && !i.made:
			s.note("%s had not been made", name)
			delete(s.all, name)
			continue
		case !there, !copies && (inUse || i.shrunk(row)):
			err = errors.Join(err, fmt.Errorf("%s, which was %s, was recovered as %+v", name, i.want, row))
			continue
		case !i.made: // its filesystem may not have been made
			unwanted = append(unwanted, i)
		case !inUse:
			detached = append(detached, i)
		}
		if i.volatile {
			i.data = map[string]datum{}
		}
		i.want, i.settled = &want{attached: attached, size: row.WantedMiB}, nil
	}
	if err != nil {
		return err
	}
	s.figures.recovered += len(s.all) - len(unwanted)
	if err := s.removeRecovered(unwanted, status, copies); err != nil {
		return err
	}
	if err := s.attach(detached); err != nil {
		return err
	}
	return s.converge(time.Now())
}

// rename follows storage to the name under which it was recovered because an older copy of the
// state has other storage of its name: storage that was removed since, or is missing.
func (s *soak) rename(status map[string]command.Storage) error {
	recovered := map[string]string{}
	for name, row := range status {
		if strings.Contains(name, recoveredSuffix) {
			recovered[row.Volume+" "+row.Filesystem] = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		i := s.all[name]
		if i.settled == nil {
			continue // its numbers are not known
		}
		as, renamed := recovered[i.settled.Volume+" "+i.settled.Filesystem]
		if !renamed || as == name {
			continue
		}
		s.note("%s is %s now", name, as)
		if _, taken := s.all[as]; taken {
			return fmt.Errorf("%s was recovered as %s, which was there", name, as)
		}
		delete(s.all, name)
		i.name = as
		s.all[as] = i
	}
	return nil
}

// recoveredSuffix is in the new name of recovered storage.
const recoveredSuffix = ".recovered-"

// removeRecovered removes storage that was never complete, and storage that had been removed.
func (s *soak) removeRecovered(unwanted []*instance, status map[string]command.Storage, copies bool) error {
	for name, row := range status {
		if s.all[name] != nil || copies && row.Life != "alive" {
			continue
		}
		if !copies {
			return fmt.Errorf("recovered what was not there: %+v", row)
		}
		s.figures.missing++
		if err := s.must(s.stowage, "remove", "--wait", name); err != nil {
			return err
		}
	}
	if len(unwanted) == 0 {
		return nil
	}
	return s.operate(change("remove", unwanted, func(want) *want { return nil }))
}
