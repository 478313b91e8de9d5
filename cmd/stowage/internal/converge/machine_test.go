package converge_test

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/core/life"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

var web1, web2 = names.NewMachineTag("1"), names.NewMachineTag("2")

// cluster returns a situation with the machines 0, web-1 and web-2.
func cluster(existing ...state.Storage) converge.Situation {
	s := situation(existing...)
	s.Manager = true
	s.Machines = []state.Machine{{Tag: machine, Name: "0"}, {Tag: web1, Name: "web-1"}, {Tag: web2, Name: "web-2"}}
	return s
}

// server returns a situation without a machine for entries that name none.
func server(existing ...state.Storage) converge.Situation {
	s := cluster(existing...)
	s.Machine, s.Reserved, s.Space = names.MachineTag{}, nil, nil
	s.Snapshot = func(name string) (state.Snapshot, error) {
		machine, ok := map[string]names.MachineTag{"monday": web2, "shared": {}}[name]
		if !ok {
			return state.Snapshot{}, errors.NotFoundf("snapshot %q", name)
		}
		return state.Snapshot{Name: name, Machine: machine}, nil
	}
	return s
}

// spacious is server with connected machines, which have as much space for loop volumes in MiB.
func spacious(first, second uint64) converge.Situation {
	s := server()
	for i := range s.Machines {
		s.Machines[i].Presence.Connected = true
	}
	s.Machines[0].Drained = true
	s.Space = map[names.MachineTag]map[storage.ProviderType]converge.Space{
		web1: {"loop": {FreeMiB: first, Reserved: true, Thin: provider.LoopIsThin}},
		web2: {"loop": {FreeMiB: second, Reserved: true, Thin: provider.LoopIsThin}},
	}
	return s
}

// on returns an entry of data for a machine.
func on(machine string) string { return dataEntry + "    machine: " + machine + "\n" }

// more returns an entry of other storage with a directive, for a machine.
func more(directive, mount, machine string) string {
	return fmt.Sprintf("  - {name: more, directive: '%s', kind: filesystem, mount: %s, machine: %s}\n", directive, mount, machine)
}

// bound returns the storage of dataEntry on a machine that it cannot leave.
func bound(machine names.MachineTag, change func(*state.Storage)) state.Storage {
	return data(func(e *state.Storage) {
		e.Volume = &state.Entity{Tag: names.NewVolumeTag(machine.Id() + "/0"), Scope: storage.ScopeMachine}
		e.Filesystem = &state.Entity{Tag: names.NewFilesystemTag(machine.Id() + "/1"), Scope: storage.ScopeMachine}
		e.Attachments[0].Machine = machine
		if change != nil {
			change(e)
		}
	})
}

// share returns the storage of dataEntry as a filesystem of the environment on a machine.
func share(machine names.MachineTag, change func(*state.Storage)) state.Storage {
	return data(func(e *state.Storage) {
		e.Filesystem = &state.Entity{Tag: names.NewFilesystemTag("0"), Scope: storage.ScopeEnviron}
		e.Attachments[0].Machine = machine
		if change != nil {
			change(e)
		}
	})
}

func detach(e *state.Storage) { e.Attachments, e.Status = nil, status.Detached }

func rename(e *state.Storage) { e.Name = "other" }

