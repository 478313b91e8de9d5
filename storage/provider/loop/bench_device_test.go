//go:build linux

package loop

import (
	"context"
	"fmt"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// BenchmarkAttach attaches many volumes in one call. The cost per volume must not grow
// with their number.
func BenchmarkAttach(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			config, err := storage.NewConfig("loop", ProviderType, storage.Attrs{storage.ConfigStorageDir: devicetest.Dir(b)})
			if err != nil {
				b.Fatal(err)
			}
			source, err := NewProvider(Options{}).VolumeSource(config)
			if err != nil {
				b.Fatal(err)
			}
			ctx := envcontext.New(context.Background())
			volumes := make([]storage.VolumeParams, n)
			attachments := make([]storage.VolumeAttachmentParams, n)
			ids := make([]string, n)
			for i := range n {
				tag := sourcetest.Volume(i)
				volumes[i] = storage.VolumeParams{Tag: tag, Size: 1, Provider: ProviderType}
				attachments[i] = storage.VolumeAttachmentParams{
					AttachmentParams: storage.AttachmentParams{Provider: ProviderType, Machine: names.NewMachineTag("0")},
					Volume:           tag,
					VolumeId:         tag.String(),
				}
				ids[i] = tag.String()
			}
			created, err := source.CreateVolumes(ctx, volumes)
			checkEach(b, err, created, func(r storage.CreateVolumesResult) error { return r.Error })
			attach := func() {
				attached, err := source.AttachVolumes(ctx, attachments)
				checkEach(b, err, attached, func(r storage.AttachVolumesResult) error { return r.Error })
			}
			detach := func() {
				detached, err := source.DetachVolumes(ctx, attachments)
				checkEach(b, err, detached, func(err error) error { return err })
			}
			// The kernel creates the missing devices.
			attach()
			detach()
			for b.Loop() {
				attach()
				b.StopTimer()
				detach()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/volume")
			destroyed, err := source.DestroyVolumes(ctx, ids)
			checkEach(b, err, destroyed, func(err error) error { return err })
		})
	}
}

// checkEach fails at the first error of a bulk call.
func checkEach[R any](t testing.TB, err error, results []R, failure func(R) error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if err := failure(r); err != nil {
			t.Fatal(err)
		}
	}
}
