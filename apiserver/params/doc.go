// Package params holds what goes over the wire between a provisioner and the
// state: structs with JSON tags, and errors with codes. It has no behaviour but
// that of its error type.
//
// Entities are named by their tags as strings, such as "volume-0" or
// "machine-1". Sizes are in MiB. Bulk results have the length and the order of
// what was asked, and an Error each.
package params
