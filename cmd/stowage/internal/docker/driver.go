package docker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

// Way is the way in of storage that is asked for by Docker or Podman.
const Way = "docker"

// Machine is the name of the machine, which the engines do not know.
const Machine = "this-machine"

// Logger receives messages for the operator.
type Logger interface {
	Debugf(format string, args ...any)
}

// Settings are what users choose of a [Config].
type Settings struct {
	// SocketPath is where the plugin listens. Required.
	SocketPath string
	// Pool and SizeMiB are those of volumes that are made without options, as by "docker run". Required.
	Pool    string
	SizeMiB uint64
}

// MakeDir makes the directory of a socket, as the engines expect it, unless it exists.
func MakeDir(socketPath string) error {
	return errors.Annotate(os.MkdirAll(filepath.Dir(socketPath), 0o755), "volume plugin")
}

// Config configures the plugin.
type Config struct {
	Settings
	// Volumes is the storage of [Way], in which this machine is called [Machine]. Clock and Logger are
	// required, too.
	Volumes asked.Manager
	Clock   clock.Clock
	Logger  Logger
}

// Validate returns an error that names the field that is not valid.
func (c Config) Validate() error {
	switch {
	case c.Pool == "":
		return errors.NotValidf("empty Pool")
	case c.SizeMiB == 0:
		return errors.NotValidf("SizeMiB 0")
	case c.Volumes == nil:
		return errors.NotValidf("nil Volumes")
	case c.Clock == nil:
		return errors.NotValidf("nil Clock")
	case c.Logger == nil:
		return errors.NotValidf("nil Logger")
	}
	return nil
}

// driver carries out the calls of engines.
type driver struct {
	config Config

	mu   sync.Mutex
	busy map[string]*user // by the name of the volume
}

// user is those who work on a volume, or wait for their turn.
type user struct {
	turn chan struct{}
	n    int
}

