// Package providertest is the conformance suite of storage providers: it holds a
// [storage.Provider] and the sources that it opens to what the documentation of
// package storage says of them. A provider's own tests run it:
//
//	func TestConformance(t *testing.T) {
//		pool, err := storage.NewConfig("mine", "mine", nil)
//		if err != nil {
//			t.Fatal(err)
//		}
//		providertest.Run(t, providertest.Config{Provider: mine.New(), SourceConfig: pool})
//	}
//
// The suite makes real storage, in one source, and takes all of it away again. It
// asks the provider what it can do: what kinds of storage it supports, whether it
// is dynamic and releases, which optional capabilities it has. What it has to be
// told beyond that is in [Config], and all of it is optional: what a volume or a
// filesystem of this provider needs, how to reach the data on it, and how to see
// what is left behind.
//
// Each rule is a subtest, such as Volumes/AttachIsIdempotent. One that fails says
// which sentence of the contract it holds. Each makes storage of its own and
// takes it away, so that one rule that fails leaves the others alone.
//
// How a provider fares when its process is killed, its disk full or its hardware
// broken is not tested here: only the provider's author can make that happen.
package providertest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/instance"
	"github.com/stowage-io/stowage/storage"
)

// Config is what the suite has to know of a provider. Provider and SourceConfig
// must be set.
type Config struct {
	// Provider is the provider to test.
	Provider storage.Provider

	// Restart returns the provider as a new process has it, which remembers
	// nothing but what is stored outside of the process. Nil: Provider again,
	// whose sources are opened again.
	Restart func() storage.Provider

	// SourceConfig is the pool that sources are opened for.
	SourceConfig *storage.Config

	// InvalidAttrs are settings that each make a pool invalid. May be empty.
	InvalidAttrs storage.Attrs

	// Machine is where storage is attached. Nil: machine 0.
	Machine names.Tag

	// InstanceId is the machine's identity to the provider that runs it.
	// Empty: "instance-0".
	InstanceId instance.Id

	// Size is that of the volumes and filesystems that are made, in MiB. Some
	// twenty of them exist at once. 0: 16.
	Size uint64

	// CompleteVolume and CompleteFilesystem change the parameters of each
	// volume and filesystem, before it is created for the first time, into ones
	// that the provider takes: they add attributes, or a backing volume. They
	// leave tag and size alone. What they make themselves they take away with
	// t.Cleanup, which is after the suite has destroyed the volume or
	// filesystem. Nil: the parameters are good as they are.
	CompleteVolume     func(t testing.TB, params *storage.VolumeParams)
	CompleteFilesystem func(t testing.TB, params *storage.FilesystemParams)

	// MountDir is a directory in which the suite chooses mount points. Empty: a
	// temporary directory, without symbolic links in its path.
	MountDir string

	// OpenVolume and OpenFilesystem open what is attached: a volume itself, and
	// for a filesystem always the same file in it, which is made where it is
	// missing if it is to be written. Nil: the volume's block device, found by
	// its link or its name, and a file below the filesystem's path, if the
	// provider is machine-scoped; otherwise no rule looks at data.
	OpenVolume     func(attachment storage.VolumeAttachment, write bool) (File, error)
	OpenFilesystem func(attachment storage.FilesystemAttachment, write bool) (File, error)

	// Volatile is set where detaching gives up the data: a filesystem in
	// memory.
	Volatile bool

	// BlindToUse is set where the provider cannot know whether something is
	// attached, and so does not refuse to remove what is.
	BlindToUse bool

	// TakeReleased takes away what a release has left, on behalf of the new
	// owner. It returns an error if the storage with this id is not there. Nil:
	// a source that can import takes it back, and otherwise nobody looks.
	TakeReleased func(id string) error

	// ImportsByPath is set where a source that can import knows what it takes over
	// by a path alone. What was released then needs a TakeReleased.
	ImportsByPath bool

	// Leaks says, in words, what is there of the storage that was made: device,
	// mount, file. It is called when nothing should be. Nil: nobody looks,
	// other than in the list of volumes.
	Leaks func() []string

	// Patience is how long a call may take to return after its context is
	// cancelled, and how long an operation may be in progress
	// (storage.ErrInProgress). 0: 30 seconds.
	Patience time.Duration
}

// validate returns an error for what cannot be tested.
func (c Config) validate() error {
	if c.Provider == nil {
		return errors.NotValidf("providertest.Config with nil Provider")
	}
	if c.SourceConfig == nil {
		return errors.NotValidf("providertest.Config with nil SourceConfig")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Restart == nil {
		c.Restart = func() storage.Provider { return c.Provider }
	}
	if c.Machine == nil {
		c.Machine = names.NewMachineTag("0")
	}
	if c.InstanceId == "" {
		c.InstanceId = "instance-0"
	}
	if c.Size == 0 {
		c.Size = 16
	}
	if c.Leaks == nil {
		c.Leaks = func() []string { return nil }
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	return c
}

// Run runs the suite.
func Run(t *testing.T, config Config) {
	t.Helper()
	groups, err := groupsFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, test := range g.tests {
				t.Run(test.name, func(t *testing.T) { test.run(t) })
			}
		})
	}
}

// group is the tests of one kind of thing.
type group struct {
	name  string
	tests []test
}

// test is one rule for one provider.
type test struct {
	name string
	run  func(testing.TB)
}

// groupsFor returns the tests that there are for a provider.
func groupsFor(config Config) ([]group, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	s := &suite{Config: config.withDefaults()}

	provider := group{name: "Provider"}
	for _, r := range providerRules() {
		provider.tests = append(provider.tests, test{r.name, func(t testing.TB) {
			defer citeIfFailed(t, r.contract)
			r.check(t, s.Config)
		}})
	}
	groups := []group{provider}
	if !s.Provider.Dynamic() {
		// Storage that comes with its machine is not the source's to make.
		return groups, nil
	}
	for _, k := range kinds() {
		if !s.Provider.Supports(k.kind) {
			continue
		}
		g := group{name: k.group}
		for _, r := range sourceRules() {
			if r.only != storage.StorageKindUnknown && r.only != k.kind {
				continue
			}
			g.tests = append(g.tests, test{r.name, func(t testing.TB) {
				defer citeIfFailed(t, r.contract)
				b := s.newBench(t, k)
				defer b.clean()
				r.check(b)
			}})
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func citeIfFailed(t testing.TB, contract string) {
	if t.Failed() {
		t.Logf("the contract: %s", contract)
	}
}

// suite is one run over a provider.
type suite struct {
	Config
	// numbers is the last number that was given out for a tag.
	numbers atomic.Int64
}

// nextID returns the id of a tag that was not used before. What belongs to a
// machine has an id within the machine's.
func (s *suite) nextID() string {
	id := fmt.Sprint(s.numbers.Add(1))
	if s.Provider.Scope() == storage.ScopeMachine && s.Machine.Kind() == names.MachineTagKind {
		id = s.Machine.Id() + "/" + id
	}
	return id
}
