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

// common returns the options of all filesystems on block devices.
func common() []options.Option {
	return []options.Option{
		{Key: "noatime", OneOf: "atime"},
		{Key: "relatime", OneOf: "atime"},
		{Key: "strictatime", OneOf: "atime"},
		{Key: "nodiratime"},
		{Key: "lazytime"},
		{Key: "noexec"},
	}
}

// Options returns the options that New accepts for a filesystem type, or nil for a type that
// it does not accept. An option is allowed only if no value of it gives users of the mount
// more than the caller requested, or makes written data less safe.
func Options(fsType string) []options.Option {
	seconds := options.Number(1, 300)
	switch fsType {
	case "tmpfs":
		return []options.Option{
			{Key: "mode", Values: options.Number(0, 1777)},
			{Key: "size", Values: options.Number(1, 1<<63-1)},
		}
	case "ext4":
		return append(common(), []options.Option{
			{Key: "discard"},
			{Key: "commit", Values: seconds},
			{Key: "data", Values: options.OneOf("ordered", "journal")},
			{Key: "errors", Values: options.OneOf("remount-ro")},
			{Key: "nodelalloc"},
			{Key: "stripe", Values: options.Number(1, 1<<16)},
		}...)
	case "xfs":
		return append(common(), []options.Option{
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

// ParseOptions parses the mount options of a filesystem type as users write them. The error
// satisfies errors.IsNotValid and lists the allowed options.
func ParseOptions(fsType, text string) ([]Option, error) {
	choices, err := options.Parse(text, Options(fsType), "mounting "+fsType)
	if err != nil {
		return nil, errors.Trace(err)
	}
	all := make([]Option, len(choices))
	for i, c := range choices {
		all[i] = Option(c)
	}
	// By default btrfs discards, which would free the space of a thick volume.
	if fsType == "btrfs" && !slices.ContainsFunc(all, func(o Option) bool { return o.Key == "discard" || o.Key == "nodiscard" }) {
		all = append(all, Option{Key: "nodiscard"})
	}
	return all, nil
}
