package statefile

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

const (
	// DefaultInterval and DefaultSettle are used where the configuration has none.
	DefaultInterval = time.Hour
	DefaultSettle   = 5 * time.Minute
)

// Logger is what the copier logs to.
type Logger interface {
	Debugf(format string, args ...any)
	Warningf(format string, args ...any)
}

// CopierConfig is what a [Copier] needs.
type CopierConfig struct {
	// Store is the state's. Required. The caller closes it, after the copier.
	Store *boltkv.Store

	// Path is the state file. The copies are beside it. Required.
	Path string

	// Identify reads the state's identity. Required.
	Identify Identify

	// Interval is how often a state that goes on changing is copied, and Settle for
	// how long one does not change that is copied sooner. Zero means
	// [DefaultInterval] and [DefaultSettle].
	Interval, Settle time.Duration

	// Clock measures both. Nil means the wall clock.
	Clock clock.Clock

	// Logger receives the copier's messages. Nil means the loggo logger
	// "stowage.state.statefile".
	Logger Logger
}

// Validate returns an error that satisfies errors.IsNotValid and names the field, if the
// configuration cannot be used.
func (c CopierConfig) Validate() error {
	switch {
	case c.Store == nil:
		return errors.NotValidf("copier config: nil Store")
	case c.Path == "":
		return errors.NotValidf("copier config: empty Path")
	case c.Identify == nil:
		return errors.NotValidf("copier config: nil Identify")
	case c.Interval < 0 || c.Settle < 0:
		return errors.NotValidf("copier config: negative Interval or Settle")
	}
	return nil
}

func (c CopierConfig) withDefaults() CopierConfig {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Settle == 0 {
		c.Settle = DefaultSettle
	}
	if c.Clock == nil {
		c.Clock = clock.WallClock
	}
	if c.Logger == nil {
		c.Logger = loggo.GetLogger("stowage.state.statefile")
	}
	return c
}

// Copier is a worker that keeps two copies of an open state file: when it starts, and
// after changes, it replaces the older, with a copy as [Backup] writes it. So one of them
// is always whole. Nobody else writes them.
//
// A copy that cannot be written is a warning, and the former ones stay. That is so where it
// would take more than half of the space that is left, too.
type Copier struct {
	tomb   tomb.Tomb
	config CopierConfig

	// own is the state's identity when the copier started, and slots its copies. Both
	// are loop's.
	own   Identity
	slots [2]slot
}

// slot is one of the two copies.
type slot struct {
	path string
	// meta is the zero value where there is no whole copy of this state.
	meta Meta
}

// NewCopier starts a copier.
func NewCopier(config CopierConfig) (*Copier, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	c := &Copier{config: config.withDefaults()}
	c.tomb.Go(c.loop)
	return c, nil
}

// Kill asks the copier to stop.
func (c *Copier) Kill() { c.tomb.Kill(nil) }

// Wait returns when the copier has stopped, with the reason if that was not Kill. It
// stops when the store cannot be read.
func (c *Copier) Wait() error { return c.tomb.Wait() }

// loop looks at the state's version now and then.
func (c *Copier) loop() error {
	if err := c.readSlots(); err != nil {
		return err
	}
	before, err := c.config.Store.Version()
	if err != nil {
		return err
	}
	var attempted time.Time
	failed := false
	for {
		version, err := c.config.Store.Version()
		if err != nil {
			return err
		}
		now := c.config.Clock.Now()
		settled := version == before && !failed
		if !c.isCopied(version) && (settled || now.Sub(attempted) >= c.config.Interval) {
			err := c.copy(now)
			attempted, failed = now, err != nil
			if err != nil && c.tomb.Alive() {
				c.config.Logger.Warningf("keeping a copy of %s: %v", c.config.Path, err)
			}
		}
		before = version
		select {
		case <-c.tomb.Dying():
			return tomb.ErrDying
		case <-c.config.Clock.After(c.config.Settle):
		}
	}
}

// readSlots verifies the copies that are there, and removes those that were cut off.
func (c *Copier) readSlots() error {
	err := c.config.Store.View(func(snapshot kv.Snapshot) (err error) {
		c.own, err = c.config.Identify(snapshot)
		return err
	})
	if err != nil {
		return errors.Trace(err)
	}
	for i, path := range copyNames(c.config.Path) {
		c.slots[i].path = path
		if meta, err := Verify(path, c.config.Identify); err == nil && meta.UUID == c.own.UUID {
			c.slots[i].meta = meta
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.config.Logger.Warningf("a copy of %s will be replaced: %v", c.config.Path, err)
		}
		if err := removeLeftovers(path); err != nil {
			c.config.Logger.Warningf("removing what is left of a copy of %s: %v", c.config.Path, err)
		}
	}
	return nil
}

// isCopied reports whether there is a copy of the state as it is.
func (c *Copier) isCopied(version uint64) bool {
	newest := c.newest().meta
	return newest.Version == version && newest.Generation == c.own.Generation
}

// newest returns the newer copy.
func (c *Copier) newest() *slot {
	if c.slots[1].meta.newer(c.slots[0].meta) {
		return &c.slots[1]
	}
	return &c.slots[0]
}

// copy replaces the older copy.
func (c *Copier) copy(now time.Time) error {
	older := &c.slots[0]
	if older == c.newest() && older.meta != (Meta{}) {
		older = &c.slots[1]
	}
	if err := c.checkSpace(); err != nil {
		return err
	}
	temporary, meta, err := newCopy(c.tomb.Context(context.Background()), c.config.Store, older.path, c.config.Identify, now)
	if err != nil {
		return err
	}
	if err := renameDurable(temporary, older.path); err != nil {
		_ = os.Remove(temporary)
		return errors.Annotatef(err, "writing %s", older.path)
	}
	older.meta = meta
	c.config.Logger.Debugf("%s is a copy of version %d", older.path, meta.Version)
	return nil
}

// checkSpace returns an error unless the state fits twice in the space that is left: a
// copy is there before the one that it replaces goes, and others need space, too.
func (c *Copier) checkSpace() error {
	file, err := os.Open(c.config.Path)
	if err != nil {
		return errors.Trace(err)
	}
	defer file.Close()
	size, _, err := boltkv.Extent(file)
	if err != nil {
		return err
	}
	left, err := available(filepath.Dir(c.config.Path))
	if err != nil || left >= 2*size {
		return err
	}
	return fmt.Errorf("%d MiB are left, and copies are made while there are %d: %w", left>>20, (2*size)>>20+1, syscall.ENOSPC)
}
