package backend_test

import (
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/agentapi"
	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/backend"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
)

var _ agentapi.AskedAccessor = (*backend.MachineAsked)(nil)

// session opens a session for the agent of a machine, with the secrets of the former one.
func (s *server) session(machine names.MachineTag, secrets ...string) state.Session {
	s.t.Helper()
	opened, err := s.state.OpenSession(machine, secrets, "boot")
	s.must(err)
	s.must(s.state.ConfirmSession(opened))
	return opened
}

// The agent of a machine uses what was asked for by its way in, on its machine only, and while its session is
// current.
func TestAskedVolumesOfMachine(t *testing.T) {
	s, _ := newServers(t)
	other := names.NewMachineTag("1")
	s.must(s.state.EnsureMachine(other))
	own := mustCreate(s, s.Asked("csi", ""), ask("own", nil))
	s.made(own, 10)
	docker := mustCreate(s, s.Asked("docker", ""), ask("docker", nil))
	here, there := s.session(machine), s.session(other)
	onMachine, elsewhere := s.AskedOn(here, "csi"), s.AskedOn(there, "csi")
	one := func(results []params.ErrorResult, err error) error {
		t.Helper()
		if err != nil {
			return err
		}
		if len(results) != 1 {
			t.Fatalf("%d results", len(results))
		}
		return asked.ParseError(results[0].Error)
	}
	want := func(doing string, err error, is error) {
		t.Helper()
		if is == nil && err != nil || is != nil && !errors.Is(err, is) {
			t.Errorf("%s: got %v, want %v", doing, err, is)
		}
	}
	read := func(m *backend.MachineAsked, id string) (asked.Volume, error) {
		t.Helper()
		results, err := m.AskedVolumes([]string{id})
		if err != nil {
			return asked.Volume{}, err
		}
		return asked.Volume(results[0].Result), asked.ParseError(results[0].Error)
	}

	direct, err := s.Asked("csi", "").Volume(own.ID)
	s.must(err)
	if v, err := read(onMachine, own.ID); err != nil || v != direct {
		t.Errorf("got %+v, %v; want %+v", v, err, direct)
	}
	want("growing before attaching", one(onMachine.ResizeAskedVolumes([]params.AskedVolumeSize{{ID: own.ID, SizeMiB: 20}})), asked.ErrElsewhere)
	want("attaching", one(onMachine.AttachAskedVolumes([]string{own.ID})), nil)
	want("growing", one(onMachine.ResizeAskedVolumes([]params.AskedVolumeSize{{ID: own.ID, SizeMiB: 20}})), nil)
	if v, err := read(onMachine, own.ID); err != nil || v.AttachedTo != "0" || v.WantedMiB != 20 {
		t.Errorf("attached: %+v, %v", v, err)
	}
	for name, id := range map[string]string{"another machine's": own.ID, "another way's": docker.ID, "none": "none"} {
		from := onMachine
		if id == own.ID {
			from = elsewhere
		}
		_, err := read(from, id)
		want("reading "+name, err, errors.NotFound)
		_, err = from.WatchAskedVolume(id)
		want("watching "+name, err, errors.NotFound)
		want("attaching "+name, one(from.AttachAskedVolumes([]string{id})), errors.NotFound)
		want("detaching "+name, one(from.DetachAskedVolumes([]string{id})), errors.NotFound)
		want("growing "+name, one(from.ResizeAskedVolumes([]params.AskedVolumeSize{{ID: id, SizeMiB: 30}})), errors.NotFound)
	}
	s.wantSize("own", 20)

	s.session(machine, here.Secret)
	_, err = read(onMachine, own.ID)
	want("reading in a session that has ended", err, state.ErrSessionEnded)
	_, err = onMachine.WatchAskedVolume(own.ID)
	want("watching in a session that has ended", err, state.ErrSessionEnded)
	want("detaching in a session that has ended", one(onMachine.DetachAskedVolumes([]string{own.ID})), state.ErrSessionEnded)
	if v, err := s.Asked("csi", "").Volume(own.ID); err != nil || v.Detaching {
		t.Errorf("at the end: %+v, %v", v, err)
	}
}

// A volume of the environment that is attached to one machine is neither detached nor grown by another one.
func TestAskedVolumeOfEnvironmentOnMachine(t *testing.T) {
	s := newServer(t, kvtest.NewMemory())
	other := names.NewMachineTag("1")
	s.must(s.state.EnsureMachine(other))
	s.must(s.state.AddStorage(state.StorageParams{
		Asker: state.Asker{Way: "csi", Name: "shared"}, Kind: storage.StorageKindBlock, Pool: "cloud", Size: 10, Detached: true,
	}))
	v, err := s.Asked("csi", "").Named("shared")
	s.must(err)
	s.must(s.Asked("csi", "").Attach(t.Context(), v.ID, "0"))
	elsewhere := s.AskedOn(s.session(other), "csi")
	results, err := elsewhere.AskedVolumes([]string{v.ID})
	s.must(err)
	if got := results[0]; got.Error != nil || got.Result.AttachedTo != "0" {
		t.Errorf("another machine reads %+v", got)
	}
	for doing, call := range map[string]func() ([]params.ErrorResult, error){
		"detaching": func() ([]params.ErrorResult, error) { return elsewhere.DetachAskedVolumes([]string{v.ID}) },
		"growing": func() ([]params.ErrorResult, error) {
			return elsewhere.ResizeAskedVolumes([]params.AskedVolumeSize{{ID: v.ID, SizeMiB: 30}})
		},
	} {
		results, err := call()
		s.must(err)
		if err := asked.ParseError(results[0].Error); !errors.Is(err, asked.ErrElsewhere) {
			t.Errorf("%s: %v", doing, err)
		}
	}
	results2, err := elsewhere.AttachAskedVolumes([]string{v.ID})
	s.must(err)
	if results2[0].Error == nil {
		t.Error("it was attached to two machines")
	}
}
