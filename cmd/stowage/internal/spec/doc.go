// Package spec reads the file in which a user declares pools and storage.
//
// [Parse] checks all that can be checked from the file alone: its form, every
// field, and that its own entries do not contradict one another. Whether it fits
// the machine and what is on it already is for package converge. Every error is
// one line that names the file, the line, the entry and the field, and satisfies
// errors.IsNotValid.
//
// A file is input that nobody vouches for: its size, the number of instances
// that it asks for and the aliases of YAML (none) are bounded.
package spec
