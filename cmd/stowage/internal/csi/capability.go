package csi

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/bind"
)

// access is how a capability says that a volume is used.
type access struct {
	kind storage.StorageKind
	// filesystem is a type of filesystem; empty for any.
	filesystem string
	// options are the mount options of the filesystem itself, and bindOptions those of the mount that
	// a caller gets.
	options, bindOptions []string
	readOnly             bool
	// shared says that the volume may be published at several paths.
	shared bool
}

// parseCapability returns the access that a capability describes. Capabilities that no volume has are
// errors with the given code.
func parseCapability(c *csi.VolumeCapability, unsupported codes.Code) (access, error) {
	var a access
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		a.shared = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		a.readOnly = true
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return a, fail(codes.InvalidArgument, "volume_capability: no access mode: choose one of SINGLE_NODE_…")
	default:
		return a, fail(unsupported, "volume_capability: access mode %s: a volume is on one machine at a time: choose one of SINGLE_NODE_…", mode)
	}
	switch c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		a.kind = storage.StorageKindBlock
		if a.readOnly {
			return a, fail(unsupported, "volume_capability: a block volume cannot be published for reading only: choose another access mode, or the access type mount")
		}
	case *csi.VolumeCapability_Mount:
		a.kind = storage.StorageKindFilesystem
		mount := c.GetMount()
		if mount.GetVolumeMountGroup() != "" {
			return a, fail(unsupported, "volume_capability: volume_mount_group: this driver does not have the capability VOLUME_MOUNT_GROUP: leave it out")
		}
		a.filesystem = mount.GetFsType()
		for _, flag := range strings.Split(strings.Join(mount.GetMountFlags(), ","), ",") {
			switch {
			case flag == "":
			case bind.IsOption(flag):
				a.bindOptions = append(a.bindOptions, flag)
			default:
				a.options = append(a.options, flag)
			}
		}
	default:
		return a, fail(codes.InvalidArgument, "volume_capability: no access type: choose mount or block")
	}
	return a, nil
}

// parseCapabilities returns the access that all of the capabilities describe.
func parseCapabilities(all []*csi.VolumeCapability) (access, error) {
	if len(all) == 0 {
		return access{}, fail(codes.InvalidArgument, "volume_capabilities: missing: name at least one")
	}
	var first access
	for i, c := range all {
		a, err := parseCapability(c, codes.InvalidArgument)
		switch {
		case err != nil:
			return access{}, err
		case i == 0:
			first = a
		case a.kind != first.kind:
			return access{}, fail(codes.InvalidArgument, "volume_capabilities: both block and mount: a volume has one of them: choose one")
		case a.filesystem != first.filesystem || !slices.Equal(a.options, first.options):
			return access{}, fail(codes.InvalidArgument, "volume_capabilities: different filesystems or mount flags: a volume has one filesystem: choose one")
		}
	}
	return first, nil
}

// misfit returns why a volume cannot be used in this way; "" if it can.
func (a *access) misfit(v *asked.Volume) string {
	if a.kind != v.Kind {
		return "it is a " + v.Kind.String() + " volume"
	}
	if a.filesystem != "" && a.filesystem != filesystemOf(v) {
		return "its filesystem is " + filesystemOf(v)
	}
	has := strings.Split(v.MountOptions, ",")
	for _, option := range a.options {
		if !slices.Contains(has, option) {
			return "it was not created with the mount flag " + option
		}
	}
	return ""
}

// filesystemOf returns the type of the filesystem of a volume. A provider that makes filesystems itself
// names their type.
func filesystemOf(v *asked.Volume) string {
	if v.Filesystem == "" {
		return v.Pool
	}
	return v.Filesystem
}
