package world

import (
	"context"
	"time"
)

// Block makes one call hang: the next call that creates volumes by a provider.
type Block struct {
	entered, lifted chan struct{}
	cancelledAt     time.Time
}

// Block makes the next call that creates volumes by a provider hang until the block is lifted
// or the call's context is done.
func (w *World) Block(provider int) *Block {
	b := &Block{entered: make(chan struct{}), lifted: make(chan struct{})}
	w.Volumes.sources[provider].block.Store(b)
	return b
}

// Entered returns a channel that is closed when the call hangs.
func (b *Block) Entered() <-chan struct{} { return b.entered }

// Lift lets the call continue. It must be called at most once.
func (b *Block) Lift() { close(b.lifted) }

// CancelledAt returns the time at which the call returned because its context was done. It
// must be called after the worker has ended.
func (b *Block) CancelledAt() time.Time { return b.cancelledAt }

// pass hangs until the block is lifted or ctx is done. A nil block does not hang.
func (b *Block) pass(ctx context.Context) error {
	if b == nil {
		return nil
	}
	close(b.entered)
	select {
	case <-b.lifted:
		return nil
	case <-ctx.Done():
		b.cancelledAt = time.Now()
		return ctx.Err()
	}
}
