// Package params defines the wire format between a provisioner and the state: structs with
// JSON tags, and errors with codes. Only its error type has behaviour.
//
// Entities are identified by their tags as strings, such as "volume-0" or "machine-1". Sizes
// are in MiB. Bulk results have the length and the order of the arguments, and an Error each.
package params