func TestMakePlacesStorageOnItsMachine(t *testing.T) {
	// Space limits nothing if there is no machine that it is about.
	roomy := server(share(web1, detach))
	roomy.Space = cluster().Space
	for _, test := range []struct {
		about, text string
		situation   converge.Situation
		// added are the machines of new storage, attached those of storage that is attached.
		added, attached map[string]names.MachineTag
	}{
		{"no machine", dataEntry, cluster(), map[string]names.MachineTag{"data": machine}, nil},
		{"by name", on("web-1"), cluster(), map[string]names.MachineTag{"data": web1}, nil},
		{"by number", on("1"), cluster(), map[string]names.MachineTag{"data": web1}, nil},
		{"without a name", on("0"), cluster(), map[string]names.MachineTag{"data": machine}, nil},
		{"on a server", on("web-1"), server(), map[string]names.MachineTag{"data": web1}, nil},
		{"on several machines", on("web-1") + more("loop,1G,2", "/srv/more", "web-2"), server(),
			map[string]names.MachineTag{"data": web1, "more/0": web2, "more/1": web2}, nil},

		{"attached there", on("web-1"), cluster(bound(web1, nil)), nil, nil},
		{"attached to another and no machine", dataEntry, cluster(bound(web1, nil)), nil, nil},
		{"share that is attached to another and no machine", dataEntry, cluster(share(web1, nil)), nil, nil},
		{"detached", on("web-1"), cluster(bound(web1, detach)), nil, map[string]names.MachineTag{"data": web1}},
		{"detached and no machine", dataEntry, cluster(bound(machine, detach)), nil, map[string]names.MachineTag{"data": machine}},
		{"detached share", on("web-2"), cluster(share(web1, detach)), nil, map[string]names.MachineTag{"data": web2}},
		{"detached share and no machine", dataEntry, cluster(share(web1, detach)), nil, map[string]names.MachineTag{"data": machine}},

		{"mount point on another machine", on("web-2"), cluster(bound(web1, rename)), map[string]names.MachineTag{"data": web2}, nil},
		{"mount point of a share on another machine", on("web-2"), cluster(share(web1, rename)), map[string]names.MachineTag{"data": web2}, nil},
		{"mount point of detached storage of another machine", on("web-2"),
			cluster(bound(web1, func(e *state.Storage) { rename(e); detach(e) })), map[string]names.MachineTag{"data": web2}, nil},
		{"same mount point on two machines", dataEntry + more("loop,1G", "/srv/data", "web-1"), cluster(),
			map[string]names.MachineTag{"data": machine, "more": web1}, nil},
		{"detached shares with the same mount point", on("web-1") + more("loop,1G", "/srv/data", "web-2"),
			cluster(share(web1, detach), share(web2, func(e *state.Storage) {
				e.Name, e.RequestedMiB, e.SizeMiB = "more", 1024, 1024
				detach(e)
			})), nil, map[string]names.MachineTag{"data": web1, "more": web2}},
		{"in the directory of the agent of another machine", strings.Replace(on("web-1"), "/srv/data", "/var/lib/stowage/x", 1), cluster(),
			map[string]names.MachineTag{"data": web1}, nil},
		{"more than this machine has room for", strings.Replace(on("web-1"), "2G", "20G", 1) + more("loop,10G", "/srv/more", "0"), cluster(),
			map[string]names.MachineTag{"data": web1, "more": machine}, nil},
		{"growth beyond the room on this machine", strings.Replace(on("web-1"), "2G", "20G", 1) + more("loop,10G", "/srv/more", "0"), cluster(bound(web1, nil)),
			map[string]names.MachineTag{"more": machine}, nil},
		{"any machine with room", strings.Replace(on("any"), "2G", "8G", 1) + more("loop,4G,2", "/srv/more", "any"), spacious(4<<10, 16<<10),
			map[string]names.MachineTag{"data": web2, "more/0": web1, "more/1": web2}, nil},
		{"any machine for a thin volume", strings.Replace(on("any"), "loop", "thin", 1), spacious(1, 1), map[string]names.MachineTag{"data": web1}, nil},
		{"more than a machine of unknown room has", strings.Replace(on("web-1"), "2G", "20G", 1), server(), map[string]names.MachineTag{"data": web1}, nil},
		{"from a snapshot, on any machine", on("any") + "    from: monday\n", spacious(8<<10, 4<<10), map[string]names.MachineTag{"data": web2}, nil},
		{"from a snapshot, on a server", dataEntry + "    from: monday\n", server(), map[string]names.MachineTag{"data": web2}, nil},
		{"from a snapshot that is gone, chosen before", on("any") + "    from: gone\n", server(bound(web1, func(e *state.Storage) {
			e.From.Snapshot = "gone"
			detach(e)
		})), nil, map[string]names.MachineTag{"data": web1}},
		{"growth of a detached share", strings.Replace(on("web-1"), "2G", "20G", 1), roomy, nil,
			map[string]names.MachineTag{"data": web1}},
	} {
		t.Run(test.about, func(t *testing.T) {
			plan, err := converge.Make(file(t, "storage:"+test.text), test.situation)
			if err != nil {
				t.Fatal(err)
			}
			added, attached := map[string]names.MachineTag{}, map[string]names.MachineTag{}
			for _, a := range plan.State.Add {
				added[a.Name] = a.Machine
			}
			for _, a := range plan.State.Attach {
				attached[a.Name] = a.Machine
			}
			if len(added)+len(test.added) > 0 && !reflect.DeepEqual(added, test.added) {
				t.Errorf("added to %v, want %v", added, test.added)
			}
			if len(attached)+len(test.attached) > 0 && !reflect.DeepEqual(attached, test.attached) {
				t.Errorf("attached to %v, want %v", attached, test.attached)
			}
		})
	}
}

