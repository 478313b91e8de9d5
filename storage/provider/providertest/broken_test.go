package providertest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/storage"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// flaw is one way in which a provider breaks the contract.
type flaw string

const (
	sound flaw = ""

	opensWhatItDoesNotSupport flaw = "opens sources of what it does not support"
	doesNotOpenWhatItSupports flaw = "does not open sources of what it supports"
	refusesKindsOddly         flaw = "does not say that a kind is not supported"
	changesItsMind            flaw = "is releasable every other time"
	namesPoolsBadly           flaw = "has a default pool whose name is not valid"
	hasForeignPools           flaw = "has a default pool of another provider"
	hasInvalidPools           flaw = "has a default pool that it does not accept"
	hasPoolsTwice             flaw = "has two default pools of one name"
	takesAnySettings          flaw = "takes any settings"
	opensWithAnySettings      flaw = "opens sources for settings that it refuses"
	refusesSettingsOddly      flaw = "does not say that settings are not valid"
	namesNoAttribute          flaw = "does not say which setting is not valid"
	refusesKubernetesOddly    flaw = "does not say that attributes are not valid"

	failsWithoutArguments   flaw = "fails without arguments"
	makesLessThanAsked      flaw = "makes less than was asked for"
	returnsAnotherTag       flaw = "returns what it made under another tag"
	returnsNothing          flaw = "returns neither what it made nor an error"
	reusesIDs               flaw = "gives everything the same id"
	makesAnotherEachTime    flaw = "makes another one each time"
	forgetsWithARestart     flaw = "makes another one after a restart"
	wipesWhatIsCreatedAgain flaw = "wipes what it is asked to make again"
	failsAsAWhole           flaw = "fails as a whole for one item"
	stopsAtTheFirstFailure  flaw = "stops at the first failure"
	refusesWhatItMakes      flaw = "says that parameters are not valid which are"
	makesWhatItValidates    flaw = "makes what it should only validate"
	deniesWhatItLeaves      flaw = "says that nothing was made, and leaves it"
	changesResourceTags     flaw = "changes the caller's resource tags"

	listsTwice           flaw = "lists volumes twice"
	listsOnlyItsOwn      flaw = "lists only what the source has made itself"
	describesOddly       flaw = "does not say that a volume is not found"
	describesAnotherSize flaw = "describes another size than was made"

	attachesElsewhere        flaw = "says that it attached elsewhere"
	attachesWhatIsNotThere   flaw = "attaches what is not there"
	doesNotAttachTwice       flaw = "does not attach what is attached"
	attachesTwice            flaw = "attaches what is attached once more"
	wipesWhatIsAttachedAgain flaw = "wipes what it is asked to attach again"
	choosesNoPath            flaw = "chooses no path"
	ignoresReadOnly          flaw = "attaches for writing in any case"
	saysReadOnlyOnly         flaw = "says read-only, and lets write"
	doesNotDetachTwice       flaw = "does not detach what is detached"
	doesNotDetachWhatIsGone  flaw = "does not detach what is destroyed"
	detachesEverything       flaw = "detaches everything"
	losesDataOnDetach        flaw = "loses the data when it detaches"

	doesNotDestroyTwice    flaw = "does not destroy what is destroyed"
	keepsTheData           flaw = "keeps the data of what it destroys"
	destroysWhatIsAttached flaw = "destroys what is attached"
	releasesWhatIsAttached flaw = "releases what is attached"
	releasesAllTheSame     flaw = "releases though it says that it cannot"
	doesNotReleaseTwice    flaw = "does not release what is released"
	destroysWhatItReleases flaw = "destroys what it should release"
	listsWhatItReleased    flaw = "lists what it has released"
	importsWhatIsNotThere  flaw = "imports what is not there"
	doesNotImportTwice     flaw = "does not import what is imported"
	wipesWhatItImports     flaw = "wipes what it imports"
	leavesSomething        flaw = "leaves something of what it destroys"

	forgetsTags            flaw = "keeps no tags, and lists owners"
	forgetsSizes           flaw = "lists owners with another size"
	listsOwnersOddly       flaw = "lists owners in any order"
	listsOwnersOfTheGone   flaw = "lists owners of what it destroyed"
	listsOwnersOfItsOwn    flaw = "lists owners of what the source has made itself only"
	saysNothingIsAttached  flaw = "lists everything as not attached"
	saysAllIsAttached      flaw = "lists everything as attached"
	saysAllIsReleased      flaw = "lists everything as released"
	adoptsAnothers         flaw = "gives what it made to another"
	adoptsForNobody        flaw = "gives what it made to who has no UUID"
	adoptsTheData          flaw = "gives the data of what it made to another"
	addsTags               flaw = "keeps the tags that it is to replace"
	tagsWhatIsNotThere     flaw = "tags what is not there"
	doesNotTagTwice        flaw = "does not tag what is tagged"
	doesNotTagWhatIsInUse  flaw = "does not tag what is attached"
	tagsEverything         flaw = "tags everything"
	saysThatItWasUnmounted flaw = "says that what is attached was unmounted"
	looksAtTheFirst        flaw = "looks at the first only"
	detachesWhatItLooksAt  flaw = "detaches what it looks at"

	wipesWhatItTags    flaw = "wipes what it tags"
	detachesWhatItTags flaw = "detaches what it tags"
	adoptsForTheFormer flaw = "gives what is tagged to who had it before"

	answersOutOfOrder       flaw = "answers out of order"
	answersTooLittle        flaw = "answers for all but the last"
	hangsWhenCancelled      flaw = "does not return when it is cancelled"
	failsOddlyWhenCancelled flaw = "does not say that it was cancelled"
	leavesHalfOfIt          flaw = "does not finish what was interrupted"
	closesOlderSources      flaw = "closes a source when it opens another"
	takesOneCallAtATime     flaw = "takes one call at a time"
)

