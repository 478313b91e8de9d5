package world

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

func TestBlockHoldsNextCreationOfProvider(t *testing.T) {
	w := New(Options{Volumes: 2, Machines: 1, Providers: 2})
	w.Volumes.Appear()
	block := w.Block(1)

	create := func(ctx context.Context, volume string) error {
		params := first((&accessors{w}).VolumeParams([]names.VolumeTag{names.NewVolumeTag(volume)})).Result
		provider := w.providers()[storage.ProviderType(params.Provider)]
		source, err := provider.VolumeSource(nil)
		if err != nil {
			return err
		}
		_, err = source.CreateVolumes(envcontext.New(ctx), []storage.VolumeParams{{Tag: names.NewVolumeTag(volume), Size: size}})
		return err
	}
	if err := create(t.Context(), "0"); err != nil {
		t.Errorf("the other provider: %v", err)
	}
	wantReached(t, block.Entered(), false)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- create(ctx, "1") }()
	<-block.Entered()
	before := time.Now()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || block.CancelledAt().Before(before) {
		t.Errorf("got %v at %v", err, block.CancelledAt())
	}

	block = w.Block(1)
	go func() { ended <- create(t.Context(), "1") }()
	<-block.Entered()
	block.Lift()
	if err := <-ended; err != nil {
		t.Errorf("lifted: %v", err)
	}
	if calls := w.ProviderCalls(); calls != 2 {
		t.Errorf("there have been %d calls, want 2", calls)
	}
	if err := w.Err(); err != nil {
		t.Error(err)
	}
}

func TestAttachedCallbackForVolumesOnly(t *testing.T) {
	var attached []int
	w := New(Options{Volumes: 3, Filesystems: 3, Machines: 1, Recorded: true, Attached: func(number int) { attached = append(attached, number) }})
	w.Volumes.Appear()
	w.Filesystems.Appear()
	w.Volumes.recordAttachment(w.Volumes.AttachmentIDs()[2])
	w.Filesystems.recordAttachment(w.Filesystems.AttachmentIDs()[1])
	if len(attached) != 1 || attached[0] != 2 {
		t.Errorf("attached: %v", attached)
	}
}
