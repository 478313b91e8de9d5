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
	// only is the kind of storage for which the rule is, or StorageKindUnknown for both.
	only  storage.StorageKind
	check func(*bench)
}

func providerRules() []providerRule {
	return []providerRule{{
		name:     "OpensSupportedKinds",
		contract: "VolumeSource and FilesystemSource open a source of each kind for which Supports is true. For any other kind, their error satisfies errors.IsNotSupported.",
		check:    checkSupports,
	}, {
		name:     "AnswersStayTheSame",
		contract: "Scope, Dynamic, Releasable, Supports and DefaultPools always return the same, even after a restart. The provider's methods are safe for concurrent use.",
		check:    checkAnswersStayTheSame,
	}, {
		name:     "DefaultPoolsAreValid",
		contract: "DefaultPools returns the pools of this provider that exist without a user defining them. Each has a valid and unique name, and settings that ValidateConfig accepts.",
		check:    checkDefaultPools,
	}, {
		name:     "SettingsAreChecked",
		contract: "ValidateConfig checks a pool's settings. The error satisfies errors.IsNotValid and names the attribute. For a pool with invalid settings no source is opened: the error satisfies errors.IsNotValid.",
		check:    checkSettings,
	}, {
		name:     "KubernetesErrorsAreNotValid",
		contract: "The error of ValidateForK8s satisfies errors.IsNotValid.",
		check:    checkKubernetes,
	}}
}

