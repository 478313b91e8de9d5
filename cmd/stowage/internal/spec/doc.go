// Package spec reads the file in which a user declares pools and storage.
//
// [Parse] checks everything that can be checked from the file alone: its form, every field,
// and that its entries do not contradict one another. Package converge checks that the file
// fits the machine and its existing storage. Every error is one line that names the file, the
// line, the entry and the field, and satisfies errors.IsNotValid.
//
// A storage entry may say which machine is to have the storage, by its name or number. Without
// `machine` it is the machine of the agent that applies the file.
//
// A storage entry of kind filesystem may choose what is made on its volume, and how it is
// mounted, if its pool does not: `filesystem` is the type, `mkfs-options` and `mount-options`
// are strings of comma-separated options, each `key` or `key=value`, in the same form as in a
// pool's attributes. A provider that makes filesystems itself knows only `mount-options`:
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
// A file is untrusted input: its size and the number of instances that it requests are
// bounded, and YAML aliases are not allowed.
package spec
