package diskmanager_test

import (
	"fmt"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/diskmanager"
)

// A host program gives the disk manager a publisher of the devices. This one also has a Lister
// and Events of its own; the defaults are those of this machine.
func Example() {
	published := make(publisher)
	worker, err := diskmanager.New(diskmanager.Config{
		Publisher: published,
		Lister:    oneDisk{},
		Events: func() (diskmanager.EventSource, error) {
			return nil, fmt.Errorf("no events here")
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, device := range <-published {
		path, err := storage.BlockDevicePath(device)
		fmt.Println(path, device.Size, "MiB", err)
	}
	worker.Kill()
	fmt.Println("worker:", worker.Wait())
	// Output:
	// /dev/disk/by-id/wwn-0x5000c500a1b2c3d4 953869 MiB <nil>
	// worker: <nil>
}

// publisher is where a host program records the devices of its machine.
type publisher chan []storage.BlockDevice

func (p publisher) SetMachineBlockDevices(devices []storage.BlockDevice) error {
	p <- devices
	return nil
}

// oneDisk is a machine with one disk.
type oneDisk struct{}

func (oneDisk) BlockDevices(diskmanager.Hint) ([]storage.BlockDevice, error) {
	return []storage.BlockDevice{{DeviceName: "sda", WWN: "0x5000c500a1b2c3d4", Size: 953869}}, nil
}
