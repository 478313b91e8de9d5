package converge_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// planClaim plans a claim db for block storage of at least 100 MiB; fields are those of an entry. It
// fails the test unless the claim gets the storage that the changes name.
func planClaim(t *testing.T, s converge.Situation, pool string, selector map[string]string, fields map[string]string) (state.Changes, error) {
	t.Helper()
	all := map[string]string{"kind": "block", "machine": "any", "machine-labels": "", "mount": ""}
	for field, text := range fields {
		all[field] = text
	}
	declared, err := spec.Request("claim db", "db", storage.Directive{Pool: pool, Size: 100, Count: 1}, all)
	if err != nil {
		t.Fatal(err)
	}
	declared.Labels = selector
	return converge.Claim(s, state.Claim{Name: "db", Request: state.ClaimRequest{
		Pool: pool, Selector: selector, Size: 100, Kind: declared.Kind,
	}}, declared)
}

var fast = map[string]string{"tier": "fast"}

// disk returns fast block storage of a machine.
func disk(name string, size uint64, machine names.MachineTag, change func(*state.Storage)) state.Storage {
	return bound(machine, func(e *state.Storage) {
		e.Name, e.Kind, e.SizeMiB, e.RequestedMiB, e.Revision = name, storage.StorageKindBlock, size, size, "r-"+name
		e.MountPoint, e.Filesystem, e.Status, e.Labels = "", nil, status.Attached, map[string]string{"tier": "fast", "zone": "a"}
		if change != nil {
			change(e)
		}
	})
}

// anywhere returns fast block storage that any machine can have, and none has.
func anywhere(name string) state.Storage {
	return disk(name, 100, web1, func(e *state.Storage) {
		e.Pool, e.Provider, e.Volume = "disks", "disks", &state.Entity{Tag: names.NewVolumeTag("7"), Scope: storage.ScopeEnviron}
		detach(e)
	})
}

// up is server with connected machines, web-1 in zone a and web-2 in zone b.
func up(existing ...state.Storage) converge.Situation {
	s := server(existing...)
	for i := range s.Machines {
		m := &s.Machines[i]
		m.Presence.Connected = m.Tag != machine
		m.Labels = map[string]string{"zone": map[string]string{"web-1": "a", "web-2": "b"}[m.Name]}
	}
	return s
}

// A claim gets the smallest storage that its selector selects and that fits, where it may be.
func TestClaimGetsTheSmallestThatFits(t *testing.T) {
	sizes := []state.Storage{disk("large", 300, web1, nil), disk("small", 99, web1, nil), disk("c", 200, web1, nil), disk("b", 200, web2, nil)}
	fenced := up(sizes...)
	fenced.Machines[2].Fenced = time.Unix(1, 0)
	attach := func(name string, machine names.MachineTag) []state.Attach {
		return []state.Attach{{Name: name, Machine: machine}}
	}
	for _, test := range []struct {
		about     string
		situation converge.Situation
		selector  map[string]string
		fields    map[string]string
		want      string
		attach    []state.Attach
	}{
		{"the first by name of two", up(sizes...), fast, nil, "b", nil},
		{"on a machine", up(sizes...), fast, map[string]string{"machine": "web-1"}, "c", nil},
		{"on a machine by number", up(sizes...), fast, map[string]string{"machine": "1"}, "c", nil},
		{"on machines with labels", up(sizes...), fast, map[string]string{"machine-labels": "zone=a"}, "c", nil},
		{"not on a fenced machine", fenced, fast, nil, "c", nil},
		{"by two labels", up(append(sizes, disk("a", 200, web1, func(e *state.Storage) { e.Labels["zone"] = "b" }))...),
			map[string]string{"tier": "fast", "zone": "b"}, nil, "a", nil},
		{"detached, which cannot leave its machine", up(disk("a", 100, web2, detach)), fast, nil, "a", attach("a", web2)},
		{"detached, for a machine that is chosen", up(anywhere("a"), disk("other", 50, web1, nil)), fast, nil, "a", attach("a", web2)},
		{"detached, for a machine with labels", up(anywhere("a"), disk("other", 50, web1, nil)), fast, map[string]string{"machine-labels": "zone=a"}, "a", attach("a", web1)},
		{"detached, for the machine that is named", up(anywhere("a")), fast, map[string]string{"machine": "web-2"}, "a", attach("a", web2)},
		{"detached, of an agent", cluster(anywhere("a")), fast, nil, "a", attach("a", machine)},
	} {
		changes, err := planClaim(t, test.situation, "loop", test.selector, test.fields)
		if err != nil {
			t.Errorf("%s: %v", test.about, err)
			continue
		}
		if len(changes.Claim) != 1 || changes.Claim[0].Storage != test.want || len(changes.Add) > 0 || !reflect.DeepEqual(changes.Attach, test.attach) {
			t.Errorf("%s: %+v, want %s, attached as %v", test.about, changes, test.want, test.attach)
		}
		if want := []state.Revision{{Name: test.want, Revision: "r-" + test.want}}; !reflect.DeepEqual(changes.Revisions, want) {
			t.Errorf("%s: planned from %v, want %v", test.about, changes.Revisions, want)
		}
	}
}

