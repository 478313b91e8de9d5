package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// claim is what is done with an orphan.
type claim struct {
	*instance
	what what
	args []string
	err  error
}

type what int

const (
	deleted what = iota
	// adopted storage is attached then, with its data.
	adopted
	// unwanted storage may not be complete, or was being removed: it is adopted, and
	// removed then.
	unwanted
)

// claimOrphans adopts and deletes what the agent has no storage for, and attaches what
// was adopted. Nothing else may be an orphan.
func (s *soak) claimOrphans(made []*instance) error {
	ctx, cancel := limited()
	defer cancel()
	list, err := s.stowage.Orphans(ctx)
	if err != nil {
		return err
	}
	// A filesystem on a volume comes with that.
	left := slices.DeleteFunc(slices.Clone(list), func(o command.Orphan) bool {
		return o.Provider == "managed" && slices.ContainsFunc(made, func(i *instance) bool { return i.onVolume() && i.is(o) })
	})
	var claims []*claim
	for _, i := range made {
		at := slices.IndexFunc(left, i.is)
		if at < 0 {
			if i.made && i.want != nil {
				return fmt.Errorf("%s, which was made after the backup, is no orphan: %+v", i.name, list)
			}
			s.note("%s had not been made, or was removed", i.name)
			continue
		}
		o := left[at]
		left = slices.Delete(left, at, at+1)
		if i.settled != nil && o.Attached != i.want.attached && !i.volatile {
			return fmt.Errorf("%s was %s, and is an orphan otherwise: %+v", i.name, i.want, o)
		}
		claims = append(claims, s.claim(i, o))
	}
	if len(left) > 0 {
		return fmt.Errorf("orphans that were not made after the backup: %+v", left)
	}
	return s.carryOut(claims)
}

// is tells whether an orphan is the instance's.
func (i *instance) is(o command.Orphan) bool {
	if name := i.objects[object(o.Kind)]; name != "" {
		return o.State == "orphan" && o.ID == name
	}
	return o.State == "orphan" && o.Name == i.name
}

// claim decides what is done with an orphan. It is adopted under another name where there
// is storage with its own.
func (s *soak) claim(i *instance, o command.Orphan) *claim {
	if !o.Attached && s.rand.IntN(3) == 0 {
		s.figures.deleted++
		return &claim{instance: i, what: deleted, args: []string{"delete", o.UUID, "--now"}}
	}
	c := &claim{instance: i, what: adopted, args: []string{"adopt", o.UUID}}
	s.figures.adopted++
	if i.want == nil || !i.made {
		i.data, i.want, i.settled = map[string]datum{}, &want{}, nil
		c.what = unwanted
	}
	if i.name = o.Name; s.taken(i.name, &operation{}) {
		i.name = fmt.Sprintf("%s-%d", i.kind.name, 1000+s.figures.adopted)
		c.args = append(c.args, "--as", i.name)
	}
	s.all[i.name] = i
	return c
}

// carryOut runs the commands at the same time, for each looks twice.
func (s *soak) carryOut(claims []*claim) error {
	var running sync.WaitGroup
	for _, c := range claims {
		running.Go(func() {
			r, err := s.command(c.args...)
			if err == nil && r.Code != 0 {
				err = fmt.Errorf("refused:\n%s", r.All())
			}
			c.err = err
		})
	}
	running.Wait()
	var all [3][]*instance
	for _, c := range claims {
		s.note("%q: %v", c.args, c.err)
		if c.err != nil {
			return c.err
		}
		all[c.what] = append(all[c.what], c.instance)
	}
	if err := s.adopted(slices.Concat(all[adopted], all[unwanted])); err != nil {
		return err
	}
	if len(all[unwanted]) > 0 {
		if err := s.operate(change("remove", all[unwanted], func(want) *want { return nil })); err != nil {
			return err
		}
	}
	return s.attach(all[adopted])
}

// adopted checks that storage was adopted, detached and as large as it was.
func (s *soak) adopted(all []*instance) error {
	ctx, cancel := limited()
	defer cancel()
	status, err := s.stowage.Status(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		row, ok := status[i.name]
		if !ok || len(row.Attachments) > 0 || i.shrunk(row) {
			err = errors.Join(err, fmt.Errorf("%s, which was %+v, was adopted as %+v", i.name, i.settled, row))
			continue
		}
		i.want, i.settled = &want{size: row.WantedMiB}, nil
		if i.volatile {
			i.data = map[string]datum{}
		}
	}
	return err
}

// shrunk tells whether a volume, or the filesystem on it, is smaller than it was. What it
// was wanted to be says nothing: what is detached grows only when it is attached.
func (i *instance) shrunk(row command.Storage) bool {
	return i.onVolume() && i.settled != nil && row.SizeMiB < i.settled.SizeMiB
}
