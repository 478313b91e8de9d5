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

// TestCollectAtOnce holds that items of one object go one after another in their
// order, that items of others do not wait for them, and that the results stay with
// their items.
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
		t.Errorf("items of one object went in order %v", order)
	}
	if want := []string{"A1", "B1", "", "A3", "C1"}; !slices.Equal(results, want) {
		t.Errorf("results %v, want %v", results, want)
	}
	if failures[2] == nil || failures[0] != nil || failures[4] != nil {
		t.Errorf("failures %v", failures)
	}
}

func TestCollectAtOnceStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var items []string
	for i := range 10 * MaxAtOnce {
		items = append(items, fmt.Sprint(i))
	}
	begun := make(chan struct{}, len(items))
	_, failures := CollectAtOnce(ctx, items, Itself, func(string) (struct{}, error) {
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
		t.Errorf("%d begun, %d refused of %d", len(begun), notBegun, len(items))
	}
}