// breakages are the flaws, each with the rules that it must fail.
var breakages = []struct {
	flaw  flaw
	rules []string
	only  []storage.StorageKind // what a provider with it supports, if not both
}{
	{opensWhatItDoesNotSupport, provider("SupportsWhatItOpens"), filesystemsOnly},
	{refusesKindsOddly, provider("SupportsWhatItOpens"), filesystemsOnly},
	{doesNotOpenWhatItSupports, provider("SupportsWhatItOpens"), nil},
	{changesItsMind, provider("AnswersStayTheSame"), nil},
	{namesPoolsBadly, provider("DefaultPoolsAreValid"), nil},
	{hasForeignPools, provider("DefaultPoolsAreValid"), nil},
	{hasInvalidPools, provider("DefaultPoolsAreValid"), nil},
	{hasPoolsTwice, provider("DefaultPoolsAreValid"), nil},
	{takesAnySettings, provider("SettingsAreChecked"), nil},
	{opensWithAnySettings, provider("SettingsAreChecked"), nil},
	{refusesSettingsOddly, provider("SettingsAreChecked"), nil},
	{namesNoAttribute, provider("SettingsAreChecked"), nil},
	{refusesKubernetesOddly, provider("KubernetesErrorsAreNotValid"), nil},

	{failsWithoutArguments, both("NothingGivesNothing"), nil},
	{makesLessThanAsked, both("CreateMakesWhatIsAsked", "CreateFailsOneByOne"), nil},
	{returnsAnotherTag, both("CreateMakesWhatIsAsked"), nil},
	{returnsNothing, both("CreateMakesWhatIsAsked"), nil},
	{reusesIDs, both("CreateMakesWhatIsAsked"), nil},
	{makesAnotherEachTime, both("CreateIsIdempotent"), nil},
	{forgetsWithARestart, both("CreateIsIdempotent"), nil},
	{wipesWhatIsCreatedAgain, both("CreateIsIdempotent"), nil},
	{failsAsAWhole, both("CreateFailsOneByOne", "AttachFailsOneByOne", "WhatIsAttachedIsNotRemoved"), nil},
	{stopsAtTheFirstFailure, both("CreateFailsOneByOne", "AttachFailsOneByOne", "WhatIsAttachedIsNotRemoved"), nil},
	{refusesWhatItMakes, both("ValidateTellsWhetherCreateSucceeds"), nil},
	{makesWhatItValidates, both("ValidateTellsWhetherCreateSucceeds"), nil},
	{deniesWhatItLeaves, both("NothingMadeLeavesNothing"), nil},
	{changesResourceTags, both("ArgumentsAreNotChanged"), nil},

	{listsTwice, volumesOnly("ListHasWhatExists"), nil},
	{listsOnlyItsOwn, volumesOnly("ListHasWhatExists"), nil},
	{describesOddly, volumesOnly("DescribeTellsWhatExists"), nil},
	{describesAnotherSize, volumesOnly("DescribeTellsWhatExists"), nil},

	{attachesElsewhere, both("AttachTellsWhere"), nil},
	{attachesWhatIsNotThere, both("AttachFailsOneByOne"), nil},
	{doesNotAttachTwice, both("AttachIsIdempotent"), nil},
	{attachesTwice, both("AttachIsIdempotent"), nil},
	{wipesWhatIsAttachedAgain, both("AttachIsIdempotent"), nil},
	{choosesNoPath, []string{"Filesystems/AttachChoosesAPath"}, nil},
	{ignoresReadOnly, both("ReadOnlyCannotBeWritten"), nil},
	{saysReadOnlyOnly, both("ReadOnlyCannotBeWritten"), nil},
	{doesNotDetachTwice, both("DetachIsIdempotent"), nil},
	{doesNotDetachWhatIsGone, both("DetachIsIdempotent"), nil},
	{detachesEverything, both("DetachTouchesNothingElse"), nil},
	{losesDataOnDetach, both("DataSurviveDetaching"), nil},

	{doesNotDestroyTwice, both("DestroyIsIdempotent"), nil},
	{keepsTheData, both("DestroyRemovesTheData"), nil},
	{destroysWhatIsAttached, both("WhatIsAttachedIsNotRemoved"), nil},
	{releasesWhatIsAttached, both("WhatIsAttachedIsNotRemoved"), nil},
	{releasesAllTheSame, both("ReleaseGivesAway"), nil},
	{doesNotReleaseTwice, both("ReleaseGivesAway"), nil},
	{destroysWhatItReleases, both("ReleaseGivesAway", "ImportTakesOver"), nil},
	{listsWhatItReleased, volumesOnly("ReleaseGivesAway"), nil},
	{importsWhatIsNotThere, both("ImportTakesOver"), nil},
	{doesNotImportTwice, both("ImportTakesOver"), nil},
	{wipesWhatItImports, both("ImportTakesOver"), nil},
	{leavesSomething, both("NothingIsLeft"), nil},

	{forgetsTags, both("OwnersAreListed"), nil},
	{forgetsSizes, both("OwnersAreListed"), nil},
	{listsOwnersOddly, both("OwnersAreListed"), nil},
	{listsOwnersOfTheGone, both("OwnersAreListed"), nil},
	{listsOwnersOfItsOwn, both("OwnersAreListed"), nil},
	{saysNothingIsAttached, both("OwnersAreListed"), nil},
	{saysAllIsAttached, both("OwnersAreListed"), nil},
	{saysAllIsReleased, both("OwnersAreListed"), nil},
	{adoptsAnothers, both("CreateAdoptsOnlyItsOwn"), nil},
	{adoptsForNobody, both("CreateAdoptsOnlyItsOwn"), nil},
	{adoptsTheData, both("CreateAdoptsOnlyItsOwn"), nil},
	{addsTags, both("TaggingReplacesTags"), nil},
	{tagsWhatIsNotThere, both("TaggingReplacesTags"), nil},
	{doesNotTagTwice, both("TaggingReplacesTags"), nil},
	{doesNotTagWhatIsInUse, both("TaggingReplacesTags"), nil},
	{tagsEverything, both("TaggingReplacesTags"), nil},
	{wipesWhatItTags, both("TaggingReplacesTags"), nil},
	{detachesWhatItTags, both("TaggingReplacesTags"), nil},
	{adoptsForTheFormer, both("TaggingReplacesTags"), nil},

	{saysThatItWasUnmounted, both("WhatIsAttachedIsWell"), nil},
	{looksAtTheFirst, both("WhatIsAttachedIsWell"), nil},
	{detachesWhatItLooksAt, both("WhatIsAttachedIsWell"), nil},

	{answersOutOfOrder, both("BulkCallsAnswerInOrder"), nil},
	{answersTooLittle, both("BulkCallsAnswerInOrder"), nil},
	{hangsWhenCancelled, both("CancelledCallsSaySo"), nil},
	{failsOddlyWhenCancelled, both("CancelledCallsSaySo"), nil},
	{leavesHalfOfIt, both("InterruptedCallsAreFinishedByRepeating"), nil},
	{closesOlderSources, both("SourcesAreIndependent"), nil},
	{takesOneCallAtATime, both("SourcesAreIndependent", "ConcurrentSourceTakesCallsAtOnce"), nil},
}

