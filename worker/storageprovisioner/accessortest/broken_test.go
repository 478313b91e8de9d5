package accessortest

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/testing/modeltest"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/watcher/feed"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// openModel opens a model whose accessors pass through broken, which may be nil.
func openModel(scope names.Tag, broken func(storageprovisioner.Accessors) storageprovisioner.Accessors) func(testing.TB) Subject {
	return func(t testing.TB) Subject {
		m := modeltest.New(modeltest.Options{})
		t.Cleanup(func() { m.Close() })
		m.ProvisionMachine("machine-0", "instance-0")
		m.AddVolume(params.VolumeParams{VolumeTag: "volume-0", Size: 1, Provider: "fake"})
		m.AttachVolume(params.VolumeAttachmentParams{VolumeTag: "volume-0", MachineTag: "machine-0", Provider: "fake"})
		s := Subject{
			Accessors: m.For(scope), Volume: names.NewVolumeTag("0"), Machine: names.NewMachineTag("0"),
			Remove: func() { m.Destroy("volume-0") },
		}
		if broken != nil {
			s.Accessors = broken(s.Accessors)
		}
		return s
	}
}

func TestModel(t *testing.T) {
	Run(t, Config{Open: openModel(names.NewModelTag("deadbeef-0bad-400d-8000-4b1d0d06f00d"), nil)})
}

func TestModelOfMachine(t *testing.T) {
	Run(t, Config{Open: openModel(names.NewMachineTag("0"), nil)})
}

// The broken accessors each have one flaw.

type good = storageprovisioner.Accessors

type reverses struct{ good }

func (a reverses) Life(tags []names.Tag) ([]params.LifeResult, error) {
	all, err := a.good.Life(append(slices.Clone(tags), tags[0]))
	slices.Reverse(all)
	return all[:len(tags)], err
}

type dropsMissing struct{ good }

func (a dropsMissing) Life(tags []names.Tag) ([]params.LifeResult, error) {
	all, err := a.good.Life(tags)
	return slices.DeleteFunc(all, func(r params.LifeResult) bool { return r.Error != nil }), err
}

type confusesCodes struct{ good }

func (a confusesCodes) Volumes(tags []names.VolumeTag) ([]params.VolumeResult, error) {
	all, err := a.good.Volumes(tags)
	for i := range all {
		if all[i].Error != nil {
			all[i].Error.Code = params.CodeNotFound
		}
	}
	return all, err
}

type hidesInstance struct{ good }

func (a hidesInstance) VolumeAttachmentParams(ids []params.MachineStorageId) ([]params.VolumeAttachmentParamsResult, error) {
	all, err := a.good.VolumeAttachmentParams(ids)
	for i := range all {
		all[i].Result.InstanceId = ""
	}
	return all, err
}

type forgetsWrites struct{ good }

func (a forgetsWrites) SetVolumeAttachmentInfo([]params.VolumeAttachment) ([]params.ErrorResult, error) {
	return nil, nil
}

type keepsFirst struct {
	good
	made map[string]bool
}

func (a keepsFirst) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	all := make([]params.ErrorResult, len(volumes))
	for i, v := range volumes {
		if !a.made[v.VolumeTag] {
			a.made[v.VolumeTag] = true
			all[i] = must(a.good.SetVolumeInfo([]params.Volume{v}))[0]
		}
	}
	return all, nil
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

type failsAll struct{ good }

func (a failsAll) SetVolumeInfo(volumes []params.Volume) ([]params.ErrorResult, error) {
	all, err := a.good.SetVolumeInfo(volumes)
	for _, r := range all {
		if r.Error != nil {
			return nil, r.Error
		}
	}
	return all, err
}

type refusesStatuses struct{ good }

func (refusesStatuses) SetStatus([]params.EntityStatusArgs) error {
	return errors.New("unknown entity")
}

type sendsTags struct{ good }

func (a sendsTags) WatchVolumes() (watcher.StringsWatcher, error) {
	return new(feed.IDs[string]).Watch([]string{"volume-0"}), nil
}

type silent struct{ good }

func (silent) WatchFilesystems() (watcher.StringsWatcher, error) { return newMute(), nil }

// mute is a watcher that sends nothing.
type mute struct{ *feed.Watcher[[]string] }

func newMute() mute { return mute{new(feed.IDs[string]).Watch(nil)} }

func (mute) Changes() <-chan []string { return nil }

type sendsOnce struct{ good }

func (a sendsOnce) WatchVolumes() (watcher.StringsWatcher, error) {
	return new(feed.IDs[string]).Watch([]string{"0"}), nil
}

