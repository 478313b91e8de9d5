package envcontext_test

import (
	"context"
	"testing"

	"github.com/stowage-io/stowage/environs/envcontext"
)

func TestNewIsCancelledWithItsParent(t *testing.T) {
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "value"))
	ctx := envcontext.New(parent)
	if ctx.Err() != nil || ctx.Value(key{}) != "value" {
		t.Errorf("got error %v, value %v", ctx.Err(), ctx.Value(key{}))
	}
	if err := ctx.InvalidateCredential("expired"); err != nil {
		t.Errorf("invalidating: %v", err)
	}
	cancel()
	<-ctx.Done()
	if ctx.Err() != context.Canceled {
		t.Errorf("got error %v", ctx.Err())
	}
}
