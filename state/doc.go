// Package state is the durable model of storage: machines, pools, storage instances with their
// volumes, filesystems and attachments, block devices and statuses. It applies the rules of
// life, and gives workers the accessors and watchers of their scope.
//
// A storage instance is what a user names. It is one record, which holds everything that is
// made for it: a volume, a filesystem, or a filesystem on a volume, and where they are
// attached. The rules of life are functions on that record; see life.go. Each instance also
// has index entries, one for each of its volumes, filesystems, attachments and plans, under
// the scope of the worker that looks after them. An entry leads from a tag to its instance. It
// is written whenever a worker has to look again, so watchers watch the entries of a scope.
//
// The block devices of a machine are records of their own, by name. An index entry for each
// text that a volume is matched by, such as a serial or a link, leads to the devices that bear
// it. So the device of one volume is found, and one device recorded, without reading the others.
//
// Life goes Alive, Dying, Dead, removed. When a user removes an instance, it becomes Dying
// with its entities, and is detached from the top: first the attachment of the filesystem,
// then the plan of the volume's attachment, then that attachment. Each becomes Dying in its
// turn, and is removed once a worker has undone it. A Dying entity without an attachment
// becomes Dead; a volume first waits until its filesystem is removed. A worker destroys or
// releases the storage of a Dead entity, and removes the entity. The instance is removed with
// its last entity. Entities that were never provisioned go through the same steps.
//
// A volume or filesystem has at most one attachment at a time. The size that is wanted of an
// instance can be raised, but not lowered below the provisioned size; workers grow an entity
// that is provisioned with less. An entity that a provider has imported, rather than made, is
// provisioned from the start.
//
// Ownership: a state and each of its volumes and filesystems have a UUID, which everything
// that is made carries as resource tags ([State.ResourceTags]). Tags and provider IDs are only
// names, which a restored state may use again. A mark outside the store ([Marks]) says which
// numbers have been handed out, so that no number is used twice; a store that is behind its
// mark was restored. The state then begins a new generation, in which workers check the owner
// of recorded storage before they do anything to it ([Accessor.Owners]). A state whose
// directory was copied becomes a state of its own ([State.BecomeCopy]); a lost state can be
// recovered from the resource tags of existing storage ([State.Recover]).
//
// Records have checksums. Reading a damaged record returns an error that names its key and the
// remedy.
//
// Several processes must not use one store at a time, unless the store supports that; see
// package kv.
package state
