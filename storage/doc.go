// Package storage is the vocabulary that storage providers, the state and the
// provisioning worker share: what a volume and a filesystem are, what a provider
// is asked to do, and how it answers.
//
// # Terms
//
// A volume is a block device that a provider makes: a disk. A filesystem is a
// mountable tree; it is made by a provider directly, or on a volume, which is
// then called its backing volume. Both are attached to a machine before they are
// used: a volume by becoming a block device there, a filesystem by being mounted
// at a path. A [Provider] is a way to make them ("loop", "tmpfs"); a pool is a
// provider together with named settings, as held by a [Config]; a source
// ([VolumeSource], [FilesystemSource]) is what a provider opens for a pool to do
// the work. A [Directive] is what a user asks for: a pool, a size, a count.
//
// # The life of a volume
//
//	ValidateVolumeParams → CreateVolumes → AttachVolumes → (in use)
//	                     → DetachVolumes → DestroyVolumes or ReleaseVolumes
//
// A filesystem's life reads the same with its own methods. The caller runs at
// most one of these steps for one entity at a time, and may repeat any of them:
// after a failure, after a restart, and when it does not know whether an earlier
// call went through. So every step is idempotent.
//
// # Batches
//
// All methods of a source that take a slice are bulk calls. The results have the
// length and the order of the arguments, and hold an error each: one item's
// failure says nothing of the others. An error of the call as a whole, or
// results of another length, means that nothing is known about any item, and the
// caller repeats all of them. The arguments, with all that they hold, stay as
// they are.
//
// # Errors
//
// A provider knows whether trying again can help, and when, and says so: see
// [ErrInProgress], [ErrIgnored], [ErrPermanent], [ErrTransient] and [ErrIncomplete].
//
// It also knows whether a creation that failed has left anything, and says so with
// [ErrNothingMade]. Of what it has not said that, the caller asks for once more before the
// entity goes, to learn what there is and to destroy it: a creation that keeps failing
// without saying so keeps its entity from going. A permanent error ends a creation too,
// and so does [ErrIncomplete].
//
// Sizes are in MiB throughout.
package storage