func TestMakeDescribesMachine(t *testing.T) {
	plan, err := converge.Make(file(t, "storage:"+on("web-1")), cluster())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := lines(plan), []string{"add storage data: filesystem, pool loop, 2G, on /srv/data, machine web-1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestMakeRefusesMachine(t *testing.T) {
	crowd := server()
	for i := range 22 {
		crowd.Machines = append(crowd.Machines, state.Machine{Tag: names.NewMachineTag(strconv.Itoa(i + 3)), Name: fmt.Sprintf("x%d", i)})
	}
	nobody := server()
	nobody.Machines = nil
	onVolume := func(e *state.Storage) {
		e.Volume = &state.Entity{Tag: names.NewVolumeTag("0"), Scope: storage.ScopeEnviron}
	}
	for _, test := range []struct {
		about, text string
		situation   converge.Situation
		want        string
	}{
		{"unknown name", on("web-3"), cluster(), `f.yaml:6: storage data: machine: "web-3" is not known: the machines are 0, web-1, web-2`},
		{"unknown number", on("3"), cluster(), `f.yaml:6: storage data: machine: "3" is not known: the machines are 0, web-1, web-2`},
		{"unknown among many", on("web-3"), crowd, `f.yaml:6: storage data: machine: "web-3" is not known: the machines are 0, web-1, web-2, ` +
			"x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15, x16 and 5 more"},
		{"no machines", on("web-1"), nobody, `f.yaml:6: storage data: machine: "web-1" is not known: there are no machines yet`},
		{"no machine on a server", dataEntry, server(), "f.yaml:2: storage data: machine: missing: name a machine: the machines are 0, web-1, web-2"},
		{"no machine for existing storage", dataEntry, server(bound(web1, nil)), "f.yaml:2: storage data: machine: missing: name a machine: the machines are 0, web-1, web-2"},

		{"from an unknown snapshot", on("any") + "    from: friday\n", server(),
			`f.yaml:7: storage data: from: snapshot "friday" not found: ` + "`stowage snapshot list` lists all"},
		{"from a snapshot of the environment", dataEntry + "    from: shared\n", server(), "f.yaml:2: storage data: machine: missing: name a machine: the machines are 0, web-1, web-2"},
		{"not from the snapshot", on("any") + "    from: monday\n", server(bound(web1, nil)),
			"f.yaml:7: storage data: from: data exists, and was not made from snapshot monday: remove it first with `stowage remove data`, and apply again"},

		{"bound to another", on("web-2"), cluster(bound(web1, nil)),
			"f.yaml:6: storage data: machine: data is bound to machine web-1, and cannot move to machine web-2: write `machine: web-1`, or remove it first with `stowage remove data`"},
		{"bound to this machine", on("web-2"), cluster(bound(machine, nil)),
			"f.yaml:6: storage data: machine: data is bound to machine 0, and cannot move to machine web-2: write `machine: 0`, or remove it first with `stowage remove data`"},
		{"bound and detached", on("2"), cluster(bound(web1, detach)),
			"f.yaml:6: storage data: machine: data is bound to machine web-1, and cannot move to machine web-2: write `machine: web-1`, or remove it first with `stowage remove data`"},
		{"bound and being detached", on("web-2"), cluster(bound(web1, func(e *state.Storage) { e.Attachments[0].Life = life.Dying })),
			"f.yaml:6: storage data: machine: data is bound to machine web-1, and cannot move to machine web-2: write `machine: web-1`, or remove it first with `stowage remove data`"},
		{"bound, detached and no machine", dataEntry, cluster(bound(web1, detach)),
			"f.yaml:2: storage data: machine: data is bound to machine web-1, and cannot move to machine 0: write `machine: web-1`, or remove it first with `stowage remove data`"},
		{"bound by its volume", on("web-2"), cluster(bound(web1, func(e *state.Storage) { e.Filesystem = nil })),
			"f.yaml:6: storage data: machine: data is bound to machine web-1, and cannot move to machine web-2: write `machine: web-1`, or remove it first with `stowage remove data`"},
		{"bound by its filesystem", on("web-2"), cluster(bound(web1, onVolume)),
			"f.yaml:6: storage data: machine: data is bound to machine web-1, and cannot move to machine web-2: write `machine: web-1`, or remove it first with `stowage remove data`"},
		{"attached to another", on("web-2"), cluster(share(web1, nil)),
			"f.yaml:6: storage data: machine: data is attached to machine web-1: detach it first with `stowage detach --wait data`, then apply again"},
		{"being detached from another", on("web-2"), cluster(share(web1, func(e *state.Storage) { e.Attachments[0].Life = life.Dying })),
			"f.yaml:2: storage data: name: data is still being detached: wait for it with `stowage detach --wait data`, then apply again"},

		{"same mount point by name and number", on("web-1") + more("loop,1G", "/srv/data", "1"), cluster(),
			`f.yaml:7: storage more: mount: "/srv/data" is already the mount point of data`},
		{"same mount point with and without a machine", dataEntry + more("loop,1G", "/srv/data", "0"), cluster(),
			`f.yaml:6: storage more: mount: "/srv/data" is already the mount point of data`},
		{"existing mount point", on("web-1"), cluster(bound(web1, rename)), `f.yaml:5: storage data: mount: "/srv/data" is already the mount point of other`},
		{"mount point of a share", on("web-1"), cluster(share(web1, rename)), `f.yaml:5: storage data: mount: "/srv/data" is already the mount point of other`},
		{"mount point of detached storage", on("web-1"), cluster(bound(web1, func(e *state.Storage) { rename(e); detach(e) })),
			`f.yaml:5: storage data: mount: "/srv/data" is already the mount point of other`},
		{"mount point of a detached share", on("web-2"), cluster(share(web1, func(e *state.Storage) { rename(e); detach(e) })),
			`f.yaml:5: storage data: mount: "/srv/data" is already the mount point of other`},
		{"mount point that is taken where a share is to be attached", on("web-2"), cluster(share(web1, detach), bound(web2, rename)),
			`f.yaml:5: storage data: mount: "/srv/data" is already the mount point of other`},
		{"two shares with a mount point", on("web-1") + more("loop,2G", "/srv/data", "1"),
			cluster(share(web1, detach), share(web2, func(e *state.Storage) { e.Name = "more"; detach(e) })),
			`f.yaml:7: storage more: mount: "/srv/data" is already the mount point of data`},
		{"share over the agent's directory", strings.Replace(on("0"), "/srv/data", "/var/lib", 1),
			cluster(share(web1, func(e *state.Storage) { e.MountPoint = "/var/lib"; detach(e) })),
			`f.yaml:5: storage data: mount: "/var/lib" would hide, or lie in, /var/lib/stowage, which the agent uses: choose another mount point`},
		{"in the agent's directory", strings.Replace(on("0"), "/srv/data", "/var/lib/stowage/x", 1), cluster(),
			`f.yaml:5: storage data: mount: "/var/lib/stowage/x" would hide, or lie in, /var/lib/stowage, which the agent uses: choose another mount point`},
		{"too large", strings.Replace(on("0"), "2G", "11G", 1), cluster(),
			"f.yaml:3: storage data: directive: it does not fit: data asks for 11G, and provider loop has room for 10G"},
		{"too large for a machine of a server", on("web-1"), spacious(1<<10, 4<<10),
			"f.yaml:3: storage data: directive: it does not fit: data asks for 2G, and provider loop has room for 1G on machine web-1"},
		{"too large for every machine", strings.Replace(on("any"), "2G", "5G", 1), spacious(1<<10, 4<<10),
			"f.yaml:3: storage data: directive: it does not fit: no machine that can be chosen has room for the 5G of data: `stowage machines` shows how much is free"},
		{"too much for every machine together", on("any") + more("loop,2G,2", "/srv/more", "any"), spacious(2<<10, 2<<10),
			"f.yaml:7: storage more: directive: it does not fit: no machine that can be chosen has room for the 2G of more/1: `stowage machines` shows how much is free"},
		{"growth on a machine of a server", strings.Replace(on("web-1"), "2G", "4G", 1), func() converge.Situation {
			s := server(bound(web1, nil))
			s.Space = spacious(1<<10, 0).Space
			return s
		}(), "f.yaml:3: storage data: directive: it does not fit: data asks for 2G more, and provider loop has room for 1G on machine web-1"},
	} {
		t.Run(test.about, func(t *testing.T) {
			plan, err := converge.Make(file(t, "storage:"+test.text), test.situation)
			if err == nil {
				t.Fatalf("planned %+v", plan)
			}
			if err.Error() != test.want || !errors.Is(err, errors.NotValid) {
				t.Errorf("\ngot  %s\nwant %s", err, test.want)
			}
		})
	}
}

// Storage that any machine may have is given to the one with the least storage, of those that are
// connected and have the labels, once.
func TestMakeChoosesMachine(t *testing.T) {
	anywhere := on("any")
	labelled := func(labels string) string { return on("any") + "    machine-labels: " + labels + "\n" }
	up := func(existing ...state.Storage) converge.Situation {
		s := server(existing...)
		for i := range s.Machines {
			m := &s.Machines[i]
			m.Presence.Connected = m.Tag != machine
			m.Labels = map[string]string{"zone": "a", "disk": "d" + m.Tag.Id()}
		}
		return s
	}
	fenced := up()
	for i := range fenced.Machines {
		if m := &fenced.Machines[i]; m.Tag == web1 {
			m.Fenced = time.Unix(1, 0)
		}
	}
	drained := up()
	for i := range drained.Machines {
		m := &drained.Machines[i]
		m.Drained = m.Tag == web1
	}
	// The provider has a CSI driver on these machines. Each of them can have so many volumes.
	driven := func(s converge.Situation, limits map[names.MachineTag]int64) converge.Situation {
		for i := range s.Machines {
			if most, ok := limits[s.Machines[i].Tag]; ok {
				s.Machines[i].Drivers = map[storage.ProviderType]coremachine.Driver{"loop": {NodeID: "node", MaxVolumes: most}}
			}
		}
		return s
	}
	other := func(e *state.Storage) { e.Name = "other"; e.MountPoint = "/srv/other" }
	third := func(e *state.Storage) { e.Name = "third"; e.MountPoint = "/srv/third" }
	for _, test := range []struct {
		about, text     string
		situation       converge.Situation
		added, attached map[string]names.MachineTag
	}{
		{"the first by name", anywhere, up(), map[string]names.MachineTag{"data": web1}, nil},
		{"the one with less storage", anywhere, up(bound(web1, other)), map[string]names.MachineTag{"data": web2}, nil},
		{"spread", strings.Replace(anywhere, "2G", "2G,4", 1), up(bound(web1, other)),
			map[string]names.MachineTag{"data/0": web2, "data/1": web1, "data/2": web2, "data/3": web1}, nil},
		{"not a fenced one", anywhere, fenced, map[string]names.MachineTag{"data": web2}, nil},
		{"not a drained one", anywhere, drained, map[string]names.MachineTag{"data": web2}, nil},
		{"not where the mount point is taken", anywhere, up(bound(web1, func(e *state.Storage) { e.Name = "other" }), bound(web2, other), bound(web2, third)),
			map[string]names.MachineTag{"data": web2}, nil},
		{"not where the file takes the mount point", "\n" + more("loop,1G", "/srv/data/in", "web-1") + strings.TrimPrefix(anywhere, "\n"), up(),
			map[string]names.MachineTag{"more": web1, "data": web2}, nil},
		{"by labels", labelled("zone=a,disk=d" + web2.Id()), up(), map[string]names.MachineTag{"data": web2}, nil},
		{"with the driver", anywhere, driven(up(bound(web2, other)), map[names.MachineTag]int64{web2: 0}), map[string]names.MachineTag{"data": web2}, nil},
		{"not where the driver has all it can have", anywhere, driven(up(bound(web1, other), bound(web2, third), bound(web2, func(e *state.Storage) { e.Name = "fourth"; e.MountPoint = "/srv/fourth" })),
			map[names.MachineTag]int64{web1: 1, web2: 3}), map[string]names.MachineTag{"data": web2}, nil},
		{"as many as the driver can have", strings.Replace(anywhere, "2G", "2G,3", 1), driven(up(), map[names.MachineTag]int64{web1: 1, web2: 2}),
			map[string]names.MachineTag{"data/0": web1, "data/1": web2, "data/2": web2}, nil},
		{"chosen before", anywhere, up(bound(web2, nil)), nil, nil},
		{"chosen before, and detached", anywhere, up(bound(web2, detach)), nil, map[string]names.MachineTag{"data": web2}},
		{"a share that is detached", anywhere, up(share(web2, detach)), nil, map[string]names.MachineTag{"data": web1}},
		{"the only machine", anywhere, cluster(), map[string]names.MachineTag{"data": machine}, nil},
	} {
		plan, err := converge.Make(file(t, "storage:"+test.text), test.situation)
		if err != nil {
			t.Errorf("%s: %v", test.about, err)
			continue
		}
		var added, attached map[string]names.MachineTag
		for _, s := range plan.State.Add {
			if added == nil {
				added = map[string]names.MachineTag{}
			}
			added[s.Name] = s.Machine
		}
		for _, s := range plan.State.Attach {
			if attached == nil {
				attached = map[string]names.MachineTag{}
			}
			attached[s.Name] = s.Machine
		}
		if !reflect.DeepEqual(added, test.added) || !reflect.DeepEqual(attached, test.attached) {
			t.Errorf("%s: added %v, attached %v; want %v, %v", test.about, added, attached, test.added, test.attached)
		}
	}
	everywhere := func(machine names.MachineTag) state.Storage {
		return bound(machine, func(e *state.Storage) { e.Name = "on-" + machine.Id(); e.MountPoint = "/srv" })
	}
	const taken = `f.yaml:5: storage data: mount: "/srv/data" is taken on each machine that can be chosen`
	if _, err := converge.Make(file(t, "storage:"+anywhere), up(everywhere(web1), everywhere(web2))); err == nil || err.Error() != taken {
		t.Errorf("got %v, want %s", err, taken)
	}
	const undriven = `f.yaml:6: storage data: machine: no machine that can be chosen runs the CSI driver of provider loop and can have another of its volumes`
	if _, err := converge.Make(file(t, "storage:"+anywhere), driven(up(bound(web1, other)), map[names.MachineTag]int64{web1: 1})); err == nil || err.Error() != undriven {
		t.Errorf("got %v, want %s", err, undriven)
	}
	for text, want := range map[string]string{
		labelled("zone=b"): "f.yaml:7: storage data: machine-labels: no machine that can be chosen has the labels zone=b: `stowage machines -o yaml` shows those that there are",
		anywhere:           "f.yaml:6: storage data: machine: no machine can be chosen, since none is connected and not drained: the machines are 0, web-1, web-2",
	} {
		if _, err := converge.Make(file(t, "storage:"+text), server()); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
