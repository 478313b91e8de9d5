// Package owner tells whether somebody else has a say in what is at a path: what root
// runs, or keeps its state in, must be root's all the way. A directory that others can
// write to lets them put something else in the place of what is in it.
//
// The answer holds for as long as root changes nothing on that way. The package keeps no
// state.
package owner
