package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// claim is what to do with an orphan.
type claim struct {
	*instance
	disposition disposition
	args        []string
	err         error
}

type disposition int

const (
	deleted disposition = iota
	// adopted storage is then attached, with its data.
	adopted
	// unwanted storage may not be complete, or was being removed: it is adopted, and then
	// removed.
	unwanted
)

// claimOrphans adopts and deletes the agent's orphans, and attaches what it has adopted. There
// may be no other orphans.
func (s *soak) claimOrphans(made []*instance) error {
	ctx, cancel := limited()
	defer cancel()
	list, err := s.stowage.Orphans(ctx)
	if err != nil {
		return err
	}
	// A filesystem on a volume comes with the volume.
	left := slices.DeleteFunc(slices.Clone(list), func(o command.Orphan) bool {
		return o.Provider == "managed" && slices.ContainsFunc(made, func(i *instance) bool { return i.onVolume() && i.owns(o) })
	})
	var claims []*claim
	for _, i := range made {
		at := slices.IndexFunc(left, i.owns)
		if at < 0 {
			if i.made && i.want != nil {
				return fmt.Errorf("%s, which was made after the backup, is not an orphan: %+v", i.name, list)
			}
			s.note("%s had not been made, or was removed", i.name)
			continue
		}
		o := left[at]
		left = slices.Delete(left, at, at+1)
		if i.settled != nil && o.Attached != i.want.attached && !i.volatile {
			return fmt.Errorf("%s was %s, but as an orphan it is %+v", i.name, i.want, o)
		}
		claims = append(claims, s.claim(i, o))
	}
	if len(left) > 0 {
		return fmt.Errorf("orphans that were not made after the backup: %+v", left)
	}
	return s.carryOut(claims)
}

// owns reports whether an orphan belongs to the instance.
func (i *instance) owns(o command.Orphan) bool {
	if name := i.objects[object(o.Kind)]; name != "" {
		return o.State == "orphan" && o.ID == name
	}
	return o.State == "orphan" && o.Name == i.name
}

// claim decides what to do with an orphan. It adopts it under another name if the orphan's
// name is taken.
func (s *soak) claim(i *instance, o command.Orphan) *claim {
	// What was being made or removed when the agent was killed may be incomplete, and cannot be adopted.
	incomplete := i.want == nil || !i.made
	if !o.Attached && (incomplete || s.rand.IntN(3) == 0) {
		s.figures.deleted++
		return &claim{instance: i, disposition: deleted, args: []string{"delete", o.UUID, "--now"}}
	}
	c := &claim{instance: i, disposition: adopted, args: []string{"adopt", o.UUID}}
	s.figures.adopted++
	if i.want == nil || !i.made {
		i.data, i.want, i.settled = map[string]datum{}, &want{}, nil
		c.disposition = unwanted
	}
	if i.name = o.Name; s.taken(i.name, &operation{}) {
		i.name = fmt.Sprintf("%s-%d", i.kind.name, 1000+s.figures.adopted)
		c.args = append(c.args, "--as", i.name)
	}
	s.all[i.name] = i
	return c
}

// carryOut runs the commands at the same time, because each scans twice.
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
		all[c.disposition] = append(all[c.disposition], c.instance)
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

// adopted checks that storage was adopted, detached and with its former size.
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

// shrunk reports whether a volume, or the filesystem on it, is smaller than before. The wanted
// size does not matter: detached storage grows only when it is attached.
func (i *instance) shrunk(row command.Storage) bool {
	return i.onVolume() && i.settled != nil && row.SizeMiB < i.settled.SizeMiB
}
