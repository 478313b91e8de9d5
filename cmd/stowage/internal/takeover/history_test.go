package takeover_test

import (
	"testing"
	"time"

	"github.com/juju/names/v5"
	"pgregory.net/rapid"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// history is a random history of servers that share a state with one volume, which users move. It
// does what the environment's worker does, with servers that are paused at any call.
type history struct {
	*world
	rapid    *rapid.T
	machines []names.MachineTag
	leader   *server
	// late has the calls of servers that were replaced. All come within the window.
	late []func()
	left time.Duration // of the window
}

// attachment returns where the state has the volume, and whether it is to stay there.
func (h *history) attachment() (machine names.MachineTag, stays, ok bool) {
	all, err := h.Storage("it")
	h.must(err)
	if len(all[0].Attachments) == 0 {
		return machine, false, false
	}
	machine = all[0].Attachments[0].Machine
	lives, err := h.ForEnviron().AttachmentLife([]params.MachineStorageId{{MachineTag: machine.String(), AttachmentTag: volume0.String()}})
	h.must(err)
	return machine, lives[0].Life == life.Alive, true
}

// work makes the call that the worker would make, if there is one, and records what has come of it.
func (h *history) work() {
	machine, stays, ok := h.attachment()
	switch {
	case !ok:
	case stays:
		_ = h.leader.attach(machine) // it may have to wait
	case h.leader.detach(machine) == nil:
		results, err := h.ForEnviron().RemoveAttachments([]params.MachineStorageId{{MachineTag: machine.String(), AttachmentTag: volume0.String()}})
		h.must(err)
		if results[0].Error != nil {
			h.Fatal(results[0].Error)
		}
	}
}

// takeOver replaces the server. It may be in a call then.
func (h *history) takeOver() {
	machine, stays, ok := h.attachment()
	if ok && rapid.Bool().Draw(h.rapid, "in a call") {
		old := h.leader
		resume, begun := old.tryLate(func() {
			if stays {
				_ = old.attach(machine)
			} else {
				_ = old.detach(machine)
			}
		})
		if begun {
			h.late = append(h.late, resume)
		}
	}
	h.leader.lease.lose()
	h.leader, h.left = h.world.takeOver(), time.Minute
}

func (h *history) resume() {
	if len(h.late) > 0 {
		i := rapid.IntRange(0, len(h.late)-1).Draw(h.rapid, "call")
		resume := h.late[i]
		h.late = append(h.late[:i], h.late[i+1:]...)
		resume()
	}
}

// wait lets time pass. Calls that are late come at the end of the window at the latest.
func (h *history) wait() {
	d := time.Duration(rapid.IntRange(1, 90).Draw(h.rapid, "seconds")) * time.Second
	if d > h.left {
		for len(h.late) > 0 {
			h.resume()
		}
	}
	h.left -= d
	h.clock.Advance(d)
}

// tryLate is late for a call that may not be made.
func (s *server) tryLate(call func()) (resume func(), begun bool) {
	s.source.pause = make(chan chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		call()
	}()
	select {
	case paused := <-s.source.pause:
		s.source.pause = nil
		return func() {
			close(paused)
			<-ended
		}, true
	case <-ended:
		s.source.pause = nil
		return nil, false
	}
}

// Whatever servers are replaced when, and whatever users do, a volume is at no time attached to two
// machines.
// Fault F38.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.backend.silent = true
		w.backend.lists = rapid.Bool().Draw(rt, "lists")
		h := &history{world: w, rapid: rt, machines: []names.MachineTag{machine0, machine1, names.NewMachineTag("2")}}
		w.must(w.EnsureMachine(h.machines[2]))
		w.must(w.AddStorage(state.StorageParams{Name: "it", Kind: storage.StorageKindBlock, Pool: "disk", Size: 1, Machine: machine0}))
		results, err := w.ForEnviron().SetVolumeInfo([]params.Volume{{VolumeTag: volume0.String(), Info: params.VolumeInfo{VolumeId: id, Size: 1, Persistent: true}}})
		w.must(err)
		if results[0].Error != nil {
			t.Fatal(results[0].Error)
		}
		h.leader = w.takeOver()
		rt.Repeat(map[string]func(*rapid.T){
			"work": func(rt *rapid.T) { h.rapid = rt; h.work() },
			"move": func(rt *rapid.T) {
				w.must(w.DetachStorage([]string{"it"}))
				h.work()
				_ = w.AttachStorage([]string{"it"}, rapid.SampledFrom(h.machines).Draw(rt, "machine"))
				h.work()
			},
			"detach": func(rt *rapid.T) { w.must(w.DetachStorage([]string{"it"})) },
			"attach": func(rt *rapid.T) {
				_ = w.AttachStorage([]string{"it"}, rapid.SampledFrom(h.machines).Draw(rt, "machine")) // it may be attached
			},
			"take over": func(rt *rapid.T) { h.rapid = rt; h.takeOver() },
			"resume":    func(rt *rapid.T) { h.rapid = rt; h.resume() },
			"wait":      func(rt *rapid.T) { h.rapid = rt; h.wait() },
			"fence": func(rt *rapid.T) {
				machine := rapid.SampledFrom(h.machines).Draw(rt, "machine")
				w.must(w.FenceMachine(machine))
				w.backend.turnOff(machine)
			},
			"": func(rt *rapid.T) {
				if w.backend.isDouble() {
					rt.Fatalf("the volume is attached to machines %v", w.backend.attached[id])
				}
			},
		})
		for _, resume := range h.late {
			resume()
		}
		// In the end the volume is where the state wants it.
		w.clock.Advance(time.Hour)
		for range 3 {
			h.work()
		}
		if machine, stays, ok := h.attachment(); ok && stays {
			w.backend.mu.Lock()
			defer w.backend.mu.Unlock()
			if got := w.backend.on(id); !w.backend.off[machine] && (len(got) != 1 || got[0] != machine) {
				rt.Fatalf("the volume is attached to machines %v, want %v", got, machine)
			}
		}
	})
}
