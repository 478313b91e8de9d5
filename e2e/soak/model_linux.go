package main

import (
	"fmt"

	"github.com/stowage-io/stowage/e2e/internal/command"
)

// kind is a kind of storage that the user requests.
type kind struct {
	name string
	pool string
	// provider is that of the pool, if it is not the pool's name.
	provider string
	// filesystem is the type of the filesystem on a volume, or of the mount for pools without
	// volumes.
	filesystem string
	// least and most are the bounds of the initial size in MiB; grow is by how much it grows.
	least, most, grow uint64
	// many is how many instances there are at most at a time.
	many int
	// volatile says that storage loses its data when it is detached.
	volatile bool
}

func (k *kind) block() bool    { return k.filesystem == "" }
func (k *kind) onVolume() bool { return k.pool == "loop" }

// kinds have the smallest sizes that their filesystems allow; btrfs has the smallest that can
// grow.
var kinds = []*kind{
	{name: "raw", pool: "loop", least: 8, most: 32, grow: 8, many: 4},
	{name: "ext4", pool: "loop", filesystem: "ext4", least: 16, most: 64, grow: 16, many: 5},
	{name: "xfs", pool: "loop", filesystem: "xfs", least: 300, most: 320, grow: 32, many: 2},
	{name: "btrfs", pool: "loop", filesystem: "btrfs", least: 256, most: 272, grow: 32, many: 2},
	{name: "tmpfs", pool: "tmpfs", filesystem: "tmpfs", least: 8, most: 16, grow: 8, many: 3, volatile: true},
	{name: "rootfs", pool: "rootfs", filesystem: "rootfs", least: 8, most: 16, grow: 8, many: 3},
}

// instance is storage that the user has requested.
type instance struct {
	name string
	*kind
	mount string
	// want is the wanted state; nil: removed.
	want *want
	// settled is the agent's status of the instance when it was last as wanted; nil after a
	// new request.
	settled *command.Storage
	// made says that the instance existed once, so that its volume does.
	made bool
	// imported says that the instance existed before, as a file.
	imported bool
	// from is the snapshot whose contents the instance got; nil: it was empty.
	from *snapshot
	// objects are the names on disk of its volume and filesystem, once they are known.
	objects map[object]string
	first   uint64 // size in MiB
	grown   bool
	data    map[string]datum
	// written counts the writes, and names the data.
	written int
}

// object is a kind of object that storage has on disk.
type object string

const (
	volume     object = "volume"
	filesystem object = "filesystem"
)

func newInstance(name string, k *kind, size uint64, mount string) *instance {
	return &instance{name: name, kind: k, mount: mount, first: size, data: map[string]datum{}, objects: map[object]string{}}
}

// want is the state that a user has requested for an instance.
type want struct {
	attached bool
	size     uint64 // MiB
}

// matches reports whether the agent wants the same.
func (w *want) matches(s command.Storage, there bool) bool {
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

// operation is a request of the user. Either all of it takes effect, or nothing.
type operation struct {
	args []string
	// after is the wanted state of the instances afterwards.
	after map[*instance]*want
	// snapshots are made by the operation if wanted is set, and deleted otherwise.
	snapshots []*snapshot
	wanted    bool
	// mayBeRefused says that the agent may refuse, because it is still busy with an earlier
	// request.
	mayBeRefused bool
	// cannotWait says that the command must not wait, because the operation completes only
	// after another request.
	cannotWait bool
}

// about reports whether the operation is about the instance.
func (o *operation) about(i *instance) bool {
	_, ok := o.after[i]
	return ok
}

// resolve determines from the agent's status after a crash which of the interrupted operations
// have taken effect.
func (s *soak) resolve(status map[string]command.Storage) error {
	for _, o := range s.doubtful {
		if len(o.snapshots) > 0 {
			if err := s.resolveSnapshots(o); err != nil {
				return err
			}
			continue
		}
		before, after := true, true
		for i, w := range o.after {
			row, there := status[i.name]
			before = before && i.want.matches(row, there)
			after = after && w.matches(row, there)
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
	// Storage without a request must not have changed.
	if all := s.differences(status); all != "" {
		return fmt.Errorf("what was acknowledged is not there: %s", all)
	}
	return nil
}

// differences describes the differences between what the agent wants and what it should want.
func (s *soak) differences(status map[string]command.Storage) string {
	var all string
	for _, i := range s.all {
		if row, there := status[i.name]; !i.want.matches(row, there) {
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
