package storageprovisioner_test

import (
	"sync"
	"time"

	"github.com/juju/names/v5"
	jc "github.com/juju/testing/checkers"
	gc "gopkg.in/check.v1"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/calls"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// contextSuite has a source that needs contexts to attach its volumes.
type contextSuite struct{ baseSuite }

var _ = gc.Suite(&contextSuite{})

// contexts adds a VolumeContextAccessor to the state. refused is the error of the next SetVolumeContexts.
type contexts struct {
	storageprovisioner.VolumeAccessor
	suite *contextSuite

	mu      sync.Mutex
	kept    map[string]map[string]string
	refused *params.Error
}

func (a *contexts) SetVolumeContexts(all []params.VolumeContext) ([]params.ErrorResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	results := make([]params.ErrorResult, len(all))
	for i, v := range all {
		a.suite.RecordBegin("SetVolumeContexts", v.Context, v.VolumeTag)()
		if results[i].Error = a.refused; a.refused == nil {
			a.kept[v.VolumeTag] = v.Context
		}
	}
	a.refused = nil
	return results, nil
}

func (a *contexts) VolumeContexts(tags []names.VolumeTag) ([]params.VolumeContextResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	results := make([]params.VolumeContextResult, len(tags))
	for i, tag := range tags {
		results[i].Result = params.VolumeContext{VolumeTag: tag.String(), Context: a.kept[tag.String()]}
	}
	return results, nil
}

// contextual is a source that gives each volume a context.
type contextual struct {
	*providerfake.Provider
	suite *contextSuite
}

func (p contextual) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	_, err := p.Provider.VolumeSource(config)
	return p, err
}

func (p contextual) VolumeContext(id string) map[string]string { return map[string]string{"of": id} }

func (p contextual) AttachVolumesIn(
	ctx envcontext.ProviderCallContext, all []storage.VolumeAttachmentParams, contexts []map[string]string,
) ([]storage.AttachVolumesResult, error) {
	for i, a := range all {
		defer p.suite.RecordBegin("AttachVolumesIn", contexts[i], a.Volume.String())()
	}
	return p.AttachVolumes(ctx, all)
}

func (s *contextSuite) contextual(c *gc.C, machine bool) (storageprovisioner.Config, *contexts) {
	cfg := s.config(c, machine)
	s.providers["dynamic"] = contextual{s.source, s}
	a := &contexts{VolumeAccessor: cfg.Volumes, suite: s, kept: map[string]map[string]string{}}
	cfg.Volumes = a
	return cfg, a
}

// The context of a volume is recorded before the volume, again if the state refuses it, and the volume is
// attached in it.
func (s *contextSuite) TestContextIsRecordedFirst(c *gc.C) {
	cfg, a := s.contextual(c, false)
	a.refused = &params.Error{Message: "not now"}
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0", "dynamic")
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetVolumeContexts", "volume-0")
	c.Check(s.Count("SetVolumeInfo"), gc.Equals, 0)
	s.advance(c, 30*time.Second)
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(s.Count("SetVolumeContexts"), gc.Equals, 2)
	c.Check(s.Count("CreateVolumes"), gc.Equals, 1)
	got := calls.NextArgs[map[string]string](c, s.Journal, "AttachVolumesIn")
	c.Check(got, jc.DeepEquals, map[string]string{"of": "vol-0"})
}

// A worker that starts later attaches a volume in the context that was recorded.
func (s *contextSuite) TestContextIsRead(c *gc.C) {
	cfg, a := s.contextual(c, false)
	a.kept["volume-0"] = map[string]string{"kept": "yes"}
	s.addMachine("0", "instance-0")
	tag, _ := s.addVolumeOn("machine-0", "0", "dynamic")
	s.provisionVolume(tag)
	s.start(c, cfg)
	s.volumesChanged(c, "0")
	s.volumeAttachmentsChanged(c, "machine-0", "0")
	s.AwaitCall(c, "SetVolumeAttachmentInfo", "volume-0 machine-0")
	c.Check(calls.NextArgs[map[string]string](c, s.Journal, "AttachVolumesIn"), jc.DeepEquals, map[string]string{"kept": "yes"})
	c.Check(s.Count("SetVolumeContexts"), gc.Equals, 0)
}

// A source that needs contexts is not used by the worker of a machine.
func (s *contextSuite) TestContextsNeedTheEnvironment(c *gc.C) {
	cfg, _ := s.contextual(c, true)
	s.addMachine("0", "instance-0")
	s.start(c, cfg)
	s.addVolumeOn("machine-0", "0/0", "dynamic")
	s.volumesChanged(c, "0/0")
	s.AwaitCall(c, "SetStatus", "volume-0-0")
	c.Check(s.Count("CreateVolumes"), gc.Equals, 0)
	c.Check(s.statuses(c), jc.DeepEquals, []string{
		`volume-0-0 error: volume source "dynamic" needs a state that keeps the contexts of volumes, and the worker of the environment`,
	})
}
