package providertest

import (
	"testing"

	"github.com/stowage-io/stowage/storage"
)

// providerRule is a rule for a provider itself.
type providerRule struct {
	name     string
	contract string
	check    func(testing.TB, Config)
}

// sourceRule is a rule for the sources of a dynamic provider.
type sourceRule struct {
	name     string
	contract string
	// only is the kind of storage that the rule is for, or unknown for both.
	only  storage.StorageKind
	check func(*bench)
}

func providerRules() []providerRule {
	return []providerRule{{
		name:     "SupportsWhatItOpens",
		contract: "VolumeSource and FilesystemSource return an error that satisfies errors.IsNotSupported where, and only where, Supports is false for the kind.",
		check:    checkSupports,
	}, {
		name:     "AnswersStayTheSame",
		contract: "Scope, Dynamic, Releasable and Supports are properties of the provider. Its methods are safe for concurrent use.",
		check:    checkAnswersStayTheSame,
	}, {
		name:     "DefaultPoolsAreValid",
		contract: "DefaultPools returns pools that exist without anybody defining them: of this provider, each under a valid name of its own, and with settings that ValidateConfig accepts.",
		check:    checkDefaultPools,
	}, {
		name:     "SettingsAreChecked",
		contract: "ValidateConfig checks a pool's settings. The error satisfies errors.IsNotValid and names the attribute. Sources are not opened for settings that are no good.",
		check:    checkSettings,
	}, {
		name:     "KubernetesErrorsAreNotValid",
		contract: "The error of ValidateForK8s satisfies errors.IsNotValid.",
		check:    checkKubernetes,
	}}
}

