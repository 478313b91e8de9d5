// Package csi is a provider whose storage a CSI driver makes: any driver of the Container Storage
// Interface, without Kubernetes. It serves one machine, and calls the controller and the node
// services of a driver that runs there. Each machine with such storage runs the driver.
//
// With [Config].Environ it serves all machines: the environment's worker calls the controller service, and
// each machine carries out attachment plans with the node service that runs there ([Plans]). The controller
// service publishes volumes under the names that [AskMachineDrivers] gets from the node services. Filesystems of
// the driver are volumes then ([storage.MountedVolumes]), unless the attribute "volume-mode" of their pool is
// "block": the plan mounts them, and the source of filesystems on volumes binds them at their mount points.
//
// # What is made
//
// A volume is published as a block device. A filesystem is made and mounted by the driver, below
// the storage directory, and bound from there at the mount point that the user has chosen: a driver
// may remove the directory at which it has published a volume. So both are attached by one call of
// the source, and need no attachment plan. With [Config].BlockOnly the provider makes volumes only,
// and the machine makes the filesystems on them.
//
// The attributes of a pool are the parameters of its volumes, as those of a StorageClass are in
// Kubernetes. These are not passed on as parameters: "fs" is the type of the filesystem that the
// driver makes; empty: the driver chooses. "mount-options" are the flags, separated by commas, with
// which the driver mounts it.
//
// # Identity and interrupted calls
//
// This is about the provider of one machine. That of the environment keeps no records: the ID of a volume is
// the driver's, the caller keeps its context ([storage.ContextSource]), and notes before the call that a
// volume is made. The machine records what it has staged, as below.
//
// The name of a volume at the driver is "stowage-" and the UUID of its owner, which must therefore
// be in the resource tags. A record below the storage directory has the request before the driver
// gets it, and then the driver's ID and context of the volume. A creation that was interrupted is
// repeated with the recorded request, whatever the pool says then, so the driver returns what it has
// made. What another program has made with the driver is neither listed nor removed, unless it was imported.
//
// A volume is recorded as staged before the driver is asked to publish it, and until the driver has
// taken it back. What is published is found in the table of mounts, and is not published again.
//
// Calls fail with the outcomes that the table in outcome_linux.go gives for the codes of gRPC. A
// creation that fails for good after an attempt whose outcome is unknown may have left a volume: its
// record stays, and the creation is repeated.
//
// # Import and release
//
// Volumes are imported by the driver's ID ([storage.IDImporter]), with the attributes of their pool as their
// context. A volume of one machine that was released keeps its record, and is imported again by that ID, or by the
// ID of its record.
//
// # Snapshots
//
// The provider of one machine makes snapshots, and storage from snapshots and from other storage, if the
// driver does. Before, it writes out what is in the memory of this machine; the driver promises that a
// snapshot is one of a single moment. The rules above about names, records and interrupted calls apply to
// snapshots too.
//
// # Secrets
//
// Secrets are read from a file for each bulk call, so that they can be changed at any time. They are
// passed to the driver with every call that takes secrets, are never recorded, and are removed from
// the messages of the driver's errors.
//
// # Goroutines
//
// A bulk call connects to the driver when it first needs it, and disconnects at its end. Nothing
// runs between calls.
package csi