func sourceRules() []sourceRule {
	return []sourceRule{{
		name:     "EmptyCalls",
		contract: "A bulk call without arguments succeeds and returns no results.",
		check:    checkNothing,
	}, {
		name:     "CreateMakesRequestedStorage",
		contract: "Creating returns each new volume or filesystem under its tag, with a unique ID and at least the requested size.",
		check:    checkCreate,
	}, {
		name:     "CreateIsIdempotent",
		contract: "Creating is idempotent by tag: it returns what an earlier call made for the tag, unchanged, even after the caller has restarted.",
		check:    checkCreateIsIdempotent,
	}, {
		name:     "CreateFailsOneByOne",
		contract: "The failure of one item says nothing about the others.",
		check:    checkCreateFailsOneByOne,
	}, {
		name:     "NothingMadeLeavesNothing",
		contract: "A creation whose error is marked with ErrNothingMade or ErrIncomplete has left nothing behind. After any other error, repeating the creation returns what exists, so that it can be destroyed.",
		check:    checkNothingMade,
	}, {
		name:     "ValidatePredictsCreate",
		contract: "Validating parameters checks whether creating can succeed with them. It does no I/O.",
		check:    checkValidate,
	}, {
		name:     "ListReturnsAllVolumes",
		contract: "ListVolumes returns the IDs of all volumes that the source has made, each once.",
		only:     storage.StorageKindBlock,
		check:    checkList,
	}, {
		name:     "DescribeReturnsVolumes",
		contract: "DescribeVolumes returns what is known of volumes. The error for a volume that does not exist satisfies errors.IsNotFound.",
		only:     storage.StorageKindBlock,
		check:    checkDescribe,
	}, {
		name:     "AttachDescribesAttachment",
		contract: "Attaching returns what was attached, to which machine, and how to find it there.",
		check:    checkAttach,
	}, {
		name:     "AttachIsIdempotent",
		contract: "Attaching leaves what is already attached as it is, and describes the attachment again, even after the caller has restarted.",
		check:    checkAttachIsIdempotent,
	}, {
		name:     "AttachFailsOneByOne",
		contract: "Attaching a volume or filesystem that does not exist is an error. The failure of one item says nothing about the others.",
		check:    checkAttachFailsOneByOne,
	}, {
		name:     "AttachChoosesAPath",
		contract: "If the requested path of a filesystem is empty, the source chooses one.",
		only:     storage.StorageKindFilesystem,
		check:    checkAttachChoosesAPath,
	}, {
		name:     "ReadOnlyCannotBeWritten",
		contract: "A read-only attachment cannot be written through. If the source cannot make one, the error satisfies errors.IsNotSupported.",
		check:    checkReadOnly,
	}, {
		name:     "CheckAcceptsAttached",
		contract: "Checking (VolumeChecker, FilesystemChecker) returns nil for a volume or filesystem that is still as it was attached, even if an earlier caller attached it, and changes nothing.",
		check:    checkChecking,
	}, {
		name:     "DetachIsIdempotent",
		contract: "Detaching a volume or filesystem that is not attached there, or does not exist, succeeds.",
		check:    checkDetachIsIdempotent,
	}, {
		name:     "DetachTouchesNothingElse",
		contract: "Detaching undoes the attachment of the given volumes or filesystems, and affects no others.",
		check:    checkDetachTouchesNothingElse,
	}, {
		name:     "DataSurviveDetaching",
		contract: "Data that were written before detaching are still there after attaching again.",
		check:    checkDataSurvive,
	}, {
		name:     "MountOptionsAreForDetached",
		contract: "A MountOptionsSetter replaces the mount options of a filesystem that is not attached, and refuses others. It is idempotent, and keeps the data. The error for a filesystem that does not exist satisfies errors.IsNotFound.",
		only:     storage.StorageKindFilesystem,
		check:    checkMountOptions,
	}, {
		name:     "DestroyIsIdempotent",
		contract: "Destroying a volume or filesystem that does not exist succeeds.",
		check:    checkDestroyIsIdempotent,
	}, {
		name:     "DestroyRemovesTheData",
		contract: "Destroying also removes the data: what is created for the same tag afterwards is new.",
		check:    checkDestroyRemovesTheData,
	}, {
		name:     "AttachedIsNotRemoved",
		contract: "Destroying or releasing a volume or filesystem that is still attached is an error, and nothing is lost.",
		check:    checkAttachedIsNotRemoved,
	}, {
		name:     "ReleaseKeepsData",
		contract: "Releasing gives up this model's ownership and keeps the data. Releasing what is already released, or does not exist, succeeds. If Releasable is false, the error satisfies errors.IsNotSupported.",
		check:    checkRelease,
	}, {
		name:     "ImportTakesOver",
		contract: "Importing takes over existing storage and is idempotent. The error for storage that does not exist satisfies errors.IsNotFound.",
		check:    checkImport,
	}, {
		name:     "OwnersAreListed",
		contract: "A source that lists owners keeps the resource tags from creation. It lists everything that it has made, in the order of the IDs, each with its size, its tags and whether it is attached.",
		check:    checkOwners,
	}, {
		name:     "AttachmentsAreListed",
		contract: "A source that lists attachments lists each attached volume once, with the machine that has it, and no other volumes.",
		only:     storage.StorageKindBlock,
		check:    checkAttachmentsAreListed,
	}, {
		name:     "CreateAdoptsOnlyItsOwn",
		contract: "A source that lists owners returns what an earlier call made with an EntityUUIDTag only for the same EntityUUIDTag. A request for the same tag with another EntityUUIDTag, or without one, gets other storage or an error.",
		check:    checkAdoption,
	}, {
		name:     "TaggingReplacesTags",
		contract: "Tagging replaces all resource tags and changes nothing else, even if the storage is attached. It is idempotent. The error for storage that does not exist satisfies errors.IsNotFound.",
		check:    checkTagging,
	}, {
		name:     "SnapshotsKeepContents",
		contract: "A snapshot has the contents that the volume or filesystem had, whatever happens to that later. What is made from the snapshot has these contents and at least the requested size, and stays when the snapshot is destroyed.",
		check:    checkSnapshotsKeepContents,
	}, {
		name:     "SnapshotsAreIdempotent",
		contract: "Making a snapshot is idempotent by the EntityUUIDTag: it returns the snapshot that an earlier call made for the UUID, unchanged, even after a restart and if the origin no longer exists.",
		check:    checkSnapshotsAreIdempotent,
	}, {
		name:     "SnapshotsHaveOwners",
		contract: "A snapshot is returned only for its own EntityUUIDTag and state. The error without an EntityUUIDTag satisfies errors.IsNotValid.",
		check:    checkSnapshotsHaveOwners,
	}, {
		name:     "SnapshotsAreListed",
		contract: "All snapshots are listed, in the order of their IDs, each with its size and its tags, and not as volumes or filesystems. Destroying a snapshot that does not exist succeeds.",
		check:    checkSnapshotsAreListed,
	}, {
		name:     "ClonesAreIndependent",
		contract: "Cloning makes a volume or filesystem with the contents that another one has. Neither sees what is written to the other. It is idempotent by tag, even if the origin no longer exists.",
		check:    checkClonesAreIndependent,
	}, {
		name:     "OriginMustExist",
		contract: "The error for an origin that does not exist satisfies errors.IsNotFound. The error for a size below that of the origin, and for an Origin without an ID or with two, satisfies errors.IsNotValid.",
		check:    checkOriginMustExist,
	}, {
		name:     "CapacityCanBeUsed",
		contract: "Capacity returns how much more storage can be made and filled. It makes nothing.",
		check:    checkCapacity,
	}, {
		name:     "ArgumentsAreNotChanged",
		contract: "A source does not modify the caller's slices, attributes or resource tags.",
		check:    checkArgumentsAreNotChanged,
	}, {
		name:     "BulkCallsAnswerInOrder",
		contract: "The results of a bulk call have the length and the order of the arguments, with an error each.",
		check:    checkOrder,
	}, {
		name:     "CancelledCallsReturnSoon",
		contract: "All calls return soon after the context is cancelled, with its error or with results.",
		check:    checkCancelledBefore,
	}, {
		name:     "InterruptedCallsAreFinishedByRepeating",
		contract: "Repeating an interrupted call completes its work and returns what it did.",
		check:    checkInterrupted,
	}, {
		name:     "SourcesAreIndependent",
		contract: "Several sources of one provider may be in use at once, also for the same pool, on different volumes and filesystems.",
		check:    checkSourcesAreIndependent,
	}, {
		name:     "ConcurrentSourceTakesCallsAtOnce",
		contract: "A ConcurrentSource accepts as many bulk calls at once as MaxConcurrentCalls returns.",
		check:    checkConcurrentSource,
	}, {
		name:     "NothingIsLeft",
		contract: "Nothing is left of storage that was detached and destroyed.",
		check:    checkNothingIsLeft,
	}}
}
