package agent_test

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

func TestPoolsAreAddedUsedAndRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agent")
	a, stop := start(t, config(t, dir, &memory{}))
	ctx := t.Context()
	add := func(name, provider string, replace bool) error {
		return a.AddPool(ctx, user.AddPoolArgs{
			Name: name, Provider: provider, Attributes: map[string]any{"depth": float64(3)}, Replace: replace,
		})
	}
	refused := func(err error, kind error, want string) {
		t.Helper()
		if !errors.Is(err, kind) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := add("fast", "memory", false); err != nil {
		t.Fatal(err)
	}
	refused(add("fast", "memory", false), errors.AlreadyExists,
		`pool "fast" already exists with provider "memory": replace it, or choose another name`)
	refused(add("slow", "memory", true), errors.NotFound, `pool "slow" not found`)
	refused(add("new", "disk", false), errors.NotFound, `pool "new": provider "disk" is not known: the providers are loop, memory, rootfs`)
	refused(a.RemovePools(ctx, []string{"memory"}), errors.NotValid, `pool "memory" is a default pool of provider "memory": it cannot be removed`)
	refused(a.RemovePools(ctx, nil), errors.NotValid, "no pool is named")

	// A file may declare the existing pool. Its storage keeps the pool in use.
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(2, status.Attached))
	refused(a.RemovePools(ctx, []string{"fast"}), errors.NotValid, `pool "fast" is in use: remove its storage first`)
	refused(add("fast", "rootfs", true), errors.NotValid,
		`pool "fast" is in use with provider "memory", which cannot change: make a pool of another name`)

	want := []user.Pool{
		{Name: "fast", Provider: "memory", Attributes: map[string]any{"depth": float64(3)}},
		{Name: "loop", Provider: "loop", Attributes: map[string]any{}, Default: true},
		{Name: "memory", Provider: "memory", Attributes: map[string]any{}, Default: true},
		{Name: "rootfs", Provider: "rootfs", Attributes: map[string]any{}, Default: true},
	}
	for _, when := range []string{"at first", "after a restart"} {
		if got, err := a.Pools(ctx); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: pools %+v, %v; want %+v", when, got, err, want)
		}
		if when == "at first" {
			stop()
			a, _ = start(t, config(t, dir, &memory{}))
		}
	}
	if err := a.Remove(ctx, user.RemoveArgs{Names: []string{"data"}}); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(0, status.Attached))
	if err := a.RemovePools(ctx, []string{"fast"}); err != nil {
		t.Error(err)
	}
	if got, err := a.Pools(ctx); err != nil || !reflect.DeepEqual(got, want[1:]) {
		t.Errorf("after the removal: pools %+v, %v; want %+v", got, err, want[1:])
	}
}
