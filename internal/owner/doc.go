// Package owner reports whether other users can change what is at a path: every part of the
// path to a program that root runs, or to root's state, must be root's. A directory that
// others can write to lets them replace its contents.
//
// The result is valid as long as root changes nothing on the path. The package keeps no state.
package owner
