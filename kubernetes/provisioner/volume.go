package provisioner

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stowage-io/stowage/storage"
)

// The annotations of a volume say where its storage is. They are for people.
const (
	annotationPool    = "stowage.io/pool"
	annotationMachine = "stowage.io/machine"
)

// volume returns the PersistentVolume for attached storage.
func volume(r *request, info storage.KubernetesFilesystemInfo, at *place) (*corev1.PersistentVolume, error) {
	requirement, err := at.affinity()
	if err != nil {
		return nil, err
	}
	mode := corev1.PersistentVolumeFilesystem
	local := &corev1.LocalVolumeSource{Path: info.MountPoint}
	if r.isBlock() {
		mode = corev1.PersistentVolumeBlock
	} else if r.class.filesystem != "" {
		local.FSType = &r.class.filesystem
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        r.params.StorageName,
			Labels:      r.class.labels,
			Annotations: map[string]string{annotationPool: info.Pool, annotationMachine: at.machine.Name},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: mebibytes(info.Size)},
			AccessModes:                   r.claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: r.class.reclaimPolicy,
			MountOptions:                  r.class.mountOptions,
			VolumeMode:                    &mode,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: local},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{requirement}}},
			}},
		},
	}, nil
}

func mebibytes(size uint64) resource.Quantity {
	return resource.MustParse(strconv.FormatUint(size, 10) + "Mi")
}

// isLasting returns whether the path of a block device names the same device after a restart of the
// machine. The names that the kernel gives, such as /dev/loop0, do not.
func isLasting(device string) bool { return strings.HasPrefix(device, "/dev/disk/") }
