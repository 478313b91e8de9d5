package object

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/fsattr"
)

// Provider is what the providers that use this package have in common.
type Provider struct {
	Type storage.ProviderType

	// StorageDir is the storage directory of pools that do not configure one.
	StorageDir string

	// Attributes are the names of the settings that a pool may have, in addition to
	// storage.ConfigStorageDir.
	Attributes []string

	// MountType is the type, as fsattr.ParseMount knows it, of the filesystems that the
	// provider makes itself. Their mount options are then another setting of a pool. Empty:
	// the provider makes none.
	MountType string
}

// Scope implements [storage.Provider].
func (p Provider) Scope() storage.Scope {
	return storage.ScopeMachine
}

// Dynamic implements [storage.Provider].
func (p Provider) Dynamic() bool {
	return true
}

// DefaultPools implements [storage.Provider]. It returns none: every provider has a pool with
// its own name anyway.
func (p Provider) DefaultPools() []*storage.Config {
	return nil
}

// ValidateConfig implements [storage.Provider].
func (p Provider) ValidateConfig(config *storage.Config) error {
	for _, name := range slices.Sorted(maps.Keys(config.Attrs())) {
		if name != storage.ConfigStorageDir && !slices.Contains(p.attributes(), name) {
			return errors.NewNotValid(nil, fmt.Sprintf("storage pool %q: attribute %q is not known to provider %s, which takes %s",
				config.Name(), name, p.Type, strings.Join(p.attributes(), ", ")))
		}
	}
	if p.MountType != "" {
		if _, err := fsattr.ParseMount(p.MountType, config.Attrs()); err != nil {
			return errors.Annotatef(err, "storage pool %q", config.Name())
		}
	}
	if _, ok := config.Attrs()[storage.ConfigStorageDir]; !ok {
		return nil
	}
	_, err := p.Dir(config)
	return errors.Trace(err)
}

func (p Provider) attributes() []string {
	if p.MountType == "" {
		return p.Attributes
	}
	return append(slices.Clone(p.Attributes), fsattr.MountOptions)
}

// Dir returns the directory in which the source of a pool stores its objects.
func (p Provider) Dir(config *storage.Config) (string, error) {
	dir := p.StorageDir
	if value, ok := config.Attrs()[storage.ConfigStorageDir]; ok {
		if dir, ok = value.(string); !ok {
			return "", errors.NewNotValid(nil, fmt.Sprintf("storage pool %q: attribute %q is %T, want an absolute path",
				config.Name(), storage.ConfigStorageDir, value))
		}
	}
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
		return "", errors.NewNotValid(nil, fmt.Sprintf("storage pool %q: storage directory %q is not an absolute, clean path: set attribute %q",
			config.Name(), dir, storage.ConfigStorageDir))
	}
	return dir, nil
}

// SizeInBytes converts a size in MiB to bytes. The error satisfies errors.IsNotValid if the
// size is zero, or too large for a file.
func SizeInBytes(mib uint64) (uint64, error) {
	if mib == 0 {
		return 0, errors.NewNotValid(nil, "size 0 MiB: at least 1 MiB is needed")
	}
	if mib > math.MaxInt64>>20 {
		return 0, errors.NewNotValid(nil, fmt.Sprintf("size %d MiB: too large", mib))
	}
	return mib << 20, nil
}

// ValidateMediumForK8s checks the attributes of a filesystem that is a directory of a
// Kubernetes workload. The medium is the only attribute that it may have.
func ValidateMediumForK8s(providerType storage.ProviderType, attributes map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[name]
		if name != storage.K8sStorageMedium {
			return errors.NewNotValid(nil, fmt.Sprintf("attribute %q is not known to provider %s in Kubernetes, which takes %s",
				name, providerType, storage.K8sStorageMedium))
		}
		if value != storage.K8sStorageMediumMemory && value != storage.K8sStorageMediumHugePages {
			return errors.NewNotValid(nil, fmt.Sprintf("attribute %q is %q, want %s or %s",
				name, fmt.Sprint(value), storage.K8sStorageMediumMemory, storage.K8sStorageMediumHugePages))
		}
	}
	return nil
}
