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
	// DefaultInterval and DefaultSettle are used if the configuration has zero.
	DefaultInterval = time.Hour
	DefaultSettle   = 5 * time.Minute
)

// Logger receives the copier's messages.
type Logger interface {
	Debugf(format string, args ...any)
	Warningf(format string, args ...any)
}

// CopierConfig is the configuration of a [Copier].
type CopierConfig struct {
	// Store is the state's store. Required. The caller closes it, after the copier.
	Store *boltkv.Store

	// Path is the state file. The copies are made beside it. Required.
	Path string

	// Identify reads the state's identity. Required.
	Identify Identify

	// Interval is how often a state that keeps changing is copied. Settle is how long a state
	// must stay unchanged to be copied sooner. Zero means [DefaultInterval] and
	// [DefaultSettle].
	Interval, Settle time.Duration

	// Clock measures Interval and Settle. Nil means the wall clock.
	Clock clock.Clock

	// Logger receives the copier's messages. Nil means the loggo logger
	// "stowage.state.statefile".
	Logger Logger
}

// Validate returns an error that satisfies errors.IsNotValid and names the field, if the
// configuration is not valid.
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

// Copier is a worker that keeps two copies of an open state file. When it starts, and after
// changes, it replaces the older one with a copy in the format of [Backup], so one of them is
// always intact. Nothing else may write them.
//
// If it cannot write a copy, it logs a warning and keeps the former ones. It does the same if
// the copy would take more than half of the free disk space.
type Copier struct {
	tomb   tomb.Tomb
	config CopierConfig

	// own is the state's identity when the copier started, and slots are its copies. Only the
	// loop goroutine uses them.
	own   Identity
	slots [2]slot
}

// slot is one of the two copies.
type slot struct {
	path string
	// meta is the zero value if there is no intact copy of this state.
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

// Wait waits until the copier has stopped, and returns the reason if that was not Kill. The
// copier stops when it cannot read the store.
func (c *Copier) Wait() error { return c.tomb.Wait() }

// loop polls the state's version.
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
				c.config.Logger.Warningf("making a copy of %s: %v", c.config.Path, err)
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

// readSlots verifies the existing copies, and removes those whose writing was interrupted.
func (c *Copier) readSlots() error {
	err := c.config.Store.View(context.Background(), func(snapshot kv.Snapshot) (err error) {
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
			c.config.Logger.Warningf("removing interrupted copies of %s: %v", c.config.Path, err)
		}
	}
	return nil
}

// isCopied reports whether a copy of the state's current version exists.
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

// checkSpace returns an error unless the free disk space is at least twice the size of the
// state: the new copy exists beside the one that it replaces, and others need disk space too.
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
	return fmt.Errorf("%d MiB are left, and a copy needs %d MiB: %w", left>>20, (2*size)>>20+1, syscall.ENOSPC)
}
