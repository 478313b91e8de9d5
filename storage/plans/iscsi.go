package plans

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
)

// ISCSIConfig configures the plan that [NewISCSI] returns. The zero value suits any machine
// that has open-iscsi.
type ISCSIConfig struct {
	// Program is the absolute path of iscsiadm. Empty: each call looks for it in the system's
	// directories.
	Program string

	// SysfsDir is where sysfs is mounted. Empty: /sys.
	SysfsDir string

	// LockDir is the directory for locks, which all plans of a machine share. It is created if
	// it does not exist. Empty: /run/stowage/iscsi.
	LockDir string

	// DeviceTimeout limits the wait for the block device to appear after the login. 0: 30
	// seconds.
	DeviceTimeout time.Duration

	// Clock measures DeviceTimeout. nil: the wall clock.
	Clock clock.Clock
}

// Validate returns an error if the configuration is invalid. The error satisfies
// errors.IsNotValid and names the field.
func (c ISCSIConfig) Validate() error {
	for _, path := range []struct{ field, value string }{
		{"Program", c.Program},
		{"SysfsDir", c.SysfsDir},
		{"LockDir", c.LockDir},
	} {
		if path.value != "" && !filepath.IsAbs(path.value) {
			return errors.NewNotValid(nil, fmt.Sprintf("%s is %q: want an absolute path", path.field, path.value))
		}
	}
	if c.DeviceTimeout < 0 {
		return errors.NewNotValid(nil, fmt.Sprintf("DeviceTimeout is %s: want 0 or more", c.DeviceTimeout))
	}
	return nil
}

func (c ISCSIConfig) withDefaults() ISCSIConfig {
	if c.SysfsDir == "" {
		c.SysfsDir = "/sys"
	}
	if c.LockDir == "" {
		c.LockDir = "/run/stowage/iscsi"
	}
	if c.DeviceTimeout == 0 {
		c.DeviceTimeout = 30 * time.Second
	}
	if c.Clock == nil {
		c.Clock = clock.WallClock
	}
	return c
}

// NewISCSI returns the plan for volumes that are iSCSI targets. It uses open-iscsi's iscsiadm,
// whose daemon must be running, and does not need udev. On systems other than Linux its calls
// fail with an error that satisfies errors.IsNotSupported.
//
// A target has exactly one volume: its only logical unit. The plan of a volume has the
// attributes [AttributeIQN], [AttributeAddress] and [AttributePort] and, if the target
// requires them, [AttributeCHAPUser] and [AttributeCHAPSecret]. If an attribute is invalid,
// missing or unknown, the error satisfies errors.IsNotValid and names it.
//
// AttachVolume recreates the record of the target from the machine's defaults in iscsid.conf,
// configures the daemon to log in whenever the machine starts, logs in, and waits until sysfs
// shows the block device. It returns the device's name and size, and its WWN if it has one. It
// uses an existing session, and rescans it if it lacks the device.
//
// DetachVolume logs out and deletes the record. It also removes a session or record that a
// failed AttachVolume has left. It needs no CHAP attributes. The caller ensures that the
// device is no longer in use.
//
// Errors are permanent, as defined by [storage.IsPermanent], if attributes are invalid or the
// machine lacks iscsiadm, the kernel's transport or the permission. All other errors are
// temporary, including a refused login: a target may admit an initiator only some time after
// it was configured to, and an operator can correct a secret on the target without changing
// the attributes. If the device does not appear in time, the error satisfies errors.Is(err,
// errors.Timeout).
//
// Calls for one target run one after another, across all plans and processes that share the
// LockDir. A call stops waiting when its context ends. The end of the context also kills a
// running iscsiadm. The daemon may then complete the login by itself, and the next call finds
// the session. An iscsiadm that is killed while it uses its own database can leave a lock
// there, which the next one removes after 30 seconds.
//
// No error contains the secret. But iscsiadm accepts the secret only as an argument: while
// that one command runs, for some milliseconds, any user of the machine who may see root's
// processes can read it. open-iscsi stores the secret in a file that only root can read.
func NewISCSI(config ISCSIConfig) (Plan, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Annotate(err, "iSCSI plan")
	}
	return &iscsi{config: config.withDefaults()}, nil
}

// iscsi is the plan for iSCSI targets.
type iscsi struct {
	config ISCSIConfig
}
