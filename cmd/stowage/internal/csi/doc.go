// Package csi serves the Container Storage Interface, version 1.13, on a socket: [Server] translates its
// calls into requests for storage (package asked), and its errors into the codes of the specification.
//
// Stowage mounts a filesystem once, at a path of its own. Staging a volume attaches it, and published paths
// are bind mounts of it (package bind). They are recorded nowhere else than in the kernel's table of mounts,
// so that nothing is lost when the process is killed. That a volume is attached says that it is staged;
// nothing is mounted at its staging path.
//
// Calls for the same volume exclude each other: the second is ABORTED. A call that waits for storage
// ends when its caller gives up, or when a failure has lasted for some seconds; the caller repeats it,
// and that continues where the first call ended.
package csi
