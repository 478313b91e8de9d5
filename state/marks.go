package state

import (
	"fmt"
	"path"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state/kv"
)

// Marks keeps the state's mark, a small note outside the store. A store that is behind its
// mark is an older copy of itself: it was restored from a backup.
type Marks interface {
	// Read returns the mark that was written last, and false if none was ever written. It
	// returns an error if there is a mark that it cannot read.
	Read() (Mark, bool, error)

	// Write replaces the mark. If it returns nil, the new mark is durable; if it returns an
	// error, either the former mark or the new one is there, complete.
	Write(Mark) error
}

// Mark says which state is in the store, and which numbers that state has handed out.
type Mark struct {
	// UUID identifies the state; Generation is how often it has been restored, from 1.
	UUID       string
	Generation uint64

	// Before and After are the numbers before and after the last transaction that handed some
	// out. After a crash, the store may lack that transaction.
	Before, After Numbers
}

// Numbers are the next numbers of volumes, filesystems and machines: all smaller numbers have
// been handed out.
type Numbers struct {
	Volume, Filesystem, Machine uint64
}

// behind reports whether other has handed out more numbers of any sequence.
func (n Numbers) behind(other Numbers) bool {
	return n.Volume < other.Volume || n.Filesystem < other.Filesystem || n.Machine < other.Machine
}

// max returns the greater number of each sequence.
func (n Numbers) max(other Numbers) Numbers {
	return Numbers{max(n.Volume, other.Volume), max(n.Filesystem, other.Filesystem), max(n.Machine, other.Machine)}
}

// numbers returns the next numbers.
func (r *reader) numbers() Numbers {
	volume, _ := read[counter](r, sequenceKey(names.VolumeTagKind))
	filesystem, _ := read[counter](r, sequenceKey(names.FilesystemTagKind))
	machine, _ := read[counter](r, sequenceKey(names.MachineTagKind))
	return Numbers{uint64(volume), uint64(filesystem), uint64(machine)}
}

// HasHadStorage reports whether storage was ever added, though it may be gone.
func (st *State) HasHadStorage() (had bool, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		now := r.numbers()
		had = now.Volume > 0 || now.Filesystem > 0
		return nil
	})
	return had, errors.Trace(err)
}

// setNumbers makes the sequences continue with n.
func (tx *txn) setNumbers(n Numbers) {
	volume, filesystem, machine := counter(n.Volume), counter(n.Filesystem), counter(n.Machine)
	tx.write(sequenceKey(names.VolumeTagKind), &volume)
	tx.write(sequenceKey(names.FilesystemTagKind), &filesystem)
	if machine > 0 { // a state without machines that were added has no such record
		tx.write(sequenceKey(names.MachineTagKind), &machine)
	}
}

// requireMark makes the transaction write a mark when it ends. Call it before the transaction
// hands out numbers or raises the generation.
func (tx *txn) requireMark() {
	if tx.before == nil {
		before := tx.numbers()
		tx.before = &before
	}
}

// writeMark writes the mark of a transaction that is about to be committed.
func (st *State) writeMark(tx *txn) error {
	if st.marks == nil || tx.before == nil {
		return nil
	}
	return st.mark(tx.identity(), *tx.before, tx.numbers())
}

func (st *State) mark(i identity, before, after Numbers) error {
	err := st.marks.Write(Mark{UUID: i.UUID, Generation: i.Generation, Before: before, After: after})
	return errors.Annotate(err, "writing the mark beside the state")
}

// checkEmpty returns an error for an empty store beside a mark: the state that the mark names
// is lost.
func checkEmpty(mark Mark, hasMark bool, wantUUID string) error {
	if !hasMark || wantUUID != "" {
		return nil
	}
	return errors.NewNotFound(nil, fmt.Sprintf(
		"the state is empty, but the mark beside it names state %s, which is lost: %s", mark.UUID, damageRemedy))
}

// compareMark compares the state with its mark. It begins a new generation for a state that
// was restored, and makes the numbers of every state continue above the mark.
func (st *State) compareMark(mark Mark, hasMark bool, wantUUID string) error {
	var own identity
	var now Numbers
	var pending copyRecord
	err := st.view(func(r *reader, _ kv.Snapshot) error {
		own, now = r.identity(), r.numbers()
		pending, _ = read[copyRecord](r, copyKey)
		return nil
	})
	if err != nil {
		return errors.Trace(err)
	}
	if hasMark && mark.UUID != own.UUID && mark.UUID != pending.FormerUUID && wantUUID == "" {
		return errors.NewNotValid(nil, fmt.Sprintf("the state is %s, but the mark beside it names state %s: %s; "+
			`a copied directory gets its own UUID with "stowage adopt-dir --copy"`,
			own.UUID, mark.UUID, damageRemedy))
	}
	if !hasMark || mark.UUID != own.UUID {
		return st.mark(own, now, now)
	}
	st.restored = own.Generation < mark.Generation || now.behind(mark.Before)
	switch {
	case st.restored:
		return st.raiseGeneration(mark.Generation, mark.After)
	case now.behind(mark.After):
		return st.update(func(tx *txn) error {
			tx.requireMark()
			tx.setNumbers(tx.numbers().max(mark.After))
			return nil
		})
	case now != mark.After || own.Generation != mark.Generation:
		return st.mark(own, now, now)
	}
	return nil
}

