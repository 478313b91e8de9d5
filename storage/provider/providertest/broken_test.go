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
	refusesKindsOddly         flaw = "does not return a \"not supported\" error for a kind"
	changesItsMind            flaw = "is releasable every other time"
	namesPoolsBadly           flaw = "has a default pool with an invalid name"
	hasForeignPools           flaw = "has a default pool of another provider"
	hasInvalidPools           flaw = "has a default pool that it does not accept"
	hasPoolsTwice             flaw = "has two default pools with the same name"
	takesAnySettings          flaw = "accepts any settings"
	opensWithAnySettings      flaw = "opens sources for settings that it refuses"
	refusesSettingsOddly      flaw = "does not return a \"not valid\" error for settings"
	namesNoAttribute          flaw = "does not name the invalid setting"
	refusesKubernetesOddly    flaw = "does not return a \"not valid\" error for attributes"

	failsWithoutArguments   flaw = "fails without arguments"
	makesLessThanAsked      flaw = "makes less than requested"
	returnsAnotherTag       flaw = "returns what it made under another tag"
	returnsNothing          flaw = "returns neither what it made nor an error"
	reusesIDs               flaw = "gives everything the same ID"
	makesAnotherEachTime    flaw = "makes another one each time"
	forgetsWithARestart     flaw = "makes another one after a restart"
	wipesWhatIsCreatedAgain flaw = "wipes what it is asked to make again"
	failsAsAWhole           flaw = "fails as a whole for one item"
	stopsAtTheFirstFailure  flaw = "stops at the first failure"
	refusesWhatItMakes      flaw = "refuses valid parameters"
	makesWhatItValidates    flaw = "creates when it should only validate"
	deniesWhatItLeaves      flaw = "reports that nothing was made, but leaves something"
	changesResourceTags     flaw = "changes the caller's resource tags"

	listsTwice           flaw = "lists volumes twice"
	listsOnlyItsOwn      flaw = "lists only what this source has made"
	describesOddly       flaw = "does not return a \"not found\" error for a volume"
	describesAnotherSize flaw = "describes a wrong size"

	attachesElsewhere        flaw = "reports a wrong machine or path"
	attachesWhatIsNotThere   flaw = "attaches what does not exist"
	doesNotAttachTwice       flaw = "fails to attach what is already attached"
	attachesTwice            flaw = "attaches again what is already attached"
	wipesWhatIsAttachedAgain flaw = "wipes what it is asked to attach again"
	choosesNoPath            flaw = "chooses no path"
	ignoresReadOnly          flaw = "ignores read-only"
	saysReadOnlyOnly         flaw = "reports read-only, but allows writing"
	doesNotDetachTwice       flaw = "fails to detach what is already detached"
	doesNotDetachWhatIsGone  flaw = "fails to detach what was destroyed"
	detachesEverything       flaw = "detaches everything"
	losesDataOnDetach        flaw = "loses the data when it detaches"

	doesNotDestroyTwice    flaw = "fails to destroy what is already destroyed"
	keepsTheData           flaw = "keeps the data of what it destroys"
	destroysWhatIsAttached flaw = "destroys what is attached"
	releasesWhatIsAttached flaw = "releases what is attached"
	releasesAllTheSame     flaw = "releases although Releasable is false"
	doesNotReleaseTwice    flaw = "fails to release what is already released"
	destroysWhatItReleases flaw = "destroys what it should release"
	listsWhatItReleased    flaw = "lists what it has released"
	importsWhatIsNotThere  flaw = "imports what does not exist"
	doesNotImportTwice     flaw = "fails to import what is already imported"
	wipesWhatItImports     flaw = "wipes what it imports"
	leavesSomething        flaw = "leaves something of what it destroys"

	listsDetached            flaw = "lists what is not attached as attached"
	listsAnotherMachine      flaw = "lists another machine than the one that has the volume"
	listsAttachmentsOfItsOwn flaw = "lists attachments only of what this source has made"

	forgetsTags            flaw = "lists owners, but keeps no tags"
	forgetsSizes           flaw = "lists owners with a wrong size"
	listsOwnersOddly       flaw = "lists owners in any order"
	listsOwnersOfTheGone   flaw = "lists owners of what it destroyed"
	listsOwnersOfItsOwn    flaw = "lists owners only of what this source has made"
	saysNothingIsAttached  flaw = "lists everything as not attached"
	saysAllIsAttached      flaw = "lists everything as attached"
	saysAllIsReleased      flaw = "lists everything as released"
	adoptsAnothers         flaw = "returns existing storage to another owner"
	adoptsForNobody        flaw = "returns existing storage to a request without a UUID"
	adoptsTheData          flaw = "returns existing data to another owner"
	addsTags               flaw = "keeps the tags that it should replace"
	tagsWhatIsNotThere     flaw = "tags what does not exist"
	doesNotTagTwice        flaw = "fails to tag what is already tagged"
	doesNotTagWhatIsInUse  flaw = "fails to tag what is attached"
	tagsEverything         flaw = "tags everything"
	saysThatItWasUnmounted flaw = "reports that attached storage was unmounted"
	checksOnlyTheFirst     flaw = "checks only the first"
	mountsWhatIsNotThere   flaw = "sets mount options of what is not there"
	remountsWhatIsAttached flaw = "sets mount options of what is attached"
	wipesWhatGetsOptions   flaw = "wipes what gets mount options"
	detachesWhatItChecks   flaw = "detaches what it checks"

	wipesWhatItTags    flaw = "wipes what it tags"
	detachesWhatItTags flaw = "detaches what it tags"
	adoptsForTheFormer flaw = "returns tagged storage to its former owner"

	snapshotsSeeLaterWrites      flaw = "shows later writes in a snapshot"
	snapshotsGoWithOrigins       flaw = "destroys snapshots with their origin"
	clonesGoWithSnapshots        flaw = "destroys what was made from a snapshot with it"
	makesEmptyClones             flaw = "makes clones without contents"
	makesSmallClones             flaw = "makes clones as small as their origin"
	makesAnotherSnapshot         flaw = "makes another snapshot each time"
	makesSnapshotsAgain          flaw = "replaces the contents of a snapshot that is made again"
	forgetsSnapshots             flaw = "makes another snapshot after a restart"
	needsOriginsAgain            flaw = "needs the origin of a snapshot that exists"
	makesSnapshotsOfTheGone      flaw = "makes snapshots of what does not exist"
	sharesSnapshots              flaw = "returns a snapshot to another owner"
	sharesSnapshotsAmongStates   flaw = "returns a snapshot to another state"
	makesSnapshotsForNobody      flaw = "makes snapshots without an owner"
	listsSnapshotsAsStorage      flaw = "lists snapshots as volumes and filesystems"
	listsSnapshotsWithoutTags    flaw = "lists snapshots without tags"
	listsSnapshotsOddly          flaw = "lists snapshots in any order"
	listsDestroyedSnapshots      flaw = "lists destroyed snapshots"
	doesNotDestroySnapshotsTwice flaw = "fails to destroy a snapshot that is already destroyed"
	sharesData                   flaw = "shares data between a clone and its origin"
	returnsTheOrigin             flaw = "returns the origin as its clone"
	makesAnotherClone            flaw = "makes another clone each time"
	needsOriginsOfClones         flaw = "needs the origin of a clone that exists"
	clonesNothing                flaw = "makes clones of what does not exist"
	clonesAnySize                flaw = "makes clones that are smaller than their origin"
	clonesAnyOrigin              flaw = "does not return a \"not valid\" error for an origin"
	reportsNoCapacity            flaw = "reports no capacity"
	makesWhatItMeasures          flaw = "makes something when it reports its capacity"

	answersOutOfOrder       flaw = "returns results out of order"
	answersTooLittle        flaw = "returns no result for the last item"
	hangsWhenCancelled      flaw = "does not return when it is cancelled"
	failsOddlyWhenCancelled flaw = "does not return the context's error"
	leavesHalfOfIt          flaw = "does not complete an interrupted call"
	closesOlderSources      flaw = "closes a source when it opens another"
	takesOneCallAtATime     flaw = "accepts only one call at a time"
)

