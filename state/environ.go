package state

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

// environRecord has the attributes of the environment's configuration.
type environRecord struct {
	Attributes attributes `cbor:"1,keyasint,omitzero"`
}

// SetEnvironConfig records the environment's configuration: a name, a type, a UUID,
// and what else its attributes say. Watchers are told if it differs from the one
// before.
func (st *State) SetEnvironConfig(attrs map[string]any) error {
	if _, err := config.New(attrs); err != nil {
		return errors.Trace(err)
	}
	return st.update(func(tx *txn) error {
		tx.write(environKey, &environRecord{attrs})
		return nil
	})
}

// EnvironConfig returns the environment's configuration. The error satisfies
// errors.IsNotFound if none has been set.
func (st *State) EnvironConfig() (*config.Config, error) {
	var cfg *config.Config
	err := st.view(func(r *reader, _ kv.Snapshot) (err error) {
		cfg, err = environConfig(r)
		return err
	})
	return cfg, errors.Trace(err)
}

func environConfig(r *reader) (*config.Config, error) {
	record, ok := read[environRecord](r, environKey)
	if !ok {
		return nil, errors.NotFoundf("environment config")
	}
	cfg, err := config.New(record.Attributes)
	return cfg, errors.Trace(err)
}

// WatchEnvironConfig tells when the environment's configuration changes.
func (st *State) WatchEnvironConfig() (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(environPrefix)
}

// userTags returns what the environment's configuration says that everything a
// provider makes is to be tagged with.
func (r *reader) userTags() (map[string]string, error) {
	if r.tagsRead {
		return r.tags, nil
	}
	cfg, err := environConfig(r)
	if err != nil && !errors.Is(err, errors.NotFound) {
		return nil, errors.Trace(err)
	}
	if err == nil {
		r.tags, _ = cfg.ResourceTags()
	}
	r.tagsRead = true
	return r.tags, nil
}
