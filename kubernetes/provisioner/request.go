package provisioner

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/stowage-io/stowage/storage"
)

const mib = 1 << 20

// modes are the names of the access modes that are supported, long and short.
var modes = map[string]corev1.PersistentVolumeAccessMode{
	"ReadWriteOnce": corev1.ReadWriteOnce, "RWO": corev1.ReadWriteOnce,
	"ReadWriteOncePod": corev1.ReadWriteOncePod, "RWOP": corev1.ReadWriteOncePod,
}

// request is the storage that a claim asks for.
type request struct {
	// params has the storage's name, size, and attributes, and for a filesystem its mount point.
	params storage.KubernetesFilesystemParams
	class  class
	claim  *corev1.PersistentVolumeClaim
	// node is the node that the scheduler has selected; empty: it has not.
	node string
}

// storageName returns the name of the storage of a claim, which is also that of its volume.
func storageName(uid types.UID) string { return "pvc-" + string(uid) }

// newRequest returns what a claim asks for. The error is a refusal.
func newRequest(options controller.ProvisionOptions, mountDir string) (*request, error) {
	claim := options.PVC
	c, err := readClass(options.StorageClass)
	if err != nil {
		return nil, err
	}
	r := &request{class: c, claim: claim, node: options.SelectedNodeName}
	r.params = storage.KubernetesFilesystemParams{StorageName: storageName(claim.UID), Attributes: c.attributes}
	if options.PVName != r.params.StorageName {
		return nil, refuse("the volume is to be named %s: only %s can be made", options.PVName, r.params.StorageName)
	}
	for _, check := range []func() error{r.checkSource, r.checkModes, r.checkSelector, r.readSize} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	if r.isBlock() {
		return r, r.checkBlock()
	}
	r.params.Attachment = &storage.KubernetesFilesystemAttachmentParams{Path: path.Join(mountDir, r.params.StorageName)}
	return r, nil
}

func (r *request) isBlock() bool {
	return r.claim.Spec.VolumeMode != nil && *r.claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// checkSource refuses claims for a volume with contents.
func (r *request) checkSource() error {
	switch spec := r.claim.Spec; {
	case spec.DataSource != nil, spec.DataSourceRef != nil:
		return refuse("the claim has a data source: stowage makes only empty volumes")
	case spec.VolumeAttributesClassName != nil && *spec.VolumeAttributesClassName != "":
		return refuse("the claim has a VolumeAttributesClass, which stowage does not support: leave it out")
	}
	return nil
}

func (r *request) checkModes() error {
	for _, mode := range r.claim.Spec.AccessModes {
		switch {
		case modes[string(mode)] == "":
			return refuse("access mode %s is not supported, since a volume is on one node: use ReadWriteOnce or ReadWriteOncePod", mode)
		case r.class.mode != "" && mode != r.class.mode:
			return refuse("access mode %s is not the one of the class, which has the parameter %s: use %s", mode, storage.K8sStorageMode, r.class.mode)
		}
	}
	if len(r.claim.Spec.AccessModes) == 0 {
		return refuse("the claim has no access mode: use ReadWriteOnce or ReadWriteOncePod")
	}
	return nil
}

// checkSelector refuses claims whose selector does not match the labels of the class's volumes.
func (r *request) checkSelector() error {
	if r.claim.Spec.Selector == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(r.claim.Spec.Selector)
	if err != nil {
		return refuse("the claim's selector is not valid: %v", err)
	}
	if !selector.Matches(r.class.labels) {
		return refuse("the claim's selector (%s) does not match the labels of the class's volumes (%s): change the selector, or the parameter %s of the class",
			selector, r.class.labels, parameterLabels)
	}
	return nil
}

// readSize rounds the size up to whole MiB.
func (r *request) readSize() error {
	wanted := r.claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if wanted.Sign() <= 0 {
		return refuse("the claim requests no storage: set resources.requests.storage")
	}
	bytes := wanted.Value()
	r.params.Size = (uint64(bytes) + mib - 1) / mib
	limit, limited := r.claim.Spec.Resources.Limits[corev1.ResourceStorage]
	if limited && uint64(limit.Value()) < r.params.Size*mib {
		return refuse("sizes are whole MiB, and %d MiB is more than the limit of %s: raise resources.limits.storage", r.params.Size, limit.String())
	}
	return nil
}

// checkBlock refuses what only filesystems can have.
func (r *request) checkBlock() error {
	if len(r.class.mountOptions) > 0 || r.class.filesystem != "" || r.class.mkfsOptions != "" {
		return refuse("volume mode Block cannot have the class's mount options, or its parameters %s and %s: use a class without them",
			parameterFilesystem, parameterMkfsOptions)
	}
	return nil
}

// mountOptions returns the class's mount options as one text. An option with a comma could be
// several.
func (r *request) mountOptions() (string, error) {
	if i := slices.IndexFunc(r.class.mountOptions, func(o string) bool { return o == "" || strings.Contains(o, ",") }); i >= 0 {
		return "", refuse("the class's mount option %q: write each option on its own", r.class.mountOptions[i])
	}
	return strings.Join(r.class.mountOptions, ","), nil
}
