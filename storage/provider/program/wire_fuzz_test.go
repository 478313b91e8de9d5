package program

import (
	"path"
	"strings"
	"testing"
	"unicode"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
)

// FuzzAnswer decodes arbitrary answers of a program. The accepted values and errors are
// short and fit on one line, and a device is under /dev.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{
		`{"results": [{"volume-id": "a", "size-mib": 1024, "hardware-id": "b", "wwn": "0x5", "persistent": true,
		  "attachment": {"device-name": "sda", "device-link": "/dev/disk/by-id/b", "bus-address": "scsi@0", "read-only": true,
		  "plan": {"device-type": "iscsi", "attributes": {"iqn": "iqn.2001-04.com.example:a"}}}}]}`,
		`{"results": [{"error": {"message": "no\u001b[2J", "code": "permanent"}}, {"error": {"message": "", "code": "\u001bodd"}}]}`,
		`{"results": [{"volume-id": "a\n", "attachment": {"device-name": "/dev/sda"}}]}`,
		`{"results": [{"attachment": {"device-name": "../sda", "device-link": "/dev/../x", "plan": {"device-type": "\u0000"}}}]}`,
		`{"results": [{"attachment": {"device-name": "../sda"}}, {"attachment": {"plan": {"device-type": "\u0000"}}}]}`,
		`{"results": [{"volume-id": "a", "tags": {"stowage-storage-uuid": "u", "\u0007": ""}, "attached": true}]}`,
		`{"results": [{"volume-id": "a", "machine": "machine-0"}, {"volume-id": "b", "machine": "\u0007"}, {"attached": true}], "machines-known": true}`,
		`{"results": null, "odd": 1}`, `{"results": []} {}`, `[]`, `null`, ``, `{"results": [null]}`, `{"results": [{"size-mib": -1}]}`,
	} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		shown := func(what, text string, most int) {
			t.Helper()
			if len(text) > most || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s %q does not fit on a line", what, text)
			}
		}
		got, err := decode(answer)
		if err != nil {
			shown("error", err.Error(), len(answer)+1024)
			return
		}
		for _, r := range got.Results {
			if err := r.Error.err(); err != nil {
				shown("error", err.Error(), 2048)
			}
			if info, err := r.info(); err != nil {
				shown("error", err.Error(), 1024)
			} else {
				shown("volume-id", info.VolumeId, maxID)
				shown("hardware-id", info.HardwareId, maxID)
				shown("wwn", info.WWN, maxID)
				if info.VolumeId == "" {
					t.Error("a volume without an ID is accepted")
				}
			}
			if object, err := r.owned(); err != nil {
				shown("error", err.Error(), 1024)
			} else {
				shown("volume-id", object.ID, maxID)
				if holder, err := r.holder(); err != nil {
					shown("error", err.Error(), 1024)
				} else if holder != nil {
					shown("machine", holder.Machine.String(), maxID)
				}
				for name, value := range object.ResourceTags {
					shown("tag", name, maxID)
					shown("value", value, maxTag)
				}
			}
			p := storage.VolumeParams{Tag: names.NewVolumeTag("0"), Size: 1024, Attachment: &storage.VolumeAttachmentParams{}}
			if volume, _, err := (&source{name: "disks"}).created(p, r); err == nil && (volume.Size < p.Size || r.Error != nil) {
				t.Errorf("%+v is accepted as a volume of %d MiB", r, p.Size)
			}
			attached, err := r.attached("disks", p.Tag, names.NewMachineTag("0"))
			if err != nil {
				shown("error", err.Error(), 2048)
				continue
			}
			shown("device-name", attached.DeviceName, maxID)
			shown("device-link", attached.DeviceLink, maxID)
			shown("bus-address", attached.BusAddress, maxID)
			if name := attached.DeviceName; name != "" && path.Clean("/dev/"+name) != "/dev/"+name {
				t.Errorf("device-name %q is not under /dev", name)
			}
			if link := attached.DeviceLink; link != "" && path.Clean(link) != link {
				t.Errorf("device-link %q is not a clean path", link)
			}
			if plan := attached.PlanInfo; plan != nil {
				shown("device-type", string(plan.DeviceType), maxID)
			}
		}
	})
}
