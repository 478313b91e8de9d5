// Package spec reads the file in which a user declares pools and storage.
//
// [Parse] checks all that can be checked from the file alone: its form, every
// field, and that its own entries do not contradict one another. Whether it fits
// the machine and what is on it already is for package converge. Every error is
// one line that names the file, the line, the entry and the field, and satisfies
// errors.IsNotValid.
//
// A storage entry of kind filesystem may choose what is made on its volume, where its
// pool does not: `filesystem` is the type, `mkfs-options` and `mount-options` are
// strings of comma-separated options, each `key` or `key=value`, as a pool has them in
// its attributes:
//
//	storage:
//	  - name: data
//	    directive: loop,2G
//	    kind: filesystem
//	    mount: /srv/data
//	    filesystem: xfs
//	    mkfs-options: inode-size=1024
//	    mount-options: noatime
//
// A file is input that nobody vouches for: its size, the number of instances
// that it asks for and the aliases of YAML (none) are bounded.
package spec
