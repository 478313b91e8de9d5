package provisioner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/stowage-io/stowage/storage"
)

// The parameters of a StorageClass, besides the attributes of package storage that Kubernetes
// interprets.
const (
	parameterPool             = "pool"
	parameterMachineLabels    = "machine-labels"
	parameterLabels           = "labels"
	parameterFilesystem       = "filesystem"
	parameterMkfsOptions      = "mkfs-options"
	parameterAllowDeviceNames = "allow-device-names"
)

var parameterNames = []string{
	parameterPool, parameterMachineLabels, parameterLabels, parameterFilesystem, parameterMkfsOptions, parameterAllowDeviceNames,
	storage.K8sStorageClass, storage.K8sStorageProvisioner, storage.K8sStorageMode, storage.K8sStorageMedium,
}

// class is what a StorageClass says about storage.
type class struct {
	pool         string
	filesystem   string
	mkfsOptions  string
	mountOptions []string
	// machineLabels are those that a machine must have; labels are those of the volumes.
	machineLabels, labels labels.Set
	// allowDeviceNames permits block volumes whose path is a name that the kernel may give to
	// another device after a restart.
	allowDeviceNames bool
	// mode is the only access mode of claims; empty: any that is supported.
	mode corev1.PersistentVolumeAccessMode
	// attributes are those that the pool's provider checks.
	attributes    map[string]any
	reclaimPolicy corev1.PersistentVolumeReclaimPolicy
	topologies    []corev1.TopologySelectorTerm
}

// readClass returns what a StorageClass says. The error is a refusal that names the field.
func readClass(sc *storagev1.StorageClass) (class, error) {
	c := class{
		mountOptions:  sc.MountOptions,
		topologies:    sc.AllowedTopologies,
		reclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		attributes:    map[string]any{},
	}
	invalid := func(name, format string, args ...any) error {
		return refuse("StorageClass %s: parameter %s: %s", sc.Name, name, fmt.Sprintf(format, args...))
	}
	for _, name := range slices.Sorted(maps.Keys(sc.Parameters)) {
		value := sc.Parameters[name]
		var err error
		switch name {
		case parameterPool:
			c.pool = value
		case parameterFilesystem:
			c.filesystem = value
		case parameterMkfsOptions:
			c.mkfsOptions = value
		case parameterLabels:
			c.labels, err = labels.ConvertSelectorToLabelsMap(value)
		case parameterMachineLabels:
			c.machineLabels, err = labels.ConvertSelectorToLabelsMap(value)
		case parameterAllowDeviceNames:
			if c.allowDeviceNames = value == "true"; !c.allowDeviceNames && value != "false" {
				return c, invalid(name, "%q: want true or false", value)
			}
		case storage.K8sStorageClass:
			if value != sc.Name {
				return c, invalid(name, "%q is not the name of the class: leave it out, or write %s", value, sc.Name)
			}
		case storage.K8sStorageProvisioner:
			if value != sc.Provisioner {
				return c, invalid(name, "%q is not the provisioner of the class: leave it out, or write %s", value, sc.Provisioner)
			}
		case storage.K8sStorageMode:
			mode, ok := modes[value]
			if !ok {
				return c, invalid(name, "%q: want ReadWriteOnce or ReadWriteOncePod", value)
			}
			c.mode = mode
		case storage.K8sStorageMedium:
			c.attributes[name] = value
		default:
			return c, invalid(name, "it is not known: the parameters are %s", strings.Join(parameterNames, ", "))
		}
		if err != nil {
			return c, invalid(name, "%v", err)
		}
	}
	if c.pool == "" {
		return c, invalid(parameterPool, "it is missing: name a pool that `stowage pools` lists")
	}
	if sc.ReclaimPolicy != nil {
		c.reclaimPolicy = *sc.ReclaimPolicy
	}
	switch c.reclaimPolicy {
	case corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain:
		return c, nil
	}
	return c, refuse("StorageClass %s: reclaim policy %s is not supported: use Delete or Retain", sc.Name, c.reclaimPolicy)
}

// allows returns whether volumes may be on a node with the labels.
func (c *class) allows(node labels.Set) bool {
	if len(c.topologies) == 0 {
		return true
	}
	return slices.ContainsFunc(c.topologies, func(term corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			return !node.Has(e.Key) || !slices.Contains(e.Values, node.Get(e.Key))
		})
	})
}
