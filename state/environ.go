package state

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
)

// environRecord is the attributes of the environment's configuration.
type environRecord struct {
	Attributes attributes `cbor:"1,keyasint,omitzero"`
}

// SetEnvironConfig records the environment's configuration: a name, a type, a UUID, and any
// other attributes. It notifies watchers if the configuration differs from the previous one.
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

// WatchEnvironConfig returns a watcher that notifies when the environment's configuration
// changes.
func (st *State) WatchEnvironConfig() (watcher.NotifyWatcher, error) {
	return st.newNotifyWatcher(environPrefix)
}

// userTags returns the resource tags that the environment's configuration sets for everything
// that a provider makes.
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
