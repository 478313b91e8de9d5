//go:build linux

package loop

import (
	"os"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/loopdev"
	"github.com/stowage-io/stowage/storage/provider/internal/object"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// An older version attached the device, and labelled it only with the path of its file.
func TestLoopDeviceOfOlderVersion(t *testing.T) {
	for _, test := range []struct {
		about    string
		change   func(*loopTest, *record, *loopdev.Label)
		detached bool
	}{
		{"as recorded", func(*loopTest, *record, *loopdev.Label) {}, true},
		{"another attachment", func(_ *loopTest, rec *record, _ *loopdev.Label) { rec.DiskSeq++ }, false},
		{"of an earlier boot", func(_ *loopTest, rec *record, _ *loopdev.Label) { rec.BootID = "earlier" }, false},
		{"another agent's mark", func(_ *loopTest, _ *record, label *loopdev.Label) { label.Mark = "0123456789abcdef" }, false},
	} {
		t.Run(test.about, func(t *testing.T) {
			lt := newLoopTest(t)
			tag := sourcetest.Volume(1)
			lt.Create(tag)
			f, err := os.OpenFile(lt.File(tag), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			rec, label := lt.record(tag), loopdev.Label{Name: lt.File(tag)}
			// The label is set when the device is attached.
			change := rec
			test.change(lt, &change, &label)
			h, err := loopdev.Attach(t.Context(), f, false, 0, label)
			if err != nil {
				t.Fatal(err)
			}
			h.Close()
			rec.Phase, rec.Device, rec.DiskSeq = object.PhaseAttached, h.Name(), h.DiskSeq
			test.change(lt, &rec, &label)
			lt.saveRecord(tag, rec)
			if test.detached {
				lt.Detach(tag)
			} else {
				sourcetest.CheckError(t, lt.TryDetach(tag), false, h.Name(), "but not by this agent")
				lt.CheckLoops(1)
				sourcetest.Run(t, "losetup", "--detach", h.Path())
				lt.CheckLoops(0)
			}
			lt.Destroy(tag)
		})
	}
}
