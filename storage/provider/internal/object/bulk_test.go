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

// ender is a begun call that records its end.
type ender struct{ ended *bool }

func (e ender) End() { *e.ended = true }

func TestDo(t *testing.T) {
	doubling := Bulk[int]{
		Verb: "doubling", Objects: "numbers",
		Name: func(n int) string { return fmt.Sprintf("number %d", n) },
		Key:  func(n int) string { return fmt.Sprint(n) },
	}
	ended := false
	begin := func(context.Context) (ender, error) { return ender{&ended}, nil }
	double := func(_ ender, n int) (int, error) {
		if ended {
			t.Errorf("%d is carried out after the end of the call", n)
		}
		if n < 0 {
			return 0, errors.New("it is negative")
		}
		return 2 * n, nil
	}
	show := func(n, doubled int, err error) string { return fmt.Sprintf("%d: %d, %v", n, doubled, err) }
	got, err := Do(t.Context(), doubling, begin, []int{3, -1, 2}, double, show)
	want := []string{"3: 6, <nil>", "-1: 0, doubling number -1: it is negative", "2: 4, <nil>"}
	if err != nil || !slices.Equal(got, want) || !ended {
		t.Errorf("got %q, %v, ended %t, want %q", got, err, ended, want)
	}

	begin = func(context.Context) (ender, error) { return ender{}, errors.New("the disk is gone") }
	if got, err := Do(t.Context(), doubling, begin, []int{3}, double, show); err == nil || err.Error() != "doubling numbers: the disk is gone" {
		t.Errorf("got %q, %v", got, err)
	}
}