// begin waits until no other call changes the volume. The caller calls end.
func (d *driver) begin(ctx context.Context, name string) (end func(), err error) {
	d.mu.Lock()
	u := d.busy[name]
	if u == nil {
		u = &user{turn: make(chan struct{}, 1)}
		d.busy[name] = u
	}
	u.n++
	d.mu.Unlock()
	leave := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if u.n--; u.n == 0 {
			delete(d.busy, name)
		}
	}
	select {
	case u.turn <- struct{}{}:
		return func() { <-u.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// The options of a volume.
const (
	optionPool         = "pool"
	optionSize         = "size"
	optionFilesystem   = "filesystem"
	optionMkfsOptions  = "mkfs-options"
	optionMountOptions = "mount-options"
)

var options = []string{optionPool, optionSize, optionFilesystem, optionMkfsOptions, optionMountOptions}

// parse returns what is asked for with options. What no option says is as for a volume without any.
func (d *driver) parse(name string, opts map[string]string) (asked.Request, error) {
	for _, key := range slices.Sorted(maps.Keys(opts)) {
		if !slices.Contains(options, key) {
			return asked.Request{}, errors.Errorf("option %q is not known: these are: %s", key, strings.Join(options, ", "))
		}
	}
	r := asked.Request{
		Name: name, Kind: storage.StorageKindFilesystem, Machine: Machine, Pool: cmp.Or(opts[optionPool], d.config.Pool),
		SizeMiB: d.config.SizeMiB, Filesystem: opts[optionFilesystem], MkfsOptions: opts[optionMkfsOptions], MountOptions: opts[optionMountOptions],
	}
	if text := opts[optionSize]; text != "" {
		size, err := storage.ParseSize(text)
		if err != nil {
			return asked.Request{}, errors.Annotate(err, "option size")
		}
		r.SizeMiB = size
	}
	r.LimitMiB = r.SizeMiB
	return r, nil
}

// compare returns how an existing volume differs from the options that are given; "" if it does not.
func compare(v *asked.Volume, r asked.Request, opts map[string]string) string {
	for _, property := range []struct{ option, has, wanted string }{
		{optionPool, v.Pool, r.Pool},
		{optionFilesystem, v.Filesystem, r.Filesystem},
		{optionMkfsOptions, v.MkfsOptions, r.MkfsOptions},
		{optionMountOptions, v.MountOptions, r.MountOptions},
	} {
		if opts[property.option] != "" && property.has != property.wanted {
			return fmt.Sprintf("its %s is %q", property.option, property.has)
		}
	}
	if opts[optionSize] != "" && v.WantedMiB != r.SizeMiB {
		return fmt.Sprintf("its size is %d MiB: `stowage resize %s` can change it", v.WantedMiB, v.Storage)
	}
	return ""
}

// named returns a volume.
func (d *driver) named(name string) (asked.Volume, error) {
	v, err := d.config.Volumes.Named(name)
	if errors.Is(err, errors.NotFound) {
		err = errors.NotFoundf("volume %s", name)
	}
	return v, err
}

func (d *driver) create(ctx context.Context, r request) (answer, error) {
	end, err := d.begin(ctx, r.Name)
	if err != nil {
		return answer{}, err
	}
	defer end()
	wanted, err := d.parse(r.Name, r.Opts)
	if err != nil {
		return answer{}, errors.Annotatef(err, "volume %s", r.Name)
	}
	v, err := d.named(r.Name)
	isNew := errors.Is(err, errors.NotFound)
	switch {
	case isNew:
		v, err = d.config.Volumes.Create(ctx, wanted)
	case err != nil:
	case v.Life != life.Alive:
		err = errors.New("the volume of that name is still being removed: try again later")
	default:
		if differs := compare(&v, wanted, r.Opts); differs != "" {
			err = errors.Errorf("it exists, and was asked for otherwise: %s", differs)
		}
	}
	if err == nil {
		_, err = d.attach(ctx, v)
		if err != nil && isNew {
			// The engine forgets a volume whose creation has failed. Nothing is in it.
			err = d.takeBack(ctx, v.ID, err)
		}
	}
	return answer{}, errors.Annotatef(err, "volume %s", r.Name)
}

// takeBackTimeout is how long recording the removal of a failed creation may take.
const takeBackTimeout = 5 * time.Second

// takeBack requests that a volume be removed which could not be attached, and returns the reason.
func (d *driver) takeBack(ctx context.Context, id string, reason error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTimeout)
	defer cancel()
	if err := d.config.Volumes.Remove(ctx, id); err != nil && !errors.Is(err, errors.NotFound) {
		return errors.Annotatef(reason, "(removing it again: %v)", err)
	}
	return reason
}

// attach makes sure that a volume is made and attached, and returns it.
func (d *driver) attach(ctx context.Context, v asked.Volume) (asked.Volume, error) {
	if v.IsAttached() {
		return v, nil
	}
	await := func(done func(*asked.Volume) bool) (err error) {
		v, err = asked.Await(ctx, d.config.Clock, d.config.Volumes, v.ID, func(v *asked.Volume) (bool, error) { return done(v), nil })
		return err
	}
	if v.Detaching { // since a removal that was refused; its user may have ended
		if err := d.config.Volumes.Retry(ctx, v.ID); err != nil {
			return v, err
		}
	}
	if err := await(func(v *asked.Volume) bool { return v.Provisioned && !v.Detaching }); err != nil {
		return v, err
	}
	if err := d.config.Volumes.Attach(ctx, v.ID, Machine); err != nil {
		return v, err
	}
	return v, await((*asked.Volume).IsAttached)
}

func (d *driver) mount(ctx context.Context, r request) (answer, error) {
	end, err := d.begin(ctx, r.Name)
	if err != nil {
		return answer{}, err
	}
	defer end()
	v, err := d.named(r.Name)
	if err == nil {
		v, err = d.attach(ctx, v)
	}
	return answer{Mountpoint: v.Location}, errors.Annotatef(err, "mounting volume %s", r.Name)
}

func (d *driver) path(_ context.Context, r request) (answer, error) {
	v, err := d.named(r.Name)
	return answer{Mountpoint: v.Location}, err
}

func (d *driver) get(_ context.Context, r request) (answer, error) {
	v, err := d.named(r.Name)
	if err != nil {
		return answer{}, err
	}
	wire := wired(&v)
	return answer{Volume: &wire}, nil
}

func (d *driver) list(context.Context, request) (answer, error) {
	ids, err := d.config.Volumes.IDs()
	if err != nil {
		return answer{}, err
	}
	all := []wireVolume{}
	for _, id := range ids {
		v, err := d.config.Volumes.Volume(id)
		switch {
		case errors.Is(err, errors.NotFound): // it was removed since
		case err != nil:
			return answer{}, err
		case v.Life == life.Alive:
			all = append(all, wired(&v))
		}
	}
	return answer{Volumes: &all}, nil
}

// wired returns a volume as "docker volume inspect" shows it.
func wired(v *asked.Volume) wireVolume {
	shown := map[string]any{"Storage": v.Storage, "Pool": v.Pool, "SizeMiB": v.SizeMiB, "Status": v.Status}
	if v.Message != "" {
		shown["Message"] = v.Message
	}
	return wireVolume{Name: v.Name, Mountpoint: v.Location, Status: shown}
}

// remove removes a volume with its data, unless a process uses it.
func (d *driver) remove(ctx context.Context, r request) (answer, error) {
	end, err := d.begin(ctx, r.Name)
	if err != nil {
		return answer{}, err
	}
	defer end()
	v, err := d.named(r.Name)
	if errors.Is(err, errors.NotFound) {
		return answer{}, nil
	}
	if err == nil && v.Life == life.Alive && !v.IsDetached() {
		err = d.detach(ctx, v)
	}
	if err == nil {
		err = d.config.Volumes.Remove(ctx, v.ID)
	}
	if err == nil {
		_, err = asked.Await(ctx, d.config.Clock, d.config.Volumes, v.ID, func(*asked.Volume) (bool, error) { return false, nil })
	}
	if errors.Is(err, errors.NotFound) {
		err = nil
	}
	return answer{}, errors.Annotatef(err, "removing volume %s", r.Name)
}

// detach makes sure that a volume is detached. As long as a process uses the volume, that fails; the volume
// is detached when nobody uses it any more, and keeps its data.
func (d *driver) detach(ctx context.Context, v asked.Volume) error {
	if err := d.config.Volumes.Detach(ctx, v.ID); err != nil {
		return err
	}
	_, err := asked.Await(ctx, d.config.Clock, d.config.Volumes, v.ID, func(v *asked.Volume) (bool, error) { return v.IsDetached(), nil })
	return err
}