// Restored reports whether Open found the state to be behind its mark: the state was restored
// from a backup, and has begun a new generation. It may not describe the storage that exists.
func (st *State) Restored() bool { return st.restored }

// RaiseGeneration begins a new generation of the state, in which everything that is recorded
// is verified before it is used.
func (st *State) RaiseGeneration() error {
	err := st.raiseGeneration(0, Numbers{})
	if err == nil {
		err = st.readIdentity()
	}
	return errors.Annotate(err, "raising the generation of the state")
}

// raiseGeneration begins a generation of the state above the given one, and makes its numbers
// continue above the given ones. If it is interrupted, the generation is the former one, and what was
// done is done again.
func (st *State) raiseGeneration(above uint64, numbers Numbers) error {
	for {
		raised, err := st.tryRaiseGeneration(above, numbers)
		if err != nil || raised {
			return errors.Trace(err)
		}
	}
}

// tryRaiseGeneration is raiseGeneration, and returns false if the state has changed in between.
func (st *State) tryRaiseGeneration(above uint64, numbers Numbers) (raised bool, err error) {
	var before identity
	var seen Numbers
	var keys []string
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		before, seen, keys = r.identity(), r.numbers(), nil
		err := snapshot.Scan(storagePrefix, func(key string, _ []byte) error {
			keys = append(keys, key)
			return nil
		})
		if err != nil {
			return errors.Trace(err)
		}
		return snapshot.Scan(machinesPrefix, func(key string, _ []byte) error {
			if path.Base(key) == machineComponent {
				keys = append(keys, key)
			}
			return nil
		})
	})
	if err != nil {
		return false, errors.Trace(err)
	}
	generation := max(before.Generation, above) + 1
	for first := true; first || len(keys) > 0; first = false {
		batch := keys[:min(len(keys), st.maxEntities())]
		keys = keys[len(batch):]
		current := false
		err := st.update(func(tx *txn) error {
			i := tx.identity()
			if current = i.Generation == before.Generation && tx.numbers() == seen; !current {
				return nil
			}
			for _, key := range batch {
				if err := tx.beginGeneration(key, generation); err != nil {
					return errors.Trace(err)
				}
			}
			if len(keys) == 0 { // the last
				tx.requireMark()
				i.Generation = generation
				tx.setIdentity(&i)
				tx.setNumbers(seen.max(numbers))
			}
			return tx.err
		})
		if err != nil || !current {
			return false, errors.Trace(err)
		}
	}
	return true, nil
}

// beginGeneration changes the record of a storage instance or of a machine for a new generation.
func (tx *txn) beginGeneration(key string, generation uint64) error {
	if name, ok := strings.CutPrefix(key, storagePrefix); ok {
		return tx.invalidateAttachments(name, generation)
	}
	// The machine may have returned since the backup. A user who knows that it is off fences it again.
	if record, ok := read[machineRecord](&tx.reader, key); ok && record.Fenced != nil {
		record.Fenced = nil
		tx.write(key, &record)
	}
	return nil
}

// invalidateAttachments marks the attachments of a storage instance as unverified, in a state
// of a new generation: no worker has checked them since the restore.
func (tx *txn) invalidateAttachments(name string, generation uint64) error {
	i, ok := read[instance](&tx.reader, storageKey(name))
	if !ok {
		return nil
	}
	return tx.change(name, &i, func() error {
		i.assumeFilesystemAttached(generation)
		for _, e := range i.entities() {
			if e.Status.Status == status.Attached {
				e.Status.set(status.Attaching, "rechecking: the state was restored", tx.now)
			}
		}
		return nil
	})
}

// assumeFilesystemAttached handles a volume that is being detached. The filesystem on it was
// detached when the backup was made, but may have been attached since: it is detached again,
// before the volume.
func (i *instance) assumeFilesystemAttached(generation uint64) {
	v, f := i.Volume, i.Filesystem
	if i.Life != life.Alive || v == nil || f == nil || v.Attachment == nil || !v.Attachment.detaching() ||
		!f.mayBeAttached(generation) {
		return
	}
	v.Attachment.Life = life.Alive
	if plan := v.Attachment.Plan; plan != nil {
		plan.Life = life.Alive
	}
	if f.mayExist(generation) {
		f.assumeAttempted()
	}
	f.Attachment = &attachment{Machine: v.Attachment.Machine, Life: life.Dying, Attempted: true}
}
