// Package instance identifies the machines of a cloud or host provider.
package instance

// Id identifies a machine to the provider that runs it. It is opaque: only the
// provider gives it meaning. The empty Id means that the machine is not
// provisioned.
type Id string