// breakages are the flaws, each with the rules that it must break.
var breakages = []struct {
	flaw  flaw
	rules []string
	only  []storage.StorageKind // what a provider with it supports, if not both
}{
	{opensWhatItDoesNotSupport, provider("OpensSupportedKinds"), filesystemsOnly},
	{refusesKindsOddly, provider("OpensSupportedKinds"), filesystemsOnly},
	{doesNotOpenWhatItSupports, provider("OpensSupportedKinds"), nil},
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

	{failsWithoutArguments, both("EmptyCalls"), nil},
	{makesLessThanAsked, both("CreateMakesRequestedStorage", "CreateFailsOneByOne"), nil},
	{returnsAnotherTag, both("CreateMakesRequestedStorage"), nil},
	{returnsNothing, both("CreateMakesRequestedStorage"), nil},
	{reusesIDs, both("CreateMakesRequestedStorage"), nil},
	{makesAnotherEachTime, both("CreateIsIdempotent"), nil},
	{forgetsWithARestart, both("CreateIsIdempotent"), nil},
	{wipesWhatIsCreatedAgain, both("CreateIsIdempotent"), nil},
	{failsAsAWhole, both("CreateFailsOneByOne", "AttachFailsOneByOne", "AttachedIsNotRemoved"), nil},
	{stopsAtTheFirstFailure, both("CreateFailsOneByOne", "AttachFailsOneByOne", "AttachedIsNotRemoved"), nil},
	{refusesWhatItMakes, both("ValidatePredictsCreate"), nil},
	{makesWhatItValidates, both("ValidatePredictsCreate"), nil},
	{deniesWhatItLeaves, both("NothingMadeLeavesNothing"), nil},
	{changesResourceTags, both("ArgumentsAreNotChanged"), nil},

	{listsTwice, volumesOnly("ListReturnsAllVolumes"), nil},
	{listsOnlyItsOwn, volumesOnly("ListReturnsAllVolumes"), nil},
	{describesOddly, volumesOnly("DescribeReturnsVolumes"), nil},
	{describesAnotherSize, volumesOnly("DescribeReturnsVolumes"), nil},

	{attachesElsewhere, both("AttachDescribesAttachment"), nil},
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
	{destroysWhatIsAttached, both("AttachedIsNotRemoved"), nil},
	{releasesWhatIsAttached, both("AttachedIsNotRemoved"), nil},
	{releasesAllTheSame, both("ReleaseKeepsData"), nil},
	{doesNotReleaseTwice, both("ReleaseKeepsData"), nil},
	{destroysWhatItReleases, both("ReleaseKeepsData", "ImportTakesOver"), nil},
	{listsWhatItReleased, volumesOnly("ReleaseKeepsData"), nil},
	{importsWhatIsNotThere, both("ImportTakesOver"), nil},
	{doesNotImportTwice, both("ImportTakesOver"), nil},
	{wipesWhatItImports, both("ImportTakesOver"), nil},
	{leavesSomething, both("NothingIsLeft"), nil},

	{listsDetached, volumesOnly("AttachmentsAreListed"), nil},
	{listsAnotherMachine, volumesOnly("AttachmentsAreListed"), nil},
	{listsAttachmentsOfItsOwn, volumesOnly("AttachmentsAreListed"), nil},

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

	{saysThatItWasUnmounted, both("CheckAcceptsAttached"), nil},
	{checksOnlyTheFirst, both("CheckAcceptsAttached"), nil},
	{mountsWhatIsNotThere, []string{"Filesystems/MountOptionsAreForDetached"}, nil},
	{remountsWhatIsAttached, []string{"Filesystems/MountOptionsAreForDetached"}, nil},
	{wipesWhatGetsOptions, []string{"Filesystems/MountOptionsAreForDetached"}, nil},
	{detachesWhatItChecks, both("CheckAcceptsAttached"), nil},

	{snapshotsSeeLaterWrites, both("SnapshotsKeepContents", "SnapshotsAreIdempotent"), nil},
	{snapshotsGoWithOrigins, both("SnapshotsKeepContents", "SnapshotsAreIdempotent"), nil},
	{clonesGoWithSnapshots, both("SnapshotsKeepContents"), nil},
	{makesEmptyClones, both("SnapshotsKeepContents", "ClonesAreIndependent"), nil},
	{makesSmallClones, both("SnapshotsKeepContents"), nil},
	{makesAnotherSnapshot, both("SnapshotsAreIdempotent"), nil},
	{makesSnapshotsAgain, both("SnapshotsAreIdempotent"), nil},
	{forgetsSnapshots, both("SnapshotsAreIdempotent"), nil},
	{needsOriginsAgain, both("SnapshotsAreIdempotent"), nil},
	{makesSnapshotsOfTheGone, both("SnapshotsAreIdempotent"), nil},
	{sharesSnapshots, both("SnapshotsHaveOwners"), nil},
	{sharesSnapshotsAmongStates, both("SnapshotsHaveOwners"), nil},
	{makesSnapshotsForNobody, both("SnapshotsHaveOwners"), nil},
	{listsSnapshotsAsStorage, both("SnapshotsAreListed"), nil},
	{listsSnapshotsWithoutTags, both("SnapshotsAreListed"), nil},
	{listsSnapshotsOddly, both("SnapshotsAreListed"), nil},
	{listsDestroyedSnapshots, both("SnapshotsAreListed"), nil},
	{doesNotDestroySnapshotsTwice, both("SnapshotsAreListed"), nil},
	{sharesData, both("ClonesAreIndependent"), nil},
	{returnsTheOrigin, both("ClonesAreIndependent"), nil},
	{makesAnotherClone, both("ClonesAreIndependent"), nil},
	{needsOriginsOfClones, both("SnapshotsKeepContents", "ClonesAreIndependent"), nil},
	{clonesNothing, both("OriginMustExist"), nil},
	{clonesAnySize, both("OriginMustExist"), nil},
	{clonesAnyOrigin, both("OriginMustExist"), nil},
	{reportsNoCapacity, both("CapacityCanBeUsed"), nil},
	{makesWhatItMeasures, both("CapacityCanBeUsed"), nil},

	{answersOutOfOrder, both("BulkCallsAnswerInOrder"), nil},
	{answersTooLittle, both("BulkCallsAnswerInOrder"), nil},
	{hangsWhenCancelled, both("CancelledCallsReturnSoon"), nil},
	{failsOddlyWhenCancelled, both("CancelledCallsReturnSoon"), nil},
	{leavesHalfOfIt, both("InterruptedCallsAreFinishedByRepeating"), nil},
	{closesOlderSources, both("SourcesAreIndependent"), nil},
	{takesOneCallAtATime, both("SourcesAreIndependent", "ConcurrentSourceTakesCallsAtOnce"), nil},
}

var filesystemsOnly = []storage.StorageKind{storage.StorageKindFilesystem}

func provider(rule string) []string { return []string{"Provider/" + rule} }

func volumesOnly(rule string) []string { return []string{"Volumes/" + rule} }

// both returns the rules for volumes and for filesystems.
func both(rules ...string) []string {
	var all []string
	for _, rule := range rules {
		all = append(all, "Volumes/"+rule, "Filesystems/"+rule)
	}
	return all
}

// recorder is a testing.TB that records how a test ended, and fails no test.
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

// outcomes runs the suite and returns the result of each rule, by its full name.
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

// Behaviour O11.
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

// A provider without flaws passes all rules, with each of the choices that providers
// have.
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

// staticProvider is a provider whose storage comes with its machine.
type staticProvider struct{ *memory }

func (staticProvider) Dynamic() bool { return false }

func TestStaticProviderMakesNothing(t *testing.T) {
	m := newMemory(sound)
	config := memoryConfig(m)
	config.Provider = staticProvider{m}
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
			t.Errorf("config %+v is accepted", bad)
		}
	}
}
