package program

import (
	"context"
	"fmt"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
)

// DeviceType is the device type of attachment plans that the provider's own program carries out on
// the machine to which the volume is attached.
const DeviceType storage.DeviceType = "program"

// providerAttribute is the attribute of such a plan that names the provider. The provider sets it.
const providerAttribute = "provider"

// Plans returns a function like [plans.PlanByType] that also knows [DeviceType]. The programs are
// those of the machine: the providers in the registry that [New] has made. A plan cannot name
// another program.
func Plans(registry storage.ProviderRegistry) func(storage.DeviceType) (plans.Plan, error) {
	return func(t storage.DeviceType) (plans.Plan, error) {
		if t == DeviceType {
			return devicePlan{registry}, nil
		}
		return plans.PlanByType(t)
	}
}

// devicePlan implements [plans.Plan] for [DeviceType].
type devicePlan struct{ registry storage.ProviderRegistry }

// AttachVolume implements [plans.Plan].
func (p devicePlan) AttachVolume(ctx context.Context, attributes map[string]string) (storage.BlockDevice, error) {
	r, err := p.run(ctx, "connect-volumes", attributes)
	if err == nil {
		err = r.Error.err()
	}
	if err != nil {
		return storage.BlockDevice{}, errors.Trace(err)
	}
	at, err := r.attached("", names.VolumeTag{}, nil)
	switch {
	case err != nil:
		return storage.BlockDevice{}, errors.Trace(err)
	case at.PlanInfo != nil:
		return storage.BlockDevice{}, errors.New("the program gave another plan")
	case len(namesOf(at)) == 0:
		return storage.BlockDevice{}, errors.New("the program gave neither device-name, device-link nor bus-address")
	}
	device := storage.BlockDevice{DeviceName: at.DeviceName, BusAddress: at.BusAddress}
	if at.DeviceLink != "" {
		device.DeviceLinks = []string{at.DeviceLink}
	}
	return device, nil
}

// DetachVolume implements [plans.Plan].
func (p devicePlan) DetachVolume(ctx context.Context, attributes map[string]string) error {
	r, err := p.run(ctx, "disconnect-volumes", attributes)
	if err == nil {
		err = undone(r)
	}
	return errors.Trace(err)
}

// run runs an operation for one volume.
func (p devicePlan) run(ctx context.Context, operation string, attributes map[string]string) (result, error) {
	name := attributes[providerAttribute]
	own, err := p.registry.StorageProvider(storage.ProviderType(name))
	if err != nil && !errors.Is(err, errors.NotFound) {
		return result{}, errors.Trace(err)
	}
	of, ok := own.(*provider)
	if err != nil || !ok {
		return result{}, storage.Permanent(errors.New(fmt.Sprintf(
			"this machine has no program of provider %q: start its agent with --provider %s=PATH", name, name)))
	}
	arg := argument{Attributes: make(map[string]any, len(attributes))}
	for key, value := range attributes {
		if key != providerAttribute {
			arg.Attributes[key] = value
		}
	}
	got, err := (&source{name: of.name, path: of.path}).call(ctx, operation, []argument{arg})
	if err != nil {
		return result{}, errors.Trace(err)
	}
	return got.Results[0], nil
}
