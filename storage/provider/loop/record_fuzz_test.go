//go:build linux

package loop

import (
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// FuzzLoopRecord gives the loop provider a record with arbitrary contents.
func FuzzLoopRecord(f *testing.F) {
	for _, record := range []string{
		`{"size": 4194304, "phase": "ready", "dev": 65024, "ino": 12, "boot-id": "5d1c8b5e-0b6f-4d2f-9b3f-0a4a5c1c2d3e"}`,
		`{"size": 4194304, "phase": "attached", "dev": 65024, "ino": 12, "boot-id": "5d1c8b5e", "device": "loop3", "diskseq": 44, "read-only": true}`,
		`{"size": 4194304, "phase": "creating"}`,
		`{"size": 4194304, "phase": "importing", "imported-from": "OUTSIDE/full/file", "dev": 65024, "ino": 12}`,
		`{"size": 4194304, "growing": 8388608, "phase": "attached", "dev": 65024, "ino": 12}`,
		`{"size": 18446744073709551615, "phase": "destroying", "ino": 18446744073709551615}`,
		`{"phase": "", "size": 0}`, `{}`, `null`, `[]`, `{"size": "4"}`, ``, `{"device": "../../OUTSIDE/full"}`,
	} {
		f.Add([]byte(record))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := sourcetest.NewFuzzedStorage(t, sourcetest.FuzzedVolume, data)
		source, err := newSource(s.Dir)
		if err != nil {
			t.Fatal(err)
		}
		s.File("volumes", sourcetest.FuzzedVolume)
		_, err = source.ListVolumes(s.Ctx)
		s.Check("listing", err)
		s.Check("describing", sourcetest.Result(source.DescribeVolumes(s.Ctx, []string{sourcetest.FuzzedVolume})).Error)
		attachment := []storage.VolumeAttachmentParams{{
			AttachmentParams: storage.AttachmentParams{Machine: names.NewMachineTag("0")},
			Volume:           names.NewVolumeTag("0/1"), VolumeId: sourcetest.FuzzedVolume,
		}}
		s.Check("attaching", sourcetest.Result(source.AttachVolumes(s.Ctx, attachment)).Error)
		s.Check("detaching", sourcetest.Result(source.DetachVolumes(s.Ctx, attachment)))
		s.Check("releasing", sourcetest.Result(source.ReleaseVolumes(s.Ctx, []string{sourcetest.FuzzedVolume})))
		s.Check("destroying", sourcetest.Result(source.DestroyVolumes(s.Ctx, []string{sourcetest.FuzzedVolume})))
	})
}
