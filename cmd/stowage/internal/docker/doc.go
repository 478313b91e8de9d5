// Package docker serves the storage of an agent to Docker and Podman, as a volume plugin.
//
// A volume is a filesystem, which is attached from its creation until it is removed, and also while no
// container uses it: so it is there for a container that starts, whichever engine that belongs to, and
// mounting and unmounting a volume changes nothing. No mounts are counted. An engine that was killed has not
// told how many there are, and the kernel knows better: before a volume is removed it is detached, which
// fails, with the name of the process, as long as one uses the filesystem in any container.
package docker
