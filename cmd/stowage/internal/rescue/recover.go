package rescue

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/inventory"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/markfile"
	"github.com/stowage-io/stowage/state/statefile"
)

// Recovery is the result of recovering a state, or of planning to.
type Recovery struct {
	// Base is the file that the recovery started from. It is empty if no file was intact: then
	// the state contains only what records say.
	Base string

	// Problems say why other files were not used.
	Problems []string

	UUID       string
	Generation uint64

	// Replaced is the new name of the replaced state file.
	Replaced string

	Objects []RecoveredObject
}

// RecoveredObject is the result for one object of a provider.
type RecoveredObject struct {
	inventory.Object
	state.RecoverResult
}

// Recover rebuilds the state from the newest intact file among the state file and its copies,
// and from the providers' objects. Without yes it changes nothing.
func Recover(ctx context.Context, c Config, environ, yes bool) (recovery Recovery, err error) {
	lock, err := boltkv.Lock(c.Dir.StateFile())
	switch {
	case err == nil:
		defer lock.Close()
	case !errors.Is(err, fs.ErrNotExist):
		return recovery, c.explain(err)
	}
	known, err := c.Registry.StorageProviderTypes()
	if err != nil {
		return recovery, errors.Trace(err)
	}
	if record := c.Dir.DriverRecord(known...); record != "" {
		return recovery, errors.Errorf("%s is of storage of a provider that is not known, and would be lost: name the directory of its file with --plugins-dir, as for `stowage run`", record)
	}
	inv, err := c.inventory(environ)
	if err != nil {
		return recovery, errors.Trace(err)
	}
	objects, err := inv.List(ctx)
	if err != nil {
		return recovery, errors.Trace(err)
	}
	uuid, err := c.modelUUID(objects)
	if err != nil {
		return recovery, errors.Trace(err)
	}
	if err := recovery.chooseBase(c, uuid); err != nil {
		return recovery, errors.Trace(err)
	}

	// Rebuild the state beside the existing one.
	temporary := c.Dir.StateFile() + ".recovering"
	if err := remove(temporary); err != nil {
		return recovery, errors.Trace(err)
	}
	defer func() {
		if rerr := remove(temporary); err == nil {
			err = errors.Trace(rerr)
		}
	}()
	if err := c.rebuild(&recovery, temporary, uuid, objects, yes); err != nil || !yes {
		return recovery, errors.Trace(err)
	}
	if lock != nil {
		if err := lock.Close(); err != nil {
			return recovery, errors.Trace(err)
		}
	}
	_, recovery.Replaced, err = statefile.Restore(temporary, c.Dir.StateFile(), datadir.Identify, c.Clock.Now(), nil)
	return recovery, errors.Trace(err)
}

// modelUUID returns the UUID of the state that the directory belongs to: the one in its mark,
// or the one that most objects name.
func (c Config) modelUUID(objects []inventory.Object) (string, error) {
	mark, ok, err := c.Dir.Marks().Read()
	if ok {
		return mark.UUID, nil
	} else if err != nil && !errors.Is(err, markfile.ErrDamaged) {
		return "", errors.Trace(err)
	}
	counts := make(map[string]int)
	most := ""
	for _, o := range objects {
		uuid := o.Owner().ModelUUID
		if uuid == "" {
			continue
		}
		counts[uuid]++
		if counts[uuid] > counts[most] {
			most = uuid
		}
	}
	return most, nil
}

// chooseBase chooses the file that the recovery starts from.
func (r *Recovery) chooseBase(c Config, uuid string) error {
	candidates, err := statefile.Candidates(c.Dir.StateFile(), datadir.Identify)
	if err != nil {
		return errors.Trace(err)
	}
	for _, candidate := range candidates {
		switch {
		case candidate.Err != nil:
			r.Problems = append(r.Problems, candidate.Err.Error())
		case uuid != "" && candidate.Meta.UUID != "" && candidate.Meta.UUID != uuid:
			r.Problems = append(r.Problems, fmt.Sprintf("%s is of state %s, but this directory belongs to state %s", candidate.Path, candidate.Meta.UUID, uuid))
		case r.Base == "":
			r.Base = candidate.Path
		}
	}
	return nil
}

// rebuild makes a state in the file. Without yes, it only reports what the state would
// contain.
func (c Config) rebuild(r *Recovery, file, uuid string, objects []inventory.Object, yes bool) (err error) {
	if r.Base != "" {
		if _, _, err := statefile.Restore(r.Base, file, datadir.Identify, c.Clock.Now(), nil); err != nil {
			return errors.Trace(err)
		}
	} else if uuid == "" {
		return errors.NewNotFound(nil, fmt.Sprintf("%s has neither an intact state nor a record that names an owner: there is nothing to recover", c.Dir))
	}
	config := c.stateConfig()
	config.UUID = uuid
	if !yes {
		config.Marks = nil
	} else if _, _, err := config.Marks.Read(); errors.Is(err, markfile.ErrDamaged) {
		if err := c.Dir.MoveDamagedMark(c.Clock.Now()); err != nil {
			return errors.Trace(err)
		}
	}
	store, err := boltkv.Open(file)
	if err != nil {
		return errors.Trace(err)
	}
	o, err := c.openStore(store, config)
	if err != nil {
		return errors.Trace(err)
	}
	defer o.close(&err)
	var recovered []state.Recovered
	for _, object := range objects {
		if object.Released {
			continue // it has no owner
		}
		result := RecoveredObject{Object: object}
		if one, err := inventory.Recovered(object, objects); err == nil {
			recovered = append(recovered, one)
		} else {
			result.RecoverResult = state.RecoverResult{Outcome: state.RecoverSkipped, Reason: err.Error()}
		}
		r.Objects = append(r.Objects, result)
	}
	do := o.PlanRecovery
	if yes {
		do = o.State.Recover
	}
	results, err := do(recovered)
	if err != nil {
		return errors.Trace(err)
	}
	for i := range r.Objects {
		if r.Objects[i].Outcome == "" {
			r.Objects[i].RecoverResult, results = results[0], results[1:]
		}
	}
	r.UUID, r.Generation = o.UUID(), o.Generation()
	return nil
}

// remove removes a file that may not exist.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Trace(err)
	}
	return nil
}
