package backend_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/backend"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
)

// ask is a valid request for a volume.
func ask(name string, change func(*asked.Request)) asked.Request {
	r := asked.Request{Name: name, Pool: "loop", Kind: storage.StorageKindBlock, SizeMiB: 10, LimitMiB: 1000, Machine: "0"}
	if change != nil {
		change(&r)
	}
	return r
}

// mustCreate requests a volume.
func mustCreate(s *server, volumes *backend.Asked, r asked.Request) asked.Volume {
	s.t.Helper()
	v, err := volumes.Create(s.t.Context(), r)
	s.must(err)
	return v
}

// made lets the machine record that it has made a volume.
func (s *server) made(v asked.Volume, size uint64) {
	s.t.Helper()
	found, err := s.state.AskedByUUID("csi", v.ID)
	s.must(err)
	results, err := s.state.ForMachine(machine).SetVolumeInfo([]params.Volume{{
		VolumeTag: found.Volume.Tag.String(), Info: params.VolumeInfo{VolumeId: "id-" + found.Name, Pool: "loop", Size: size},
	}})
	s.must(err)
	if results[0].Error != nil {
		s.t.Fatal(results[0].Error)
	}
}

// What a program asks for is known by its own name and by an ID, also to another server, and to no other
// way in. The name that it has in stowage is its own, if that is possible.
func TestAskedVolumes(t *testing.T) {
	a, b := newServers(t)
	volumes := a.Asked("csi", "")
	one := mustCreate(a, volumes, ask("pvc-1", nil))
	two := mustCreate(a, volumes, ask("PVC 2", func(r *asked.Request) {
		r.Kind, r.Filesystem, r.MountOptions = storage.StorageKindFilesystem, "xfs", "largeio"
	}))
	if one.Storage != "pvc-1" || one.Name != "pvc-1" || one.Machine != "0" || one.Provisioned || !one.IsDetached() || one.WantedMiB != 10 {
		t.Errorf("the first is %+v", one)
	}
	if !strings.HasPrefix(two.Storage, "csi-") || two.Filesystem != "xfs" || two.MountOptions != "largeio" || two.WantedMiB != 300 {
		t.Errorf("the second is %+v; xfs needs 300 MiB", two)
	}
	for _, v := range []asked.Volume{one, two} {
		byID, err := b.Asked("csi", "").Volume(v.ID)
		byName, err2 := b.Asked("csi", "").Named(v.Name)
		if err != nil || err2 != nil || byID != byName || byID.ID != v.ID {
			t.Errorf("%+v, %v; %+v, %v", byID, err, byName, err2)
		}
		if _, err := a.Asked("docker", "").Volume(v.ID); !errors.Is(err, errors.NotFound) {
			t.Errorf("another way in has it: %v", err)
		}
	}
	if ids, err := volumes.IDs(); err != nil || len(ids) != 2 {
		t.Errorf("all are %v, %v", ids, err)
	}
	a.made(one, 12)
	if v, err := volumes.Volume(one.ID); err != nil || !v.Provisioned || v.SizeMiB != 12 {
		t.Errorf("made: %+v, %v", v, err)
	}
}

func TestAskedVolumesThatCannotBeMade(t *testing.T) {
	s, _ := newServers(t)
	volumes := s.Asked("csi", "")
	mustCreate(s, volumes, ask("taken", nil))
	for name, test := range map[string]struct {
		change func(*asked.Request)
		is     error
		says   string
	}{
		"taken":      {func(r *asked.Request) { r.Name = "taken" }, errors.AlreadyExists, `csi taken has asked`},
		"long name":  {func(r *asked.Request) { r.Name = strings.Repeat("a", 129) }, errors.NotValid, "1 to 128 bytes"},
		"pool":       {func(r *asked.Request) { r.Pool = "none" }, errors.NotFound, `pool "none" is not known`},
		"machine":    {func(r *asked.Request) { r.Machine = "web" }, asked.ErrElsewhere, `machine "web" is not known`},
		"no machine": {func(r *asked.Request) { r.Machine = "" }, asked.ErrElsewhere, "no machine can be chosen"},
		"limit": {func(r *asked.Request) { r.Kind, r.Filesystem, r.LimitMiB = storage.StorageKindFilesystem, "xfs", 299 },
			asked.ErrTooSmall, "at least 300 MiB"},
		"filesystem": {func(r *asked.Request) { r.Kind, r.Filesystem = storage.StorageKindFilesystem, "ntfs" }, errors.NotValid, "ext4, xfs, btrfs"},
		"options":    {func(r *asked.Request) { r.Kind, r.MountOptions = storage.StorageKindFilesystem, "barrier=0" }, errors.NotValid, "barrier"},
	} {
		_, err := volumes.Create(t.Context(), ask("new", test.change))
		if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, test.is, test.says)
		}
	}
	if ids, _ := volumes.IDs(); len(ids) != 1 {
		t.Errorf("refused requests have made %v", ids)
	}
}

