// Package program is a storage provider whose work is done by a program of the
// user's: a script, or anything else that can be run. It makes volumes, in the
// scope of the environment; filesystems on them are made by the machine that they
// are attached to.
//
// Use it for storage that is at the end of an existing tool: an array's command
// line, a cloud's, a set of scripts. A provider that is linked in is faster and can
// say more; see [storage.Provider].
//
// # The protocol
//
// Each bulk call runs the program once. Its only argument is the operation, a JSON
// object is on its standard input, and it writes one to its standard output:
//
//	create-volumes    makes volumes, and may attach them
//	attach-volumes    attaches volumes to machines
//	detach-volumes    undoes that
//	destroy-volumes   removes volumes with their data
//	release-volumes   forgets volumes, and leaves their data
//	list-volumes      tells all volumes that have been made
//	describe-volumes  tells what is known of volumes
//
// The request has a list of arguments, the answer a list of results, which are in
// the order of the arguments and as many. list-volumes has no arguments and a result
// for each volume.
//
//	{"arguments": [{"volume": "volume-0", "size-mib": 1024}]}
//	{"results": [{"volume-id": "vol-7f3a", "size-mib": 1024}]}
//
// An argument has those of these members that the operation is about:
//
//	volume       create, attach, detach: the volume's own name, volume-N; others
//	             may have one of that name too, also of the same environment
//	             after its state was restored
//	size-mib     create: the least size
//	attributes   create: the settings of the volume's pool, an object
//	tags         create: what to tag the volume with, an object of strings; whose
//	             the volume is, they say below
//	volume-id    all others: the id that create-volumes gave the volume
//	machine      attach, detach: machine-N; create: where the volume will be wanted
//	instance-id  with machine: how the machine's own provider knows it
//	read-only    with machine: true if the volume must not be written there
//
// A result has an error, or what the operation is about. For detach-volumes,
// destroy-volumes and release-volumes that is nothing: {}.
//
//	volume-id    create, list, describe: what the volume is called from now on
//	size-mib     create, describe: its size; create: as asked for where left out;
//	             list, if known
//	hardware-id  create, describe: its name below /dev/disk/by-id, if known
//	wwn          create, describe: its World Wide Name, if known
//	persistent   create, describe: true if it outlives its machine
//	new          create: true if the volume was made for this tag and nobody can
//	             have written to it
//	attachment   attach; create, if it has been attached too: an object
//	tags         list: the tags that the volume was made with
//	attached     list: true if the volume is attached to a machine
//
// The members of an attachment say how the machine finds the volume's block device.
// What the volume's hardware-id and wwn tell need not be told again.
//
//	device-link  the path of a link to the device that stays the same
//	bus-address  where it is on its bus: scsi@1:0.0.3; for a loop device
//	             loop@MAJOR:MINOR/INODE of the file behind it
//	device-name  its name without /dev/; the weakest, for names change
//	read-only    true if it cannot be written
//	plan         what the machine has to do before the device shows: an object
//	             with a device-type, "local" (nothing) or "iscsi", and attributes,
//	             an object of strings
//
// An error is an object with a message, which users see, and a code:
//
//	(none)         it is tried again, after 30 seconds at first, then less often
//	nothing-made   it is tried again, and nothing is left of it: storage that is not
//	               wanted any more then goes at once
//	incomplete     of create-volumes and attach-volumes: something is missing of what
//	               is asked, nothing is made, and it is asked again when that changes
//	in-progress    it goes on: the same is asked again until it ends
//	permanent      it cannot be done like this, and is not tried again
//	not-valid      the same, because the argument is no good
//	not-supported  the same, because the program does not do this
//	not-found      there is no such volume; for detaching, destroying and releasing
//	               that is as good as done
//	ignored        it does not belong to the program: no error is shown
//
// A program that exits with another status than 0, or answers with anything else
// than such an object, has said nothing about any of the volumes: all are tried
// again. The beginning of its standard error is then what users see. When it
// succeeds, what it writes there is dropped.
//
// # Whose a volume is
//
// The tag stowage-storage-uuid is a volume's own for ever, and stowage-model-uuid its
// environment's. A name or an id is handed out again when an older state is restored, or
// by another environment. So a program that keeps tags answers create-volumes with a
// volume that it made before only where that has the same stowage-storage-uuid, and makes
// another under the same name otherwise, with another volume-id; and it tells the tags
// when volumes are listed. After a state was restored nothing is attached or destroyed
// that is listed as another's. Of a program that tells no tags the owner is not known, and
// users are told so; list-volumes must have all volumes also then, or be not-supported:
// what it does not have is taken to be lost.
//
// # What is refused
//
// An id or name that is not printable or is longer than 255 bytes, a size of 8 EiB or more,
// a volume that is listed twice, and an attachment whose device-name, device-link or
// bus-address is that of another volume on the same machine, which is attached or is in
// the same answer: the error names both volumes.
//
// # Again
//
// All operations can be asked for again when they are done already: the agent may
// have been killed before it had recorded the answer. create-volumes then answers
// with the volume that it made for that name and stowage-storage-uuid before. Likewise a run of the program
// may go on when its agent has been killed, and the next one begin: a program that
// minds takes a lock. Within one agent, runs do not overlap.
//
// The program is run in the directory / with no environment but LC_ALL=C and a PATH
// of the system's directories. It may take its time. When the agent stops, the
// program is killed with all that descends from it, in whatever session. What it leaves
// running when it ends must not hold its standard output or standard error.
//
// The program runs as the agent does, as root. So nobody but root and the agent's
// user may be able to write to it, nor to a directory above it; this is looked at
// before each run.
package program
