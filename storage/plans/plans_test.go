package plans_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
)

func TestMain(m *testing.M) {
	leaktest.VerifyTestMain(m)
}

// Behaviour 23.
func TestPlanByType(t *testing.T) {
	for _, deviceType := range []storage.DeviceType{storage.DeviceTypeLocal, storage.DeviceTypeISCSI} {
		if plan, err := plans.PlanByType(deviceType); err != nil || plan == nil {
			t.Errorf("%s: got %v, %v", deviceType, plan, err)
		}
	}
	for _, deviceType := range []storage.DeviceType{"", "fibre-channel"} {
		_, err := plans.PlanByType(deviceType)
		if !errors.Is(err, errors.NotFound) || !strings.Contains(err.Error(), strconv.Quote(string(deviceType))) {
			t.Errorf("%q: got %v, want not found", deviceType, err)
		}
	}
}

func TestLocalPlanDoesNothing(t *testing.T) {
	plan, err := plans.PlanByType(storage.DeviceTypeLocal)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		device, err := plan.AttachVolume(t.Context(), map[string]string{"any": "thing"})
		if err != nil || len(storage.BlockDevicePaths(device)) != 0 {
			t.Errorf("got %+v, %v, want nothing known", device, err)
		}
	}
	for range 2 {
		if err := plan.DetachVolume(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
}

func TestISCSIConfigErrorNamesField(t *testing.T) {
	for want, config := range map[string]plans.ISCSIConfig{
		`iSCSI plan: Program is "iscsiadm": want an absolute path`: {Program: "iscsiadm"},
		`iSCSI plan: SysfsDir is "sys": want an absolute path`:     {SysfsDir: "sys"},
		`iSCSI plan: LockDir is "./run": want an absolute path`:    {LockDir: "./run"},
		`iSCSI plan: DeviceTimeout is -1s: want 0 or more`:         {DeviceTimeout: -time.Second},
	} {
		_, err := plans.NewISCSI(config)
		if !errors.Is(err, errors.NotValid) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
