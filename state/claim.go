package state

import (
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/storage"
)

// ClaimRequest is what a claim asks for. The state keeps it as it is: which storage meets it is for the
// caller of [State.Apply] to find.
type ClaimRequest struct {
	// Pool is the pool in which storage is made, and Selector selects existing storage by its labels.
	Pool     string
	Selector map[string]string

	// Size is the least size, in MiB.
	Size       uint64
	Kind       storage.StorageKind
	AccessMode string

	// Machine and MachineLabels say on which machines the storage may be.
	Machine       string
	MachineLabels map[string]string

	// MountPoint is that of a filesystem that is made.
	MountPoint string

	// Delete says that the storage is destroyed when the claim is removed.
	Delete bool
}

// Claim is a request for storage, and the storage that it got. No two claims have the same storage.
type Claim struct {
	Name    string
	Request ClaimRequest

	// Storage is the name of the storage.
	Storage string

	// Lost says that there is no such storage any more. It is not set by callers.
	Lost bool
}

type claimRecord struct {
	Pool          string            `cbor:"1,keyasint,omitempty"`
	Selector      map[string]string `cbor:"2,keyasint,omitempty"`
	Size          uint64            `cbor:"3,keyasint,omitempty"`
	Kind          string            `cbor:"4,keyasint,omitempty"`
	AccessMode    string            `cbor:"5,keyasint,omitempty"`
	Machine       string            `cbor:"6,keyasint,omitempty"`
	MachineLabels map[string]string `cbor:"7,keyasint,omitempty"`
	MountPoint    string            `cbor:"8,keyasint,omitempty"`
	Delete        bool              `cbor:"9,keyasint,omitempty"`

	// Storage is the name of the storage. It is the claim's if it names the claim, too.
	Storage string `cbor:"10,keyasint,omitempty"`
}

func newClaimRecord(c Claim) *claimRecord {
	return &claimRecord{
		Pool: c.Request.Pool, Selector: c.Request.Selector, Size: c.Request.Size, Kind: c.Request.Kind.String(),
		AccessMode: c.Request.AccessMode, Machine: c.Request.Machine, MachineLabels: c.Request.MachineLabels,
		MountPoint: c.Request.MountPoint, Delete: c.Request.Delete, Storage: c.Storage,
	}
}

// view returns the claim as users see it.
func (c *claimRecord) view(r *reader, name string) Claim {
	view := Claim{Name: name, Storage: c.Storage, Request: ClaimRequest{
		Pool: c.Pool, Selector: c.Selector, Size: c.Size, Kind: storage.StorageKindBlock, AccessMode: c.AccessMode,
		Machine: c.Machine, MachineLabels: c.MachineLabels, MountPoint: c.MountPoint, Delete: c.Delete,
	}}
	if c.Kind == storage.StorageKindFilesystem.String() {
		view.Request.Kind = storage.StorageKindFilesystem
	}
	i, ok := read[instance](r, storageKey(c.Storage))
	view.Lost = !ok || !i.isBound(name)
	return view
}

// isBound reports whether the instance belongs to the claim.
func (i *instance) isBound(claim string) bool { return i.Claim == claim && !i.Retained }

// checkUnclaimed returns an error that satisfies errors.IsNotValid if the instance belongs to a claim.
func (i *instance) checkUnclaimed() error {
	if i.Claim == "" || i.Retained {
		return nil
	}
	return errors.NewNotValid(nil, fmt.Sprintf("it belongs to claim %q: delete the claim, with `stowage unclaim %s`", i.Claim, i.Claim))
}

// Claims returns the claims, sorted by name.
func (st *State) Claims() (all []Claim, err error) {
	err = st.view(func(r *reader, snapshot kv.Snapshot) error {
		return snapshot.Scan(claimPrefix, func(key string, data []byte) error {
			record, err := decodeAt[claimRecord](key, data)
			if err != nil {
				return errors.Trace(err)
			}
			all = append(all, record.view(r, key[len(claimPrefix):]))
			return nil
		})
	})
	return all, errors.Trace(err)
}

// Claim returns the named claim. The error satisfies errors.IsNotFound if it does not exist.
func (st *State) Claim(name string) (found Claim, err error) {
	err = st.view(func(r *reader, _ kv.Snapshot) error {
		record, ok := read[claimRecord](r, claimKey(name))
		if !ok {
			return errors.NotFoundf("claim %q", name)
		}
		found = record.view(r, name)
		return nil
	})
	return found, errors.Trace(err)
}

// claimEach records claims, and that their storage belongs to them. Claims are made for storage that
// nothing else has: otherwise the error satisfies errors.Is(err, [ErrChanged]).
func (st *State) claimEach(tx *txn, claims []Claim) error {
	for _, c := range claims {
		if err := checkName(c.Name); err != nil {
			return errors.Annotatef(err, "claim %q", c.Name)
		}
		if tx.has(claimKey(c.Name)) {
			return errors.WithType(errors.Errorf("claim %q was made since the request was planned", c.Name), ErrChanged)
		}
		err := changeEach(tx, []string{c.Storage}, "claiming", func(i *instance) error {
			if i.Claim != "" || i.Asker != nil || i.Life != life.Alive {
				return errors.WithType(errors.New("it is claimed or removed since the request was planned"), ErrChanged)
			}
			if c.Request.Delete && !st.canDelete(i) {
				return errors.NewNotSupported(nil, fmt.Sprintf("provider %q deletes no %s storage: the claim can only retain it", i.Provider, i.providedKind()))
			}
			i.Claim = c.Name
			return nil
		})
		if err != nil {
			return errors.Annotatef(err, "claim %q", c.Name)
		}
		tx.write(claimKey(c.Name), newClaimRecord(c))
	}
	return nil
}

// unclaimEach removes claims. Their storage is removed or retained, as they say.
func (st *State) unclaimEach(tx *txn, names []string) error {
	for _, name := range names {
		record, ok := read[claimRecord](&tx.reader, claimKey(name))
		if !ok {
			return errors.NotFoundf("claim %q", name)
		}
		i, ok := read[instance](&tx.reader, storageKey(record.Storage))
		if ok && i.isBound(name) {
			err := changeEach(tx, []string{record.Storage}, "unclaiming", func(i *instance) error {
				i.Retained = true
				return nil
			})
			if err == nil && record.Delete {
				err = st.removeEach(tx, []string{record.Storage}, "", false)
			}
			if err != nil {
				return errors.Annotatef(err, "claim %q", name)
			}
		}
		tx.remove(claimKey(name))
	}
	return nil
}

// offerEach lets claims have the named instances, which earlier claims left.
func (tx *txn) offerEach(names []string) error {
	return changeEach(tx, names, "offering", func(i *instance) error {
		if err := i.checkUnclaimed(); err != nil {
			return err
		}
		i.Claim, i.Retained = "", false
		return nil
	})
}
