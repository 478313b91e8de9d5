//go:build linux

package object

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"
)

// TestCollectAtOnce checks that the items of one object are processed one after another
// in their order, that items of other objects do not wait for them, and that results have
// the order of the items.
func TestCollectAtOnce(t *testing.T) {
	items := []string{"a1", "b1", "a2", "a3", "c1"}
	othersDone := make(chan struct{})
	var others sync.WaitGroup
	others.Add(2)
	go func() {
		others.Wait()
		close(othersDone)
	}()
	var mu sync.Mutex
	var order []string
	results, failures := CollectAtOnce(context.Background(), items, func(s string) string { return s[:1] },
		func(s string) (string, error) {
			if s[0] == 'a' {
				<-othersDone
				mu.Lock()
				order = append(order, s)
				mu.Unlock()
			} else {
				others.Done()
			}
			if s == "a2" {
				return "", errors.New("boom")
			}
			return strings.ToUpper(s), nil
		})
	if !slices.Equal(order, []string{"a1", "a2", "a3"}) {
		t.Errorf("the items of one object were processed in the order %v", order)
	}
	if want := []string{"A1", "B1", "", "A3", "C1"}; !slices.Equal(results, want) {
		t.Errorf("results %v, want %v", results, want)
	}
	if failures[2] == nil || failures[0] != nil || failures[4] != nil {
		t.Errorf("failures %v", failures)
	}
}

func TestCollectAtOnceStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var items []string
	for i := range 10 * MaxAtOnce {
		items = append(items, fmt.Sprint(i))
	}
	begun := make(chan struct{}, len(items))
	_, failures := CollectAtOnce(ctx, items, ByID, func(string) (struct{}, error) {
		begun <- struct{}{}
		cancel()
		return struct{}{}, nil
	})
	notBegun := 0
	for _, err := range failures {
		if errors.Is(err, context.Canceled) {
			notBegun++
		}
	}
	if len(begun) > MaxAtOnce || notBegun != len(items)-len(begun) {
		t.Errorf("%d begun, %d cancelled of %d items", len(begun), notBegun, len(items))
	}
}
