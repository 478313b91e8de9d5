// Package storage defines the vocabulary that storage providers, the state and the
// provisioning worker share: what a volume and a filesystem are, what a provider is asked to
// do, and how it answers.
//
// # Terms
//
// A volume is a block device that a provider makes: a disk. A filesystem is a mountable tree.
// A provider makes it directly, or it is made on a volume, its backing volume. Volumes and
// filesystems are attached to a machine before use: a volume becomes a block device there, and
// a filesystem is mounted at a path. A [Provider] is a way to make them ("loop", "tmpfs"). A
// pool is a provider with named settings, as held by a [Config]. A source ([VolumeSource],
// [FilesystemSource]) is what a provider opens for a pool to do the work. A [Directive] is a
// user's request: a pool, a size, a count.
//
// # The life of a volume
//
//	ValidateVolumeParams → CreateVolumes → AttachVolumes → (in use)
//	                     → DetachVolumes → DestroyVolumes or ReleaseVolumes
//
// A filesystem has the same life with its own methods. The caller runs at most one of these
// steps for one entity at a time. It may repeat any step: after a failure, after a restart,
// and when it does not know whether an earlier call succeeded. So every step is idempotent.
//
// # Batches
//
// All methods of a source that take a slice are bulk calls. The results have the length and
// the order of the arguments, with an error each: the failure of one item says nothing about
// the others. If the call as a whole returns an error, or results of another length, the
// outcome of every item is unknown, and the caller repeats all of them. A source does not
// modify the arguments or anything that they hold.
//
// # Errors
//
// A provider knows whether and when a retry can help. It marks its errors accordingly: see
// [ErrInProgress], [ErrIgnored], [ErrPermanent], [ErrTransient] and [ErrIncomplete].
//
// A provider also knows whether a failed creation has left anything behind. If nothing is
// left, it marks the error with [ErrNothingMade]. A permanent error and [ErrIncomplete] end a
// creation too. All of these speak of earlier calls as well; a source that keeps no records cannot,
// and marks its errors with [ErrRefused] instead. After any other error the caller, before it removes the entity, repeats the
// creation once more to learn what exists and to destroy it. So an entity cannot be removed
// while its creation keeps failing with such errors.
//
// Sizes are in MiB throughout.
package storage
