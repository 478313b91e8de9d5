package plans

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
)

// ISCSIConfig is how [NewISCSI] makes a plan. Its zero value is good for any
// machine that has open-iscsi.
type ISCSIConfig struct {
	// Program is the absolute path of iscsiadm. Empty: it is looked for in the
	// system's directories, each time that it is needed.
	Program string

	// SysfsDir is where sysfs is mounted. Empty: /sys.
	SysfsDir string

	// LockDir is the directory for locks, which all plans of a machine share. It
	// is made where it is missing. Empty: /run/stowage/iscsi.
	LockDir string

	// DeviceTimeout is how long after the login the block device may take to
	// show. 0: 30 seconds.
	DeviceTimeout time.Duration

	// Clock measures that. nil: the wall clock.
	Clock clock.Clock
}

// Validate returns an error that satisfies errors.IsNotValid and names the field
// if the plan cannot work.
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

// NewISCSI returns the plan for volumes that are iSCSI targets. It works through
// open-iscsi's iscsiadm, whose daemon must run, and without udev. On systems other
// than Linux its calls fail with an error that satisfies errors.IsNotSupported.
//
// A target holds one volume: its only logical unit. What the volume's plan says is
// in the attributes [AttributeIQN], [AttributeAddress], [AttributePort] and, where
// the target asks for it, [AttributeCHAPUser] and [AttributeCHAPSecret]. An
// attribute that is bad, missing or unknown is an error that satisfies
// errors.IsNotValid and names it.
//
// AttachVolume recreates the record of the target from the machine's defaults in
// iscsid.conf, has the daemon log in at every start of the machine, logs in, and
// waits until sysfs shows the block device. It tells the device's name and size,
// and its WWN if it has one. A session that is there already is used, and scanned
// again if it lacks the device.
//
// DetachVolume logs out and deletes the record, also what an AttachVolume that failed
// has left of either; it needs no CHAP attributes. It is for the caller to see that
// nobody uses the device any more.
//
// An error is permanent, as [storage.IsPermanent] has it, for bad attributes and
// where the machine lacks something: iscsiadm, the kernel's transport, the
// permission. All others are transient, a refused login too: targets often let an
// initiator in only some time after they have been told to, and secrets are put
// right on the target's side without the attributes changing. A device that does
// not show in time is an error that satisfies errors.Is(err, errors.Timeout).
//
// Calls for one target follow one another, over all plans and processes that share
// the LockDir; a context that ends stops the waiting. It also kills a running
// iscsiadm. The daemon may then finish the login by itself: the next call finds the
// session. An iscsiadm that is killed within its own database can leave a lock
// there, which the next one takes away after 30 seconds.
//
// The secret is in no error. But iscsiadm accepts it in its arguments only: while
// that one command runs, for some milliseconds, any user of the machine who may see
// root's processes can read it. open-iscsi keeps it in a file that only root can
// read.
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
