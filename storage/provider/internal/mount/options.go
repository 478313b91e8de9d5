package mount

import (
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/options"
)

// Option is a mount option, with a value unless it is a flag.
type Option struct {
	Key, Value string
}

// String returns the option as users write it.
func (o Option) String() string { return options.Choice(o).String() }

// Settings are the options that a user has chosen.
type Settings struct {
	// ReadOnly is the option "ro".
	ReadOnly bool
	// Options are the other options.
	Options []Option
}

// common returns the options that belong to a mount, whatever is mounted.
func common() []options.Option {
	return []options.Option{
		{Key: "noatime", OneOf: "atime"},
		{Key: "relatime", OneOf: "atime"},
		{Key: "strictatime", OneOf: "atime"},
		{Key: "nodiratime"},
		{Key: "noexec"},
		{Key: "nosuid"},
		{Key: "nodev"},
		{Key: "ro"},
	}
}

// Options returns the options that users may choose for a filesystem type, or nil for a type
// that is not known. The type "rootfs" is that of directories, which Bind mounts. An option is
// allowed only if no value of it gives users of the mount more than the caller requested, or
// makes written data less safe.
func Options(fsType string) []options.Option {
	seconds := options.Number(1, 300)
	switch fsType {
	case "rootfs":
		return common()
	case "tmpfs":
		id := options.Number(0, 1<<32-2)
		return append(common(), []options.Option{
			{Key: "mode", Values: options.Octal(0o1777)},
			{Key: "uid", Values: id},
			{Key: "gid", Values: id},
			// The root directory and its owner's name take three inodes at most. An inode takes
			// 1 KiB of memory.
			{Key: "nr_inodes", Values: options.Number(16, 1<<30)},
		}...)
	case "ext4":
		return append(common(), []options.Option{
			{Key: "lazytime"},
			{Key: "discard"},
			{Key: "commit", Values: seconds},
			{Key: "data", Values: options.OneOf("ordered", "journal")},
			{Key: "errors", Values: options.OneOf("remount-ro")},
			{Key: "nodelalloc"},
			{Key: "stripe", Values: options.Number(1, 1<<16)},
		}...)
	case "xfs":
		return append(common(), []options.Option{
			{Key: "lazytime"},
			{Key: "discard"},
			{Key: "allocsize", Values: options.OneOf("64k", "128k", "256k", "512k", "1m", "4m", "16m", "64m", "256m", "1g")},
			{Key: "inode64"},
			{Key: "largeio"},
			{Key: "logbsize", Values: options.OneOf("32k", "64k", "128k", "256k")},
			{Key: "logbufs", Values: options.Number(2, 8)},
		}...)
	case "btrfs":
		compression := options.OneOf("zlib", "lzo", "zstd", "zstd:1", "zstd:3", "zstd:6", "zstd:9", "zstd:15")
		return append(common(), []options.Option{
			{Key: "lazytime"},
			{Key: "discard", Values: options.OneOf("sync", "async"), OneOf: "discard"},
			{Key: "nodiscard", OneOf: "discard"},
			{Key: "autodefrag"},
			{Key: "commit", Values: seconds},
			{Key: "compress", Values: compression, OneOf: "compression"},
			{Key: "compress-force", Values: compression, OneOf: "compression"},
			{Key: "flushoncommit"},
			{Key: "ssd", OneOf: "ssd"},
			{Key: "nossd", OneOf: "ssd"},
		}...)
	}
	return nil
}

// ParseOptions parses the mount options of a filesystem type as users write them, and adds the
// defaults of stowage. The error satisfies errors.IsNotValid and lists the allowed options.
func ParseOptions(fsType, text string) (Settings, error) {
	choices, err := options.Parse(text, Options(fsType), "mounting "+fsType)
	if err != nil {
		return Settings{}, errors.Trace(err)
	}
	var s Settings
	for _, c := range choices {
		if c.Key == "ro" {
			s.ReadOnly = true
			continue
		}
		s.Options = append(s.Options, Option(c))
	}
	switch {
	case fsType == "btrfs" && !s.has("discard", "nodiscard"):
		// By default btrfs discards, which would free the space of a thick volume.
		s.Options = append(s.Options, Option{Key: "nodiscard"})
	case fsType == "tmpfs" && !s.has("mode"):
		// By default everybody may write to the root directory.
		s.Options = append(s.Options, Option{Key: "mode", Value: "755"})
	}
	return s, nil
}

// has reports whether one of the options was chosen.
func (s Settings) has(keys ...string) bool {
	return slices.ContainsFunc(s.Options, func(o Option) bool { return slices.Contains(keys, o.Key) })
}
