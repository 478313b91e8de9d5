// Package providertest is the conformance suite for storage providers. It checks that a
// [storage.Provider] and the sources that it opens keep the contract in the documentation of
// package storage. The tests of a provider run it:
//
//	func TestConformance(t *testing.T) {
//		pool, err := storage.NewConfig("mine", "mine", nil)
//		if err != nil {
//			t.Fatal(err)
//		}
//		providertest.Run(t, providertest.Config{Provider: mine.New(), SourceConfig: pool})
//	}
//
// The suite makes real storage, in one source, and removes all of it again. It asks the
// provider what it can do: which kinds of storage it supports, whether it is dynamic and can
// release storage, and which optional capabilities it has. [Config] contains everything else
// that the suite needs to know, and most of it is optional: what a volume or filesystem of
// this provider needs, how to access the data on it, and how to detect what is left behind.
//
// Each rule is a subtest, such as Volumes/AttachIsIdempotent. If it fails, it logs the
// sentence of the contract that it checks. Each rule makes its own storage and removes it, so
// a failed rule does not affect the others.
//
// The suite does not test what happens when the provider's process is killed, its disk is full
// or its hardware is broken: only the provider's author can make that happen.
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

// Config is what the suite needs to know about a provider. Provider and SourceConfig must be
// set.
type Config struct {
	// Provider is the provider to test.
	Provider storage.Provider

	// Restart returns the provider as a new process would have it, with only the state that is
	// stored outside the process. Nil: Provider, whose sources are opened again.
	Restart func() storage.Provider

	// SourceConfig is the pool for which sources are opened.
	SourceConfig *storage.Config

	// InvalidAttrs are settings, each one enough to make a pool invalid. They may be empty.
	InvalidAttrs storage.Attrs

	// Machine is the machine to which storage is attached. Nil: machine 0.
	Machine names.Tag

	// InstanceId is the machine's ID at the provider that runs it. Empty: "instance-0".
	InstanceId instance.Id

	// Size is the size of the volumes and filesystems that the suite makes, in MiB. Some
	// twenty of them exist at once. 0: 16.
	Size uint64

	// CompleteVolume and CompleteFilesystem complete the parameters of each volume and
	// filesystem, before it is created for the first time, so that the provider accepts them:
	// they add attributes, or a backing volume. They must not change the tag and the size.
	// They remove what they make themselves with t.Cleanup, which runs after the suite has
	// destroyed the volume or filesystem. Nil: the parameters are complete.
	CompleteVolume     func(t testing.TB, params *storage.VolumeParams)
	CompleteFilesystem func(t testing.TB, params *storage.FilesystemParams)

	// MountDir is a directory in which the suite chooses mount points. Its path must not
	// contain symbolic links. Empty: a temporary directory.
	MountDir string

	// OpenVolume and OpenFilesystem open the data of an attachment. OpenVolume opens the
	// volume itself. OpenFilesystem always opens the same file in the filesystem; if write is
	// true, it makes the file if necessary. Nil: for a machine-scoped provider, the volume's
	// block device, found by its link or its name, and a file in the filesystem; for any other
	// provider, no rule accesses data.
	OpenVolume     func(attachment storage.VolumeAttachment, write bool) (File, error)
	OpenFilesystem func(attachment storage.FilesystemAttachment, write bool) (File, error)

	// Volatile means that detaching loses the data, as for a filesystem in memory.
	Volatile bool

	// BlindToUse means that the provider cannot know whether something is attached, and
	// therefore does not refuse to remove what is attached.
	BlindToUse bool

	// TakeReleased removes released storage on behalf of its new owner. It returns an error if
	// there is no storage with the ID. Nil: if the source can import, the suite imports the
	// storage and destroys it; otherwise the suite does not check released storage.
	TakeReleased func(id string) error

	// ImportsByPath means that a source that can import identifies storage by a path only.
	// Released storage then needs TakeReleased.
	ImportsByPath bool

	// Leaks describes everything that exists of the storage that was made: devices, mounts,
	// files. The suite calls it when nothing should exist. Nil: the suite checks only the list
	// of volumes.
	Leaks func() []string

	// Patience limits how long a call may take to return after its context is cancelled, and
	// how long an operation may be in progress (storage.ErrInProgress). 0: 30 seconds.
	Patience time.Duration
}

// validate returns an error if the configuration is incomplete.
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

// Run runs the suite as subtests of t.
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

// group contains the tests of the provider itself, or of one kind of storage.
type group struct {
	name  string
	tests []test
}

// test is a rule, bound to a provider.
type test struct {
	name string
	run  func(testing.TB)
}

// groupsFor returns the tests that apply to a provider.
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
		// The storage of a static provider comes with its machine, so its sources make
		// nothing.
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

// suite is one run of the suite for a provider.
type suite struct {
	Config
	// numbers is the last number used for a tag.
	numbers atomic.Int64
}

// nextID returns an unused ID for a tag. The ID of storage that belongs to a machine begins
// with the machine's ID.
func (s *suite) nextID() string {
	id := fmt.Sprint(s.numbers.Add(1))
	if s.Provider.Scope() == storage.ScopeMachine && s.Machine.Kind() == names.MachineTagKind {
		id = s.Machine.Id() + "/" + id
	}
	return id
}
