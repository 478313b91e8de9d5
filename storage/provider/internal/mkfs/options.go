package mkfs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/options"
)

// Option is an option that a user may choose for a new filesystem. No option makes a
// filesystem less safe than the default.
type Option struct {
	options.Option

	// flag is the program's flag. prefix goes before the value. An option with a prefix is one
	// of several values of the flag; an option without one replaces the flag's value.
	flag, prefix string
	// needs is the key of another option, without which this one has no meaning.
	needs string
	// minSize is the size in MiB of the smallest device for a filesystem with the option, if
	// that is more than the type's MinSize.
	minSize uint64
}

func ext4Options() []Option {
	return []Option{
		{Option: options.Option{Key: "bytes-per-inode", Values: options.Number(1024, 64<<20)}, flag: "-i"},
		{Option: options.Option{Key: "inode-size", Values: options.OneOf("256", "512", "1024")}, flag: "-I"},
		{Option: options.Option{Key: "reserved-percent", Values: options.Number(0, 50)}, flag: "-m"},
		{Option: options.Option{Key: "stride", Values: options.Number(1, 1<<16)}, flag: "-E", prefix: "stride="},
		{Option: options.Option{Key: "stripe-width", Values: options.Number(1, 1<<16)}, flag: "-E", prefix: "stripe_width="},
	}
}

// xfsStripedSize is in MiB. mkfs.xfs rounds sizes to stripes, and then rejects smaller devices
// as too small.
const xfsStripedSize = 1024

func xfsOptions() []Option {
	yesNo := options.OneOf("0", "1")
	return []Option{
		{Option: options.Option{Key: "inode-size", Values: options.OneOf("512", "1024", "2048")}, flag: "-i", prefix: "size="},
		{Option: options.Option{Key: "inode-percent", Values: options.Number(1, 100)}, flag: "-i", prefix: "maxpct="},
		{Option: options.Option{Key: "stripe-unit", Values: options.OneOf("4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k", "1m")},
			flag: "-d", prefix: "su=", needs: "stripe-width", minSize: xfsStripedSize},
		{Option: options.Option{Key: "stripe-width", Values: options.Number(1, 64)},
			flag: "-d", prefix: "sw=", needs: "stripe-unit", minSize: xfsStripedSize},
		{Option: options.Option{Key: "reflink", Values: yesNo}, flag: "-m", prefix: "reflink="},
		{Option: options.Option{Key: "rmapbt", Values: yesNo}, flag: "-m", prefix: "rmapbt="},
		{Option: options.Option{Key: "bigtime", Values: yesNo}, flag: "-m", prefix: "bigtime="},
	}
}

func btrfsOptions() []Option {
	return []Option{
		{Option: options.Option{Key: "nodesize", Values: options.OneOf("4096", "8192", "16384")}, flag: "--nodesize"},
		{Option: options.Option{Key: "metadata", Values: options.OneOf("single", "dup")}, flag: "--metadata"},
		{Option: options.Option{Key: "checksum", Values: options.OneOf("crc32c", "xxhash", "sha256", "blake2")}, flag: "--checksum"},
	}
}

// Options returns the options that a user may choose.
func (t Type) Options() []Option { return slices.Clone(t.options) }

// ParseOptions parses options as users write them. The error satisfies errors.IsNotValid and
// lists the allowed options.
func (t Type) ParseOptions(text string) ([]options.Choice, error) {
	allowed := make([]options.Option, len(t.options))
	for i, o := range t.options {
		allowed[i] = o.Option
	}
	all, err := options.Parse(text, allowed, "making "+t.Name)
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, choice := range all {
		if o := t.option(choice.Key); o.needs != "" && !slices.ContainsFunc(all, func(c options.Choice) bool { return c.Key == o.needs }) {
			return nil, errors.NewNotValid(nil, fmt.Sprintf("option %q for making %s also needs option %q", o.Key, t.Name, o.needs))
		}
	}
	return all, nil
}

// CheckSize checks whether a filesystem of the type, with options from ParseOptions, fits on a
// device of size MiB. The error satisfies errors.IsNotValid.
func (t Type) CheckSize(size uint64, chosen []options.Choice) error {
	if size < t.MinSize {
		return errors.NewNotValid(nil, fmt.Sprintf("size %d MiB is too small for %s: at least %d MiB is needed",
			size, t.Name, t.MinSize))
	}
	for _, choice := range chosen {
		if least := t.option(choice.Key).minSize; size < least {
			return errors.NewNotValid(nil, fmt.Sprintf("size %d MiB is too small for %s with option %q: at least %d MiB is needed",
				size, t.Name, choice.Key, least))
		}
	}
	return nil
}

// LeastSize returns the smallest size, in MiB, that [Type.CheckSize] allows.
func (t Type) LeastSize(chosen []options.Choice) uint64 {
	least := t.MinSize
	for _, choice := range chosen {
		least = max(least, t.option(choice.Key).minSize)
	}
	return least
}

// option returns the option with a key, which must be valid.
func (t Type) option(key string) Option {
	return t.options[slices.IndexFunc(t.options, func(o Option) bool { return o.Key == key })]
}

// flag is an argument of a program, with its value if it takes one.
type flag struct {
	name, value string
}

// arguments returns the arguments of the program that makes a filesystem.
func (t Type) arguments(uuid string, chosen []options.Choice) []string {
	flags := t.flags(uuid)
	for _, choice := range chosen {
		o := t.option(choice.Key)
		value := o.prefix + choice.Value
		i := slices.IndexFunc(flags, func(f flag) bool { return f.name == o.flag })
		switch {
		case i < 0:
			flags = append(flags, flag{o.flag, value})
		case o.prefix == "":
			flags[i].value = value
		default:
			// A program uses only the last occurrence of a flag.
			flags[i].value = strings.Join([]string{flags[i].value, value}, ",")
		}
	}
	var args []string
	for _, f := range flags {
		args = append(args, f.name)
		if f.value != "" {
			args = append(args, f.value)
		}
	}
	return args
}