// Storage that does not fit is left alone: the claim gets new storage in its pool, or an error that says
// why.
func TestClaimOfStorageThatDoesNotFit(t *testing.T) {
	for reason, change := range map[string]func(*state.Storage){
		"of another kind":             func(e *state.Storage) { e.Kind = storage.StorageKindFilesystem },
		"retained from another claim": func(e *state.Storage) { e.Claim, e.Retained = "x", true },
		"claimed":                     func(e *state.Storage) { e.Claim = "x" },
		"being removed":               func(e *state.Storage) { e.Life = life.Dying },
		"failed":                      func(e *state.Storage) { e.Status = status.Error },
		"too small":                   func(e *state.Storage) { e.SizeMiB = 99 },
		"being detached":              func(e *state.Storage) { e.Attachments[0].Life = life.Dying },
		"on other machines":           func(e *state.Storage) { e.Attachments[0].Machine = web2 },
	} {
		s := up(disk("a", 100, web1, change))
		fields := map[string]string{"machine": "web-1"}
		_, err := planClaim(t, s, "", fast, fields)
		if want := "claim db: no storage with the labels tier=fast fits (1 " + reason + "): add some, or name a pool to make it in"; err == nil || err.Error() != want || !errors.Is(err, errors.NotFound) {
			t.Errorf("%s:\ngot  %v\nwant %s", reason, err, want)
		}
		changes, err := planClaim(t, s, "loop", fast, fields)
		if err != nil {
			t.Errorf("%s: %v", reason, err)
			continue
		}
		want := []state.StorageParams{{Name: "db", Kind: storage.StorageKindBlock, Pool: "loop", Size: 100, Labels: fast, Machine: web1}}
		if !reflect.DeepEqual(changes.Add, want) || len(changes.Claim) != 1 || changes.Claim[0].Storage != "db" {
			t.Errorf("%s: %+v", reason, changes)
		}
	}
}

// Without a selector, storage is made: nobody has offered that which exists.
func TestClaimWithoutSelectorMakesStorage(t *testing.T) {
	changes, err := planClaim(t, up(disk("a", 100, web1, nil)), "loop", nil, map[string]string{"machine-labels": "zone=b", "kind": "filesystem", "mount": "/srv/db"})
	if err != nil {
		t.Fatal(err)
	}
	want := []state.StorageParams{{Name: "db", Kind: storage.StorageKindFilesystem, Pool: "loop", Size: 100, MountPoint: "/srv/db", Machine: web2}}
	if !reflect.DeepEqual(changes.Add, want) || changes.Claim[0].Storage != "db" || !reflect.DeepEqual(changes.Revisions, []state.Revision{{Name: "db"}}) {
		t.Errorf("%+v", changes)
	}
}

func TestClaimRefusals(t *testing.T) {
	dying := func(e *state.Storage) { e.Life = life.Dying }
	full := spacious(10, 10)
	for _, test := range []struct {
		about     string
		situation converge.Situation
		pool      string
		selector  map[string]string
		fields    map[string]string
		kind      error
		want      string
	}{
		{"no such labels", up(), "", fast, nil, errors.NotFound, "claim db: no storage with the labels tier=fast fits (nothing has them): add some, or name a pool to make it in"},
		{"several reasons", up(disk("a", 1, web1, nil), disk("b", 2, web1, nil), disk("c", 100, web1, dying)), "", fast, nil, errors.NotFound,
			"claim db: no storage with the labels tier=fast fits (1 being removed, 2 too small): add some, or name a pool to make it in"},
		{"unknown pool", up(), "none", nil, nil, errors.NotValid, `claim db: pool "none" is not known: the pools are disks, loop, nothing, old, shares, thin, tmpfs, xfs`},
		{"unknown machine", up(disk("a", 100, web1, nil)), "", fast, map[string]string{"machine": "web-3"}, errors.NotValid,
			`claim db: machine: "web-3" is not known: the machines are 0, web-1, web-2`},
		{"labels that no machine has", up(), "loop", nil, map[string]string{"machine-labels": "zone=c"}, errors.NotValid,
			"claim db: machine-labels: no machine that can be chosen has the labels zone=c: `stowage machines -o yaml` shows those that there are"},
		{"no machine for detached storage", up(anywhere("a")), "", fast, map[string]string{"machine-labels": "zone=c"}, errors.NotValid,
			"claim db: machine: no machine can be chosen for a, since none is connected and not drained, with the labels, and with its mount point free: the machines are 0, web-1, web-2"},
		{"no space", full, "loop", nil, nil, errors.NotValid, "claim db: it does not fit: no machine that can be chosen has room for the 100M of db: `stowage machines` shows how much is free"},
		{"a kind that the pool has not", up(), "tmpfs", nil, nil, errors.NotValid, "claim db: kind: provider tmpfs makes no block devices: write filesystem, or choose another pool"},
		{"the name is taken", up(disk("db", 100, web1, nil)), "loop", nil, nil, errors.AlreadyExists,
			"claim db: there is storage of that name, which new storage for the claim needs: choose another name"},
		{"the name is taken by instances", up(disk("db/3", 100, web1, nil)), "loop", nil, nil, errors.AlreadyExists,
			"claim db: there is storage of that name, which new storage for the claim needs: choose another name"},
		{"the name is still taken", up(disk("db", 100, web1, dying)), "loop", nil, nil, errors.NotYetAvailable,
			"claim db: storage db is still being removed: try again when `stowage status` no longer lists it"},
	} {
		changes, err := planClaim(t, test.situation, test.pool, test.selector, test.fields)
		if err == nil || err.Error() != test.want || !errors.Is(err, test.kind) {
			t.Errorf("%s: %+v\ngot  %v\nwant %s", test.about, changes, err, test.want)
		}
	}
}
