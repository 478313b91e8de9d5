package object

// Footprint is what a machine has of an object, as it was when it was read. Its fields are read
// from the kernel and from directories of the provider; [Footprint.Usage] asks the filesystem
// itself, which may hang.
type Footprint struct {
	// Record is the path of the provider's record of the object.
	Record string
	// Files are the files and directories with the data of the object.
	Files []File
	// Devices are the paths of the block devices that show the object, or that it is on.
	Devices []string
	// Mounts are its mounts in this process's mount namespace, or those of a part of it.
	Mounts []Mount

	usage   func() (Usage, error)
	holders func() []Holder
}

// File is a file or directory of an object. Sizes are in bytes.
type File struct {
	Path      string
	Directory bool
	// Missing says that nothing has the path.
	Missing bool
	// Size is that of a file, with holes. Allocated is the space that it takes.
	Size, Allocated uint64
}

// Mount is a mount of an object.
type Mount struct {
	Path     string
	ReadOnly bool
}

// Usage is how much of a filesystem is used. Sizes are in bytes.
type Usage struct {
	// Size is that of the filesystem, Free is what is left, and Available the part of it that
	// users other than root may use.
	Size, Free, Available uint64
	// Shared says that the filesystem has other data, too: it is that of the machine.
	Shared bool
}

// Holder is a process, or an object in the kernel, that uses an object.
type Holder struct {
	// PID is 0 for an object in the kernel.
	PID int
	// Name is that of the command or object.
	Name string
	// Use says how it is used, such as "has open /srv/data/log".
	Use string
}

// Usage returns how much of the object is used. It is false if it has no filesystem that is mounted
// here.
func (f *Footprint) Usage() (_ Usage, ok bool, err error) {
	if f.usage == nil {
		return Usage{}, false, nil
	}
	usage, err := f.usage()
	return usage, err == nil, err
}

// Holders returns who uses the object, as far as that is visible: processes that have a file of its
// filesystem or its device open, its mounts in other mount namespaces, and block devices on top.
func (f *Footprint) Holders() []Holder {
	if f.holders == nil {
		return nil
	}
	return f.holders()
}