// A wait goes on until the volume is as wanted, whatever else changes, and ends when it is gone.
func TestAwaitAskedVolume(t *testing.T) {
	s, other := newServers(t)
	volumes := s.Asked("csi", "")
	v := mustCreate(s, volumes, ask("a", nil))
	looked := make(chan bool, 10)
	type result struct {
		v   asked.Volume
		err error
	}
	ended := make(chan result)
	wait := func(ctx context.Context, done asked.Done) {
		v, err := volumes.Await(ctx, v.ID, done)
		ended <- result{v, err}
	}
	go wait(t.Context(), func(v *asked.Volume) (bool, error) {
		looked <- v.Provisioned
		return v.Provisioned, nil
	})
	<-looked
	mustCreate(other, other.Asked("csi", ""), ask("b", nil))
	s.made(v, 10)
	if r := <-ended; r.err != nil || !r.v.Provisioned {
		t.Errorf("made: %+v, %v", r.v, r.err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	forever := func(*asked.Volume) (bool, error) {
		looked <- true
		return false, nil
	}
	go wait(ctx, forever)
	for !<-looked {
	}
	cause := errors.New("the caller has left")
	cancel(cause)
	if r := <-ended; r.err != cause {
		t.Errorf("given up: %v", r.err)
	}

	go wait(t.Context(), forever)
	<-looked
	s.must(volumes.Remove(t.Context(), v.ID))
	found, err := s.state.AskedByUUID("csi", v.ID)
	s.must(err)
	_, err = s.state.ForMachine(machine).Remove([]names.Tag{found.Volume.Tag})
	s.must(err)
	if r := <-ended; !errors.Is(r.err, errors.NotFound) {
		t.Errorf("removed: %+v, %v", r.v, r.err)
	}
	s.Close()
	if _, err := volumes.Await(t.Context(), v.ID, forever); err == nil {
		t.Error("waited for a backend that is closed")
	}
}

// Changes are for the volume that has the ID, and not for another one that has got its name.
func TestAskedVolumesAreChangedByID(t *testing.T) {
	a, b := newServers(t)
	volumes := a.Asked("csi", "")
	v := mustCreate(a, volumes, ask("a", nil))
	a.made(v, 10)
	a.must(volumes.Attach(t.Context(), v.ID, "0"))
	if got, err := volumes.Volume(v.ID); err != nil || got.AttachedTo != "0" || got.IsDetached() || got.IsAttached() {
		t.Errorf("attaching: %+v, %v", got, err)
	}
	a.must(volumes.Resize(t.Context(), v.ID, 20))
	a.wantSize("a", 20)
	wantError(t, volumes.Attach(t.Context(), v.ID, "web"), `machine "web" is not known`)
	a.must(volumes.Detach(t.Context(), v.ID))
	a.store.before = func() {
		b.must(b.Remove(t.Context(), user.RemoveArgs{Names: []string{"a"}, Force: true}))
	}
	a.must(volumes.Remove(t.Context(), v.ID)) // planned again
	if got := a.one("a"); got.Life == life.Alive {
		t.Errorf("removed: %+v", got)
	}
	for name, err := range map[string]error{
		"attach": volumes.Attach(t.Context(), "none", "0"), "detach": volumes.Detach(t.Context(), "none"), "remove": volumes.Remove(t.Context(), "none"),
		"resize": volumes.Resize(t.Context(), "none", 20), "retry": volumes.Retry(t.Context(), "none"),
	} {
		if !errors.Is(err, errors.NotFound) {
			t.Errorf("%s of what is not there: %v", name, err)
		}
	}
}

// Without a size, a volume has the default size of its pool, in the limit. The attribute is the pool's own, and
// is neither the provider's nor the volume's.
func TestDefaultSize(t *testing.T) {
	s, _ := newServers(t)
	s.must(s.AddPool(t.Context(), user.AddPoolArgs{Name: "large", Provider: "loop", Attributes: map[string]any{"default-size": "2.5GiB", "allocation": "thin"}}))
	volumes := s.Asked("csi", "")
	for n, test := range []struct {
		pool               string
		size, limit, wants uint64
	}{
		{"loop", 0, 1 << 20, 1024}, {"large", 0, 1 << 20, 2560}, {"large", 0, 100, 100}, {"large", 10, 1 << 20, 10},
	} {
		v := mustCreate(s, volumes, ask(fmt.Sprint("v", n), func(r *asked.Request) { r.Pool, r.SizeMiB, r.LimitMiB = test.pool, test.size, test.limit }))
		if v.WantedMiB != test.wants {
			t.Errorf("%+v: made %d MiB", test, v.WantedMiB)
		}
		found, err := s.state.AskedByUUID("csi", v.ID)
		s.must(err)
		if _, ok := found.Attributes["default-size"]; ok || (found.Attributes["allocation"] == "thin") != (test.pool == "large") {
			t.Errorf("%+v: its attributes are %v", test, found.Attributes)
		}
	}
	_, err := s.Apply(t.Context(), user.ApplyArgs{File: "f.yaml", Content: "pools: [{name: small, provider: loop, attributes: {default-size: 512M}}]\n" +
		`storage: [{name: a, directive: "small,10M", kind: filesystem, mount: /srv/a, filesystem: ext4, machine: "0"}]`})
	s.must(err)
	_, err = s.Apply(t.Context(), user.ApplyArgs{File: "f.yaml", Content: "pools: [{name: none, provider: loop, attributes: {default-size: 0M}}]"})
	wantError(t, err, `f.yaml:1: pool none: attributes: attribute "default-size": "0M" is not a size: write one such as 512M, 10G, 10Gi or 10GiB, with a unit of M, G, T, P, E, Z or Y`)
	for _, value := range []any{"10", 10, "", "-1G", "0G", "all", "1e3M", "64m", "10G,2", true, nil} {
		err := s.AddPool(t.Context(), user.AddPoolArgs{Name: "bad", Provider: "loop", Attributes: map[string]any{"default-size": value}})
		if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), `storage pool "bad": attribute "default-size": "`) || !strings.Contains(err.Error(), "with a unit of M, G, T") {
			t.Errorf("default-size %v: %v", value, err)
		}
	}
}