var filesystemsOnly = []storage.StorageKind{storage.StorageKindFilesystem}

func provider(rule string) []string { return []string{"Provider/" + rule} }

func volumesOnly(rule string) []string { return []string{"Volumes/" + rule} }

// both is for flaws that volumes and filesystems have alike.
func both(rules ...string) []string {
	var all []string
	for _, rule := range rules {
		all = append(all, "Volumes/"+rule, "Filesystems/"+rule)
	}
	return all
}

// recorder is a testing.TB that remembers how a test ended, and fails nobody.
type recorder struct {
	testing.TB
	mu              sync.Mutex
	failed, skipped bool
	said            []string
}

func (r *recorder) say(failed bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.said = append(r.said, text)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Helper()                           {}
func (r *recorder) Log(args ...any)                   { r.say(false, fmt.Sprint(args...)) }
func (r *recorder) Logf(format string, args ...any)   { r.say(false, fmt.Sprintf(format, args...)) }
func (r *recorder) Error(args ...any)                 { r.say(true, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.say(true, fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) Skip(args ...any)                  { r.Log(args...); r.SkipNow() }
func (r *recorder) Skipf(format string, args ...any)  { r.Logf(format, args...); r.SkipNow() }
func (r *recorder) SkipNow()                          { r.skipped = true; runtime.Goexit() }

// outcomes runs the suite and returns how each rule ended, by its full name.
func outcomes(t *testing.T, config Config) map[string]*recorder {
	t.Helper()
	groups, err := groupsFor(config)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*recorder)
	for _, g := range groups {
		for _, test := range g.tests {
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				test.run(r)
			}()
			<-done
			all[g.name+"/"+test.name] = r
		}
	}
	return all
}

func TestEveryFlawIsFound(t *testing.T) {
	for _, broken := range breakages {
		t.Run(string(broken.flaw), func(t *testing.T) {
			m := newMemory(broken.flaw)
			defer close(m.end)
			if broken.only != nil {
				m.kinds = broken.only
			}
			config := memoryConfig(m)
			if broken.flaw == hangsWhenCancelled {
				config.Patience = 50 * time.Millisecond
			}
			results := outcomes(t, config)
			for _, name := range broken.rules {
				r := results[name]
				if r == nil {
					t.Fatalf("there is no rule %s", name)
				}
				if !r.failed {
					t.Errorf("a provider that %s passes %s", broken.flaw, name)
				}
				t.Logf("%s: %q", name, r.said)
			}
		})
	}
}

func TestEveryRuleFindsAFlaw(t *testing.T) {
	var found []string
	for _, broken := range breakages {
		found = append(found, broken.rules...)
	}
	for name := range outcomes(t, memoryConfig(newMemory(sound))) {
		if !slices.Contains(found, name) {
			t.Errorf("rule %s finds no flaw", name)
		}
	}
}

// A sound provider passes all rules, whatever it is free to do otherwise.
func TestSoundProvidersPass(t *testing.T) {
	for name, free := range map[string]func(*memory, *Config){
		"as it is":                   func(*memory, *Config) {},
		"attaches what it makes":     func(m *memory, _ *Config) { m.attachesWhatItMakes = true },
		"takes its time":             func(m *memory, _ *Config) { m.takesItsTime = true },
		"releases nothing":           func(m *memory, _ *Config) { m.releases = false },
		"makes filesystems only":     func(m *memory, _ *Config) { m.kinds = filesystemsOnly },
		"shows no data":              func(_ *memory, c *Config) { c.OpenVolume, c.OpenFilesystem = nil, nil },
		"keeps no tags":              func(m *memory, _ *Config) { m.flaw, m.keepsNoTags = adoptsAnothers, true },
		"refuses what is another's":  func(m *memory, _ *Config) { m.refusesAnothers = true },
		"gives up data on detach":    func(m *memory, c *Config) { m.flaw, c.Volatile = losesDataOnDetach, true },
		"does not know what is used": func(m *memory, c *Config) { m.flaw, c.BlindToUse = destroysWhatIsAttached, true },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(sound)
			config := memoryConfig(m)
			free(m, &config)
			Run(t, config)
		})
	}
}

// fixed is a provider whose storage comes with its machine.
type fixed struct{ *memory }

func (fixed) Dynamic() bool { return false }

func TestStorageThatIsNotDynamicIsNotMade(t *testing.T) {
	m := newMemory(sound)
	config := memoryConfig(m)
	config.Provider = fixed{m}
	for name, r := range outcomes(t, config) {
		if r.failed {
			t.Errorf("%s: %q", name, r.said)
		}
	}
	if m.last != 0 {
		t.Errorf("%d objects were made", m.last)
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := memoryConfig(newMemory(sound))
	for _, bad := range []Config{{SourceConfig: good.SourceConfig}, {Provider: good.Provider}} {
		if _, err := groupsFor(bad); err == nil {
			t.Errorf("a suite for %+v", bad)
		}
	}
}
