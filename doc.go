// Package stowage is the root of a storage provisioner: a library, and a machine
// agent built on it, that make the volumes and filesystems which a model asks
// for, attach them where they are wanted, and take them away again. It holds no
// code. Start at [github.com/stowage-io/stowage/storage] to write a storage
// provider, at [github.com/stowage-io/stowage/worker/storageprovisioner] to embed
// the worker, and at [github.com/stowage-io/stowage/cmd/stowage] to run the
// agent.
package stowage
