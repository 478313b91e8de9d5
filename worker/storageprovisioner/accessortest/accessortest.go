// Package accessortest is the conformance suite for accessors. It checks that a state keeps the
// contract in the documentation of [storageprovisioner.Accessors]. The tests of a state run it:
//
//	func TestConformance(t *testing.T) {
//		accessortest.Run(t, accessortest.Config{Open: func(t testing.TB) accessortest.Subject {
//			s := mine.New()
//			s.Want("0", "machine-0")
//			return accessortest.Subject{
//				Accessors: s, Volume: names.NewVolumeTag("0"), Machine: names.NewMachineTag("0"),
//				Remove: func() { s.Unwant("0") },
//			}
//		}})
//	}
//
// Each rule is a subtest with a state of its own. If it fails, it logs the sentence of the
// contract that it checks. The suite uses one volume; of filesystems it checks that one that
// does not exist is not found. It does not check the optional capabilities.
package accessortest

import (
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Config is what the suite needs to know about a state.
type Config struct {
	// Open returns a new state. It removes what it makes with t.Cleanup. Required.
	Open func(t testing.TB) Subject
	// Patience limits how long an event may take. 0: 10 seconds.
	Patience time.Duration
}

// Subject is a state with one volume, which is wanted and not made, and its attachment to a
// machine with an instance ID. There are no filesystems. All fields are required.
type Subject struct {
	// Accessors are those of the scope in which the volume is: that of the environment, or of
	// the machine.
	Accessors storageprovisioner.Accessors
	Volume    names.VolumeTag
	Machine   names.MachineTag
	// Remove does what the state does when a user no longer wants the volume: the volume and its
	// attachment become dying.
	Remove func()
}

func (s Subject) validate() error {
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Accessors", s.Accessors == nil},
		{"Volume", s.Volume.Id() == ""},
		{"Machine", s.Machine.Id() == ""},
		{"Remove", s.Remove == nil},
	} {
		if field.missing {
			return errors.NotValidf("accessortest.Subject without %s", field.name)
		}
	}
	return nil
}

// Run runs the suite as subtests of t.
func Run(t *testing.T, config Config) {
	t.Helper()
	if config.Open == nil {
		t.Fatal(errors.NotValidf("accessortest.Config with nil Open"))
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) { r.run(t, config) })
	}
}

// rule is a part of the contract.
type rule struct {
	name     string
	contract string
	check    func(*bench)
}

func (r rule) run(t testing.TB, config Config) {
	defer func() {
		if t.Failed() {
			t.Logf("the contract: %s", r.contract)
		}
	}()
	s := config.Open(t)
	if err := s.validate(); err != nil {
		t.Fatal(err)
	}
	b := &bench{TB: t, Subject: s, patience: config.Patience}
	if b.patience == 0 {
		b.patience = 10 * time.Second
	}
	r.check(b)
}

var rules = []rule{{
	name:     "ResultsMatchArguments",
	contract: "A bulk call with N arguments returns N results, in the order of the arguments, each with its own error. CodeNotFound says that an entity does not exist.",
	check:    checkResults,
}, {
	name:     "UnmadeIsNotProvisioned",
	contract: "CodeNotProvisioned says that an entity exists and is not made yet.",
	check:    checkUnmade,
}, {
	name:     "ParametersAreComplete",
	contract: "The parameters of a volume name its provider and size, and those of its attachment the machine and its instance. The ID of the volume is empty until it is known.",
	check:    checkParams,
}, {
	name:     "WritesAreRead",
	contract: "SetVolumeInfo and SetVolumeAttachmentInfo record infos, which replace earlier ones. A nil slice means that everything has succeeded.",
	check:    checkWrites,
}, {
	name:     "WritesFailOneByOne",
	contract: "The error of one result concerns that entity alone.",
	check:    checkWritesFailOneByOne,
}, {
	name:     "StatusesAreSet",
	contract: "SetStatus sets statuses of volumes, by tag.",
	check:    checkStatuses,
}, {
	name:     "FirstEventHasEverything",
	contract: "The first event of a watcher has everything that exists, even if that is nothing. Watchers of volumes send IDs, those of attachments tags.",
	check:    checkFirstEvents,
}, {
	name:     "ChangesAreReported",
	contract: "Watchers report each change of a life.",
	check:    checkChanges,
}, {
	name:     "WatchersStop",
	contract: "The worker owns the watchers that it gets, and stops them: Kill ends a watcher, Wait then returns nil, and other watchers go on.",
	check:    checkWatchersStop,
}, {
	name:     "AttachedIsNotDead",
	contract: "A volume becomes dead only when it is attached nowhere, and then it does.",
	check:    checkLives,
}, {
	name:     "RemovedIsNotFound",
	contract: "What has been removed is not found. Removing it again is no other error than CodeNotFound.",
	check:    checkRemoved,
}}
