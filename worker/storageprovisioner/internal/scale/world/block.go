package world

import (
	"context"
	"time"
)

// Block is a call that hangs: the next one that creates volumes by some provider.
type Block struct {
	entered, lifted chan struct{}
	left            time.Time
}

// Block has the next call that creates volumes by a provider hang until the block is
// lifted, or the call's context is done.
func (w *World) Block(provider int) *Block {
	b := &Block{entered: make(chan struct{}), lifted: make(chan struct{})}
	w.Volumes.sources[provider].block.Store(b)
	return b
}

// Entered is closed when the call hangs.
func (b *Block) Entered() <-chan struct{} { return b.entered }

// Lift lets the call go on. It is called once at most.
func (b *Block) Lift() { close(b.lifted) }

// Left returns when the call returned because its context was done. The worker must
// have ended.
func (b *Block) Left() time.Time { return b.left }

// pass hangs while there is a block.
func (b *Block) pass(ctx context.Context) error {
	if b == nil {
		return nil
	}
	close(b.entered)
	select {
	case <-b.lifted:
		return nil
	case <-ctx.Done():
		b.left = time.Now()
		return ctx.Err()
	}
}
