package csi

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider/internal/object"
)

// record is the stored record of a volume or filesystem, under its ID.
type record struct {
	Size  uint64       `json:"size"` // bytes
	Phase object.Phase `json:"phase"`

	// Name is the name at the driver, and Request what the driver is asked for. Both were recorded
	// before the driver was called, and stay the same.
	Name    string  `json:"name"`
	Request request `json:"request"`

	// VolumeID and Context are the driver's, once it has made the volume.
	VolumeID string            `json:"volume-id,omitempty"`
	Context  map[string]string `json:"context,omitempty"`

	// Staged says that the driver may have the volume on this machine. NodeID is the machine for
	// which the controller service has published it, if it was asked to.
	Staged bool   `json:"staged,omitempty"`
	NodeID string `json:"node-id,omitempty"`

	// Planned says that the environment's provider has made the volume, and published it for this
	// machine with PublishContext.
	Planned        bool              `json:"planned,omitempty"`
	PublishContext map[string]string `json:"publish-context,omitempty"`

	// ExpandNode says that the node service still has to be told that the volume has grown.
	ExpandNode bool `json:"expand-node,omitempty"`

	// Shown identifies the filesystem that was published.
	Shown object.Shown `json:"shown,omitzero"`

	// Imported says that another program has made the volume, so that there is no name, and maybe no size.
	Imported bool `json:"imported,omitempty"`

	object.Ownership
	object.Placement
}

// request is what the driver is asked for.
type request struct {
	Bytes      int64             `json:"bytes"`
	Block      bool              `json:"block,omitempty"`
	Filesystem string            `json:"filesystem,omitempty"`
	Flags      []string          `json:"flags,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// Topology is from where this machine can use volumes.
	Topology map[string]string `json:"topology,omitempty"`
	// FromSnapshot or FromVolume is the driver's ID of what the volume gets the contents of, if it gets any.
	FromSnapshot string `json:"from-snapshot,omitempty"`
	FromVolume   string `json:"from-volume,omitempty"`
}

// contentSource returns what the volume gets the contents of, or nil.
func (r request) contentSource() *csi.VolumeContentSource {
	switch {
	case r.FromSnapshot != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: r.FromSnapshot},
		}}
	case r.FromVolume != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: r.FromVolume},
		}}
	}
	return nil
}

// capability returns how the volume is used.
func (r request) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if r.Block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: r.Filesystem, MountFlags: r.Flags}}
	}
	return c
}

// Validate reports an error unless a call of this provider can have written the record.
func (r *record) Validate() error {
	if r.Planned {
		if r.VolumeID == "" || r.Phase != object.PhaseReady {
			return errors.New("it is not that of a volume of the driver's")
		}
		return nil
	}
	if !r.Imported {
		if err := object.CheckObject(r.Size, r.Phase); err != nil {
			return errors.Trace(err)
		}
	}
	phases := []object.Phase{object.PhaseCreating, object.PhaseReady, object.PhaseDestroying, object.PhaseReleased}
	switch {
	case !slices.Contains(phases, r.Phase):
		return errors.Errorf("phase %q", r.Phase)
	case !r.Imported && (r.Name == "" || r.Request.Bytes <= 0):
		return errors.New("name or size of the request is missing")
	case r.VolumeID == "" && (r.Phase == object.PhaseReady || r.Phase == object.PhaseReleased || r.Staged || r.Imported):
		return errors.New("the driver's ID is missing")
	}
	return errors.Trace(r.Placement.Check())
}
