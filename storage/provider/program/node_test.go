package program_test

import (
	"context"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/program"
)

// nodes is an orchestrator that counts the questions about machines.
type nodes struct {
	storage.Orchestrator
	known map[names.MachineTag]storage.Node
	asked int
}

func (n *nodes) NodeOf(_ context.Context, machine names.MachineTag) (storage.Node, error) {
	n.asked++
	if node, ok := n.known[machine]; ok {
		return node, nil
	}
	return storage.Node{}, errors.NotFoundf("machine %s", machine.Id())
}

func (s *script) placedSource(orchestrator storage.OrchestratorSupplier) storage.VolumeSource {
	s.Helper()
	p, err := program.Open(program.Config{Name: "disks", Path: s.path, Orchestrator: orchestrator})
	if err != nil {
		s.Fatal(err)
	}
	config, err := storage.NewConfig("disks", "disks", nil)
	if err != nil {
		s.Fatal(err)
	}
	source, err := p.VolumeSource(config)
	if err != nil {
		s.Fatal(err)
	}
	return source
}

// A program that makes or attaches volumes is told the names and labels of the machines, as far as they
// are known.
func TestRequestsHaveNodes(t *testing.T) {
	orchestrator := &nodes{known: map[names.MachineTag]storage.Node{machine: {Name: "web", Labels: map[string]string{"zone": "east"}}}}
	late := &storage.LateOrchestrator{}
	late.Set(orchestrator)
	s := newRecorder(t)
	source := s.placedSource(late)

	elsewhere := volume0Params
	elsewhere.Machine = names.NewMachineTag("7")
	s.answer("create-volumes", `{"results": [{"volume-id": "a"}, {"volume-id": "b"}, {"volume-id": "c"}, {"volume-id": "d"}]}`)
	_, err := source.CreateVolumes(callContext(t), []storage.VolumeParams{
		{Tag: volume0, Size: 10, Attachment: &volume0Params},
		{Tag: volume1, Size: 10, Attachment: &volume0Params},
		{Tag: names.NewVolumeTag("2"), Size: 10, Attachment: &elsewhere},
		{Tag: names.NewVolumeTag("3"), Size: 10},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wantRequest("create-volumes", `{"arguments": [
		{"volume": "volume-0", "size-mib": 10, "machine": "machine-0", "instance-id": "i-0", "node": {"name": "web", "labels": {"zone": "east"}}},
		{"volume": "volume-1", "size-mib": 10, "machine": "machine-0", "instance-id": "i-0", "node": {"name": "web", "labels": {"zone": "east"}}},
		{"volume": "volume-2", "size-mib": 10, "machine": "machine-7", "instance-id": "i-0"},
		{"volume": "volume-3", "size-mib": 10}]}`)
	if orchestrator.asked != 2 {
		t.Errorf("the orchestrator was asked %d times for 2 machines", orchestrator.asked)
	}
	s.answer("attach-volumes", `{"results": [{"attachment": {"device-name": "sdx"}}]}`)
	if _, err := source.AttachVolumes(callContext(t), []storage.VolumeAttachmentParams{volume0Params}); err != nil {
		t.Fatal(err)
	}
	s.wantRequest("attach-volumes", `{"arguments": [
		{"volume": "volume-0", "volume-id": "a", "machine": "machine-0", "instance-id": "i-0", "node": {"name": "web", "labels": {"zone": "east"}}}]}`)
}

// Without its orchestrator, a program is not run: it could make volumes in the wrong place.
func TestOrchestratorNotAvailable(t *testing.T) {
	s := newScript(t, `echo it ran >&2; exit 1`)
	_, err := s.placedSource(&storage.LateOrchestrator{}).CreateVolumes(callContext(t), []storage.VolumeParams{{Tag: volume0, Size: 10, Attachment: &volume0Params}})
	if !errors.Is(err, errors.NotYetAvailable) || !strings.Contains(err.Error(), "create-volumes") {
		t.Errorf("got %v", err)
	}
}
