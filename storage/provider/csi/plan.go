package csi

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
)

// These are the device types of attachment plans that the node service of a driver carries out on the machine
// to which the volume is attached, for block devices and for filesystems. An agent that does not know those of
// filesystems carries out nothing.
const (
	DeviceType           storage.DeviceType = "csi"
	FilesystemDeviceType storage.DeviceType = "csi-filesystem"
)

// These are the attributes of such a plan. The contexts are JSON objects of strings, which may be secret.
const (
	providerAttribute       = "provider"
	volumeAttribute         = "volume-id"
	volumeContextAttribute  = "volume-context"
	publishContextAttribute = "publish-context"
	// filesystemAttribute says how to mount a filesystem.
	filesystemAttribute = "filesystem"
)

// Plans returns a function like next that also knows [DeviceType] and [FilesystemDeviceType]. The drivers are those of the machine: the
// providers in the registry that [New] has made with [Config].Environ. The plans keep what they publish below
// the storage directory.
func Plans(registry storage.ProviderRegistry, storageDir string, next func(storage.DeviceType) (plans.Plan, error)) func(storage.DeviceType) (plans.Plan, error) {
	return func(t storage.DeviceType) (plans.Plan, error) {
		if t == DeviceType || t == FilesystemDeviceType {
			return devicePlan{registry, storageDir}, nil
		}
		return next(t)
	}
}

var _ plans.Resizer = devicePlan{}

// devicePlan implements [plans.Plan].
type devicePlan struct {
	registry   storage.ProviderRegistry
	storageDir string
}

// AttachVolume implements [plans.Plan].
func (p devicePlan) AttachVolume(ctx context.Context, attributes map[string]string) (storage.BlockDevice, error) {
	own, dir, err := p.provider(attributes)
	if err != nil {
		return storage.BlockDevice{}, errors.Trace(err)
	}
	return own.attachPlanned(ctx, dir, attributes)
}

// DetachVolume implements [plans.Plan].
func (p devicePlan) DetachVolume(ctx context.Context, attributes map[string]string) error {
	own, dir, err := p.provider(attributes)
	if err != nil {
		return errors.Trace(err)
	}
	return own.detachPlanned(ctx, dir, attributes)
}

// ResizeVolume implements [plans.Resizer].
func (p devicePlan) ResizeVolume(ctx context.Context, attributes map[string]string, size uint64) error {
	own, dir, err := p.provider(attributes)
	if err != nil {
		return errors.Trace(err)
	}
	return own.resizePlanned(ctx, dir, attributes, size)
}

// provider returns the provider of a plan, and the directory for what it publishes.
func (p devicePlan) provider(attributes map[string]string) (*provider, string, error) {
	name := storage.ProviderType(attributes[providerAttribute])
	found, err := p.registry.StorageProvider(name)
	if err != nil && !errors.Is(err, errors.NotFound) {
		return nil, "", errors.Trace(err)
	}
	own, ok := found.(*provider)
	if err != nil || !ok || !own.config.Environ {
		return nil, "", storage.Permanent(errors.New(fmt.Sprintf(
			"this machine has no CSI driver of provider %q with the scope environment: start its agent with a file that describes it", name)))
	}
	return own, filepath.Join(p.storageDir, string(name), "attached"), nil
}

// HasMachineDrivers reports whether a registry has drivers whose volumes any machine can have.
func HasMachineDrivers(registry storage.ProviderRegistry) bool {
	return len(environDrivers(registry)) > 0
}

func environDrivers(registry storage.ProviderRegistry) []*provider {
	var found []*provider
	types, _ := registry.StorageProviderTypes() // a registry that does not list its providers has none
	for _, t := range types {
		p, _ := registry.StorageProvider(t)
		if own, ok := p.(*provider); ok && own.config.Environ {
			found = append(found, own)
		}
	}
	return found
}

// AskMachineDrivers asks the drivers whose volumes any machine can have what they say about this machine. It
// returns those that have answered, and the errors of the others.
func AskMachineDrivers(ctx context.Context, registry storage.ProviderRegistry) (map[storage.ProviderType]machine.Driver, map[storage.ProviderType]error) {
	answers, failures := make(map[storage.ProviderType]machine.Driver), make(map[storage.ProviderType]error)
	for _, p := range environDrivers(registry) {
		if d, err := p.machineDriver(ctx); err != nil {
			failures[p.Type] = err
		} else {
			answers[p.Type] = d
		}
	}
	return answers, failures
}