type endsWithError struct{ good }

func (a endsWithError) WatchVolumes() (watcher.StringsWatcher, error) {
	w, err := a.good.WatchVolumes()
	return failing{w}, err
}

type failing struct{ watcher.StringsWatcher }

func (f failing) Wait() error {
	_ = f.StringsWatcher.Wait()
	return errors.New("killed")
}

type killsAtOnce struct{ good }

func (a killsAtOnce) Life(tags []names.Tag) ([]params.LifeResult, error) {
	all, err := a.good.Life(tags)
	for i := range all {
		if all[i].Life == life.Dying {
			all[i].Life = life.Dead
		}
	}
	return all, err
}

type keepsRemoved struct{ good }

func (a keepsRemoved) Remove([]names.Tag) ([]params.ErrorResult, error) { return nil, nil }

// recorder is a test that notes whether it has failed.
type recorder struct {
	testing.TB
	failed   bool
	said     []string
	cleanups []func()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Failed() bool              { return r.failed }
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(f string, a ...any)   { r.said = append(r.said, fmt.Sprintf(f, a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.failed = true; r.Logf(f, a...) }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) Fatal(a ...any)            { r.Fatalf("%v", a) }

// outcome runs one rule.
func outcome(t testing.TB, r rule, config Config) *recorder {
	rec := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(rec.cleanups) {
				f()
			}
		}()
		r.run(rec, config)
	}()
	<-done
	return rec
}

var flaws = []struct {
	name, rule string
	with       func(good) good
}{
	{"reverses results", "ResultsMatchArguments", func(a good) good { return reverses{a} }},
	{"drops results of what is missing", "ResultsMatchArguments", func(a good) good { return dropsMissing{a} }},
	{"confuses codes", "UnmadeIsNotProvisioned", func(a good) good { return confusesCodes{a} }},
	{"hides the instance", "ParametersAreComplete", func(a good) good { return hidesInstance{a} }},
	{"forgets writes", "WritesAreRead", func(a good) good { return forgetsWrites{a} }},
	{"keeps the first info", "WritesAreRead", func(a good) good { return keepsFirst{a, make(map[string]bool)} }},
	{"fails all items", "WritesFailOneByOne", func(a good) good { return failsAll{a} }},
	{"refuses statuses", "StatusesAreSet", func(a good) good { return refusesStatuses{a} }},
	{"sends tags", "FirstEventHasEverything", func(a good) good { return sendsTags{a} }},
	{"sends no empty event", "FirstEventHasEverything", func(a good) good { return silent{a} }},
	{"sends one event", "ChangesAreReported", func(a good) good { return sendsOnce{a} }},
	{"ends watchers with an error", "WatchersStop", func(a good) good { return endsWithError{a} }},
	{"makes what is attached dead", "AttachedIsNotDead", func(a good) good { return killsAtOnce{a} }},
	{"keeps what was removed", "RemovedIsNotFound", func(a good) good { return keepsRemoved{a} }},
}

func TestEveryFlawIsFound(t *testing.T) {
	for _, flaw := range flaws {
		t.Run(flaw.name, func(t *testing.T) {
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == flaw.rule })
			r := outcome(t, rules[i], Config{Open: openModel(names.NewMachineTag("0"), flaw.with), Patience: 100 * time.Millisecond})
			if !r.failed {
				t.Errorf("accessors that have the flaw pass %s", flaw.rule)
			}
			t.Logf("%s: %q", flaw.rule, r.said)
		})
	}
}

func TestEveryRuleFindsAFlaw(t *testing.T) {
	var found []string
	for _, flaw := range flaws {
		found = append(found, flaw.rule)
	}
	for _, r := range rules {
		if !slices.Contains(found, r.name) {
			t.Errorf("rule %s finds no flaw", r.name)
		}
	}
}

func TestSubjectIsChecked(t *testing.T) {
	sound := openModel(names.NewMachineTag("0"), nil)(t)
	for name, spoil := range map[string]func(*Subject){
		"Accessors": func(s *Subject) { s.Accessors = nil },
		"Volume":    func(s *Subject) { s.Volume = names.VolumeTag{} },
		"Machine":   func(s *Subject) { s.Machine = names.MachineTag{} },
		"Remove":    func(s *Subject) { s.Remove = nil },
	} {
		s := sound
		spoil(&s)
		if err := s.validate(); err == nil || err.Error() != "accessortest.Subject without "+name+" not valid" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
