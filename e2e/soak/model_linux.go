package main

import (
	"fmt"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// kind is a sort of storage that the user asks for.
type kind struct {
	name string
	pool string
	// filesystem is that on a volume, or what is mounted for pools without volumes.
	filesystem string
	// sizes are the least and the most in MiB to begin with; grow is by how much more.
	least, most, grow uint64
	// many is how many there are at most at a time.
	many int
	// volatile storage forgets what is on it when it is detached.
	volatile bool
}

func (k *kind) block() bool    { return k.filesystem == "" }
func (k *kind) onVolume() bool { return k.pool == "loop" }

// kinds are as small as their filesystems may be, btrfs as small as it grows.
var kinds = []*kind{
	{name: "raw", pool: "loop", least: 8, most: 32, grow: 8, many: 4},
	{name: "ext4", pool: "loop", filesystem: "ext4", least: 16, most: 64, grow: 16, many: 5},
	{name: "xfs", pool: "loop", filesystem: "xfs", least: 300, most: 320, grow: 32, many: 2},
	{name: "btrfs", pool: "loop", filesystem: "btrfs", least: 256, most: 272, grow: 32, many: 2},
	{name: "tmpfs", pool: "tmpfs", filesystem: "tmpfs", least: 8, most: 16, grow: 8, many: 3, volatile: true},
	{name: "rootfs", pool: "rootfs", filesystem: "rootfs", least: 8, most: 16, grow: 8, many: 3},
}

// instance is storage that was asked for.
type instance struct {
	name string
	*kind
	mount string
	// want is what it is to be like; nil: not there.
	want *want
	// settled is how the agent showed it when it was last seen to be as wanted; nil
	// since something was asked for.
	settled *command.Storage
	// made tells that it was there once, so that its volume is.
	made bool
	// imported tells that it was there before, as somebody's file.
	imported bool
	// objects are the names on disk of its volume and filesystem, by what they are,
	// once they are known.
	objects map[object]string
	first   uint64 // size in MiB
	grown   bool
	data    map[string]datum
	// written counts what was, and names it.
	written int
}

// object is what storage has on disk.
type object string

const (
	volume     object = "volume"
	filesystem object = "filesystem"
)

func newInstance(name string, k *kind, size uint64, mount string) *instance {
	return &instance{name: name, kind: k, mount: mount, first: size, data: map[string]datum{}, objects: map[object]string{}}
}

// want is what a user has asked of an instance.
type want struct {
	attached bool
	size     uint64 // MiB
}

// is tells whether the agent is after that too.
func (w *want) is(s command.Storage, there bool) bool {
	if !there || s.Life != "alive" {
		return w == nil
	}
	attached := len(s.Attachments) > 0 && s.Attachments[0].Life == "alive"
	return w != nil && w.attached == attached && w.size == s.WantedMiB
}

func (w *want) String() string {
	switch {
	case w == nil:
		return "gone"
	case w.attached:
		return fmt.Sprintf("attached with %d MiB", w.size)
	}
	return fmt.Sprintf("detached with %d MiB", w.size)
}

// operation is something that the user asks for. Either all of it takes effect, or
// nothing.
type operation struct {
	args []string
	// after is what the instances are wanted like then.
	after map[*instance]*want
	// mayBeRefused, because the agent is still busy with what came before.
	mayBeRefused bool
	// cannotWait, because it is done only after something else was asked for.
	cannotWait bool
}

// about tells whether the operation is about the instance.
func (o *operation) about(i *instance) bool {
	_, ok := o.after[i]
	return ok
}

// resolve finds out from what the agent shows after a crash which of the operations that
// were cut short have taken effect.
func (s *soak) resolve(status map[string]command.Storage) error {
	for _, o := range s.doubtful {
		before, after := true, true
		for i, w := range o.after {
			row, there := status[i.name]
			before = before && i.want.is(row, there)
			after = after && w.is(row, there)
		}
		switch {
		case after:
			s.figures.tookEffect++
			s.note("%q had taken effect", o.args)
			s.took(o)
		case before:
			for i := range o.after {
				i.settled = nil
			}
			s.note("%q had no effect", o.args)
		default:
			return fmt.Errorf("%q has taken effect in part: %s", o.args, s.differences(status))
		}
	}
	s.doubtful = nil
	// What was not asked of the agent has not changed.
	if all := s.differences(status); all != "" {
		return fmt.Errorf("what was acknowledged is not there: %s", all)
	}
	return nil
}

// differences tells of what the agent is after and should not be.
func (s *soak) differences(status map[string]command.Storage) string {
	var all string
	for _, i := range s.all {
		if row, there := status[i.name]; !i.want.is(row, there) {
			all += fmt.Sprintf("\n\t%s, wanted %s: %+v", i.name, i.want, row)
		}
	}
	for name, row := range status {
		if _, ok := s.all[name]; !ok && row.Life == "alive" {
			all += fmt.Sprintf("\n\t%s, not wanted: %+v", name, row)
		}
	}
	return all
}