func sourceRules() []sourceRule {
	return []sourceRule{{
		name:     "NothingGivesNothing",
		contract: "The results have the length of the arguments, also when that is nought.",
		check:    checkNothing,
	}, {
		name:     "CreateMakesWhatIsAsked",
		contract: "Creating returns what was made: under its tag, with an id that is its own, and at least of the size asked for.",
		check:    checkCreate,
	}, {
		name:     "CreateIsIdempotent",
		contract: "Creating is idempotent by tag: what an earlier call made for the tag is returned as it is, also to a caller who has restarted.",
		check:    checkCreateIsIdempotent,
	}, {
		name:     "CreateFailsOneByOne",
		contract: "One item's failure says nothing of the others.",
		check:    checkCreateFailsOneByOne,
	}, {
		name:     "NothingMadeLeavesNothing",
		contract: "A creation whose error is marked with ErrNothingMade or ErrIncomplete has left nothing. What any other has left is told by creating it again, and goes by destroying it.",
		check:    checkNothingMade,
	}, {
		name:     "ValidateTellsWhetherCreateSucceeds",
		contract: "Validating parameters tells whether creating can succeed with them. It does no I/O.",
		check:    checkValidate,
	}, {
		name:     "ListHasWhatExists",
		contract: "ListVolumes returns the ids of all volumes that the source has made, each once.",
		only:     storage.StorageKindBlock,
		check:    checkList,
	}, {
		name:     "DescribeTellsWhatExists",
		contract: "DescribeVolumes returns what is known of volumes. The error of one that does not exist satisfies errors.IsNotFound.",
		only:     storage.StorageKindBlock,
		check:    checkDescribe,
	}, {
		name:     "AttachTellsWhere",
		contract: "Attaching returns what was attached, to which machine, and how to find it there.",
		check:    checkAttach,
	}, {
		name:     "AttachIsIdempotent",
		contract: "What is attached already is left as it is and described again, also to a caller that has restarted.",
		check:    checkAttachIsIdempotent,
	}, {
		name:     "AttachFailsOneByOne",
		contract: "What does not exist is not attached. One item's failure says nothing of the others.",
		check:    checkAttachFailsOneByOne,
	}, {
		name:     "AttachChoosesAPath",
		contract: "If the path at which a filesystem is wanted is empty the source chooses one.",
		only:     storage.StorageKindFilesystem,
		check:    checkAttachChoosesAPath,
	}, {
		name:     "ReadOnlyCannotBeWritten",
		contract: "ReadOnly asks for an attachment that cannot be written through. Where that is not to be had the error satisfies errors.IsNotSupported.",
		check:    checkReadOnly,
	}, {
		name:     "WhatIsAttachedIsWell",
		contract: "A VolumeChecker or FilesystemChecker says of what is as it was attached, also by a caller before this one, that nothing has become of it, and changes nothing.",
		check:    checkChecking,
	}, {
		name:     "DetachIsIdempotent",
		contract: "Detaching what is not attached there, or does not exist any more, is a success.",
		check:    checkDetachIsIdempotent,
	}, {
		name:     "DetachTouchesNothingElse",
		contract: "Detaching undoes attaching, of what it is told and nothing else.",
		check:    checkDetachTouchesNothingElse,
	}, {
		name:     "DataSurviveDetaching",
		contract: "Data that were written before detaching are there when it is attached again.",
		check:    checkDataSurvive,
	}, {
		name:     "DestroyIsIdempotent",
		contract: "Destroying what does not exist any more is a success.",
		check:    checkDestroyIsIdempotent,
	}, {
		name:     "DestroyRemovesTheData",
		contract: "Destroying removes the data too: what is created afterwards, for the same tag, is new.",
		check:    checkDestroyRemovesTheData,
	}, {
		name:     "WhatIsAttachedIsNotRemoved",
		contract: "What is still attached is neither destroyed nor released: that is an error, and nothing is lost.",
		check:    checkAttachedIsNotRemoved,
	}, {
		name:     "ReleaseGivesAway",
		contract: "Releasing gives storage and its data out of this model's hands. What is released already, or does not exist any more, is a success. Where Releasable is false the error satisfies errors.IsNotSupported.",
		check:    checkRelease,
	}, {
		name:     "ImportTakesOver",
		contract: "Importing takes over what exists, and is idempotent. The error for what does not exist satisfies errors.IsNotFound.",
		check:    checkImport,
	}, {
		name:     "OwnersAreListed",
		contract: "A source that lists owners keeps the resource tags of creation, and lists all that it has made in the order of ids, with size, tags, and whether it is attached.",
		check:    checkOwners,
	}, {
		name:     "CreateAdoptsOnlyItsOwn",
		contract: "A source that lists owners returns what an earlier call made for the tag only to who asks with the same EntityUUIDTag. Who asks with another, or with none for what has one, gets something else or an error.",
		check:    checkAdoption,
	}, {
		name:     "TaggingReplacesTags",
		contract: "Tagging replaces all resource tags, and nothing else, also of what is attached. It is idempotent. The error for what does not exist satisfies errors.IsNotFound.",
		check:    checkTagging,
	}, {
		name:     "ArgumentsAreNotChanged",
		contract: "A caller's slices, attributes and resource tags stay as they are.",
		check:    checkArgumentsAreNotChanged,
	}, {
		name:     "BulkCallsAnswerInOrder",
		contract: "The results have the length and the order of the arguments, and hold an error each.",
		check:    checkOrder,
	}, {
		name:     "CancelledCallsSaySo",
		contract: "All calls return soon after the context is cancelled, with its error or with results.",
		check:    checkCancelledBefore,
	}, {
		name:     "InterruptedCallsAreFinishedByRepeating",
		contract: "What an interrupted call did is found out by repeating it.",
		check:    checkInterrupted,
	}, {
		name:     "SourcesAreIndependent",
		contract: "Several sources of one provider may be in use at once, also for the same pool, on different volumes and filesystems.",
		check:    checkSourcesAreIndependent,
	}, {
		name:     "ConcurrentSourceTakesCallsAtOnce",
		contract: "A ConcurrentSource takes as many bulk calls at once as it says.",
		check:    checkConcurrentSource,
	}, {
		name:     "NothingIsLeft",
		contract: "When everything is detached and destroyed, nothing is left of it.",
		check:    checkNothingIsLeft,
	}}
}
