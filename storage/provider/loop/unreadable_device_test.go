//go:build linux

package loop

import (
	"os"
	"reflect"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/syscalltest"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// The kernel fails to tell which file the volume's device shows. The volume is neither
// reported as detached nor attached to a second device.
// Fault F28.
func TestLoopDeviceStatusError(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, file string){
		"its file in place": func(*testing.T, string) {},
		"its file removed": func(t *testing.T, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		},
		"its file moved away": func(t *testing.T, file string) {
			if err := os.Rename(file, file+".away"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			lt := newLoopTest(t)
			tag := sourcetest.Volume(1)
			lt.Create(tag)
			lt.Attach(tag, false)
			damage(t, lt.File(tag))
			before := lt.record(tag)
			id := tag.String()
			for what, do := range map[string]func(*call) error{
				"attaching": func(c *call) error {
					_, err := c.attach(id, false)
					return err
				},
				"detaching":  func(c *call) error { return c.detach(id) },
				"destroying": func(c *call) error { return c.destroy(id) },
				"listing its owner": func(c *call) error {
					_, err := c.owned(id)
					return err
				},
			} {
				err := syscalltest.Intercept(t, []int{unix.SYS_IOCTL}, func(c syscalltest.Call) syscalltest.Result {
					if c.Args[1] == unix.LOOP_GET_STATUS64 && c.Path() == "/dev/"+before.Device {
						return syscalltest.Fail(unix.EIO)
					}
					return syscalltest.Pass
				}, func() error {
					c, err := (&source{dir: lt.Dir}).begin(lt.Ctx)
					if err != nil {
						return err
					}
					defer c.End()
					return do(c)
				})
				missing := what == "attaching" && name != "its file in place" // that error comes first
				if !errors.Is(err, unix.EIO) && !missing || err == nil {
					t.Errorf("%s: %v", what, err)
				}
				if now := lt.record(tag); !reflect.DeepEqual(now, before) {
					t.Errorf("%s: the record was %+v, and is %+v", what, before, now)
				}
				if loops := devicetest.Loops(t, lt.Dir); len(loops) != 1 {
					t.Errorf("%s: attached are %q", what, loops)
				}
			}
			lt.Restart()
			lt.Detach(tag)
			lt.CheckLoops(0)
			_ = os.Remove(lt.File(tag) + ".away")
			lt.Destroy(tag)
		})
	}
}
