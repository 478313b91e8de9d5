// Package program is a storage provider whose work is done by a program of the user's: a
// script or any other executable. It makes volumes, in the scope of the environment. A
// filesystem on a volume is made by the machine to which the volume is attached.
//
// Use it for storage that an existing tool controls: the command line of an array or a cloud,
// or a set of scripts. A provider that is linked in is faster and can report more; see
// [storage.Provider].
//
// # The protocol
//
// Each bulk call runs the program once. The operation is the program's only argument. The
// program reads a JSON object, the request, from its standard input, and writes one, the
// answer, to its standard output. The operations are:
//
//	create-volumes    makes volumes, and may attach them
//	attach-volumes    attaches volumes to machines
//	detach-volumes    detaches volumes from machines
//	destroy-volumes   removes volumes with their data
//	release-volumes   gives up volumes without removing their data
//	list-volumes      lists all volumes that have been made
//	describe-volumes  describes volumes
//
// Two more operations are for programs that have to act on the machine to which a volume is
// attached. The machine's agent runs its own copy of the program, if attach-volumes has answered
// with a plan of the device-type program:
//
//	connect-volumes     makes the devices of volumes appear on this machine
//	disconnect-volumes  undoes that
//
// The request has a list of arguments. The answer has a list of results, of the same length
// and in the same order. list-volumes has no arguments, and a result for each volume.
//
//	{"arguments": [{"volume": "volume-0", "size-mib": 1024}]}
//	{"results": [{"volume-id": "vol-7f3a", "size-mib": 1024}]}
//
// The request of one of several servers that share a state also has a term, a number. A program
// refuses a request with a smaller term than it has seen, by its exit status: the server has been
// replaced by another one.
//
// An argument has these members, as far as they apply to the operation:
//
//	volume       create, attach, detach: the volume's name, volume-N; not unique:
//	             volumes of other environments may have the same name, and so may
//	             another volume of this one after its state was restored
//	size-mib     create: the minimum size
//	attributes   create: the settings of the volume's pool, an object;
//	             connect, disconnect: the attributes of the plan
//	tags         create: the tags to set on the volume, an object of strings; they
//	             name the volume's owner, see below
//	volume-id    all but create: the ID that create-volumes gave the volume
//	machine      attach, detach: machine-N; create: the machine that the volume will
//	             be attached to
//	instance-id  with machine: the machine's ID at its own provider
//	read-only    with machine: true if the volume must not be written there
//
// A result has an error, or else these members as far as they apply. detach-volumes,
// disconnect-volumes, destroy-volumes and release-volumes have none: {}.
//
//	volume-id    create, list, describe: the volume's ID from now on
//	size-mib     create, describe: the volume's size; create: if omitted, the size
//	             in the request; list: the size, if known
//	hardware-id  create, describe: the volume's name in /dev/disk/by-id, if known
//	wwn          create, describe: the volume's World Wide Name, if known
//	persistent   create, describe: true if the volume outlives its machine
//	new          create: true if the volume was made for this tag and nobody can
//	             have written to it
//	attachment   attach; connect; create, if the volume was also attached: an
//	             object
//	tags         list: the tags that the volume was made with
//	attached     list: true if the volume is attached to a machine
//	machine      list: the machine-N that the volume is attached to
//
// An answer to list-volumes with the member machines-known, true, beside the results says that
// each volume which is attached to a machine has that machine in its result. A server that takes
// over from another one then knows what is attached already. Otherwise machine is ignored.
//
// The members of an attachment say how the machine finds the volume's block device. They need
// not repeat the volume's hardware-id and wwn.
//
//	device-link  the path of a link to the device that stays the same
//	bus-address  the device's place on its bus: scsi@1:0.0.3; for a loop device
//	             loop@MAJOR:MINOR/INODE of its backing file
//	device-name  the device's name without /dev/; the least reliable, because names
//	             change
//	read-only    true if the device cannot be written
//	plan         what the machine must do before the device appears: an object
//	             with a device-type, "local" (nothing), "iscsi" or "program", and
//	             attributes, an object of strings
//
// An error is an object with a message, which users see, and a code:
//
//	(none)         the request is repeated, after 30 seconds at first, then less
//	               often
//	nothing-made   the request is repeated, but nothing is left of this attempt:
//	               storage that is no longer wanted is removed at once
//	incomplete     create-volumes, attach-volumes: something that the request needs
//	               is missing, and nothing is made; the request is repeated when
//	               that changes
//	in-progress    the operation is still running: the request is repeated until it
//	               ends
//	permanent      the request cannot succeed as it is, and is not repeated
//	not-valid      permanent, because the argument is invalid
//	not-supported  permanent, because the program does not support the operation
//	not-found      there is no such volume; for detaching, destroying and releasing
//	               this is a success
//	ignored        the volume does not belong to the program: no error is shown
//
// If the program exits with a status other than 0, or its output is not such an object,
// nothing is known about any of the volumes, and the whole request is repeated. If the status
// is not 0, users see the beginning of its standard error; otherwise its standard error is
// discarded.
//
// # Ownership
//
// The tag stowage-storage-uuid belongs to one volume for ever, and stowage-model-uuid to its
// environment. A name or an ID may be used again, by another environment or after an older
// state was restored. Therefore a program that keeps tags answers create-volumes with a volume
// that it made before only if that volume has the same stowage-storage-uuid. Otherwise it
// makes another volume under the same name, with another volume-id. It also returns the tags
// when volumes are listed. After a state was restored, a volume that is listed with another
// owner is neither attached nor destroyed. If the program returns no tags, the owners of its
// volumes are unknown, and users are told so. Even then list-volumes must list all volumes, or
// be not-supported: a volume that it does not list counts as lost.
//
// # Refused answers
//
// These are refused: an ID or name that is not printable or is longer than 255 bytes; a size
// of 8 EiB or more; a volume that is listed twice; and an attachment whose device-name,
// device-link or bus-address belongs to another volume on the same machine, which is attached
// or in the same answer. The error then names both volumes.
//
// # Repeated requests
//
// Any request may be repeated after it has succeeded, because the agent may have been killed
// before it recorded the answer. create-volumes then answers with the volume that it made
// before for the same name and stowage-storage-uuid. Likewise, a run of the program may
// continue after its agent was killed, while the next agent starts another run: a program that
// cannot cope with that takes a lock. Within one agent, runs do not overlap,
// except those of connect-volumes and disconnect-volumes: these run beside all others.
//
// # Environment
//
// The program runs in the directory /, with no environment variables but LC_ALL=C and a PATH
// of the system's directories. It has no time limit. When the agent stops, it kills the
// program with all its descendants, in any session. A process that the program leaves running
// must not hold its standard output or standard error.
//
// The program runs as the agent does, as root. Therefore only root and the agent's user may be
// able to write to it or to a directory above it. This is checked before each run.
package program
