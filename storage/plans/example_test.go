package plans_test

import (
	"context"
	"fmt"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
)

func ExamplePlanByType() {
	// What a provider has reported about the volumes that it attached.
	for _, info := range []storage.VolumeAttachmentPlanInfo{
		{DeviceType: storage.DeviceTypeLocal},
		{DeviceType: "fibre-channel"},
	} {
		plan, err := plans.PlanByType(info.DeviceType)
		if errors.Is(err, errors.NotFound) {
			fmt.Println(err)
			continue
		}
		device, err := plan.AttachVolume(context.Background(), info.DeviceAttributes)
		fmt.Printf("%s: device %q, error %v\n", info.DeviceType, device.DeviceName, err)
	}
	// Output:
	// local: device "", error <nil>
	// attachment plan for device type "fibre-channel" not found
}
