// Package state is the durable model of what storage exists: machines, pools,
// storage instances with their volumes, filesystems and attachments, block devices,
// statuses. It applies the rules of life, and serves workers the accessors and
// watchers of their scope.
//
// A storage instance is what a user names. It is one record, which holds all that is
// made for it: a volume, a filesystem, or both with the filesystem on the volume, and
// where they are attached. The rules of life are functions on that record; see
// life.go. Beside each instance stand index entries, one for each of its volumes,
// filesystems, attachments and plans, under the scope of the worker that looks after
// them. An entry leads from a tag to its instance, and is written whenever a worker
// has to look again; so the entries of a scope are what a watcher watches.
//
// Life goes Alive, Dying, Dead, removed. A user's removal makes an instance Dying
// with its entities, and begins to detach it, from the top: first the attachment of the
// filesystem, then the plan of the volume's attachment, then that attachment. Each becomes
// Dying when its turn comes, and is removed once a worker has undone it. A
// Dying entity without an attachment is Dead; a volume waits for its filesystem to be
// removed too. A worker takes away what a Dead entity stands for, and removes it. The
// instance goes with its last entity. What was never provisioned goes the same way.
//
// A volume or filesystem has at most one attachment at a time. The size that an
// instance is wanted with can be raised, never lowered; what is provisioned with less
// is its workers' to make grow. What a provider has taken over, rather than made, is
// provisioned from the start.
//
// Whose storage is. A state and each of its volumes and filesystems have a UUID, which
// everything that is made carries as resource tags ([State.ResourceTags]): tags and IDs
// of providers are names, which a state that was restored may use again. A mark outside
// the store ([Marks]) says which numbers have been handed out, so that none is used
// twice, and a store that is behind it is known to be restored. It is of a new generation
// then, in which workers check the owner of what is recorded before they do anything to
// it ([Accessor.Owners]). A state whose directory was copied becomes one of its own
// ([State.BecomeCopy]); one that was lost is put together again from the resource tags of
// what there is ([State.Recover]).
//
// Records have checksums. A damaged one is an error that names its key and how to go on.
//
// It is not for several processes on one store at a time, unless the store is made
// for that; see package kv.
package state
