package state_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

const (
	block      = storage.StorageKindBlock
	filesystem = storage.StorageKindFilesystem
)

// Each line tells a story of one storage instance: what happens, and then the lives of
// the volume (v), its plan (p), its attachment (va), the filesystem (f) and its
// attachment (fa). "!" before a step says that it is refused.
func TestLife(t *testing.T) {
	const managed, native, raw = "loop filesystem", "tmpfs filesystem", "disk block"
	for _, test := range []struct {
		what, story, want string
	}{
		{managed, "", "v alive, va alive, f alive, fa alive"},
		{native, "", "f alive, fa alive"},
		{raw, "", "v alive, va alive"},

		// Detaching keeps what is detached.
		{managed, "detach", "v alive, va alive, f alive, fa dying"},
		{managed, "detach, -fa", "v alive, va dying, f alive"},
		{managed, "detach, -fa, -va", "v alive, f alive"},
		{managed, "detach, detach, -fa, detach, -va, detach", "v alive, f alive"},
		{managed, "work, detach, -fa, -va", "v alive, f alive"},
		{raw, "detach", "v alive, va dying"},
		{raw, "detach, -va", "v alive"},
		{native, "work, detach, -fa", "f alive"},

		// What is detached can be attached again, once it is detached altogether.
		{managed, "attach", "v alive, va alive, f alive, fa alive"},
		{managed, "detach, !attach", "v alive, va alive, f alive, fa dying"},
		{managed, "detach, -fa, !attach", "v alive, va dying, f alive"},
		{managed, "detach, -fa, -va, attach", "v alive, va alive, f alive, fa alive"},
		{raw, "!attach1, detach, !attach1, -va, attach1", "v alive, va1 alive"},
		{managed, "detach, -fa, -va, !attach1", "v alive, f alive"},

		// Removing goes from the top down.
		{managed, "remove", "v dying, va alive, f dying, fa dying"},
		{managed, "remove, -fa", "v dying, va dying, f dead"},
		{managed, "remove, -fa, -va", "v dying, f dead"},
		{managed, "remove, -fa, -va, -f", "v dead"},
		{managed, "remove, -fa, -f, -va", "v dead"},
		{managed, "remove, -fa, -f, -va, -v", ""},
		{managed, "work, remove, -fa, -f, -va, -v", ""},
		{raw, "remove", "v dying, va dying"},
		{raw, "remove, -va, -v", ""},
		{native, "remove", "f dying, fa dying"},
		{native, "remove, -fa, -f", ""},
		{managed, "detach, -fa, -va, remove", "v dying, f dead"},
		{managed, "detach, remove", "v dying, va alive, f dying, fa dying"},
		{managed, "remove, detach, remove, -fa, remove, detach", "v dying, va dying, f dead"},
		{managed, "remove, !attach, -fa, !attach", "v dying, va dying, f dead"},

		// A plan goes before the attachment that it is for, and after the filesystem.
		{raw, "plan", "v alive, p alive, va alive"},
		{raw, "plan, plan, detach", "v alive, p dying, va alive"},
		{raw, "plan, detach, plan, !attach", "v alive, p dying, va alive"},
		{raw, "plan, detach, plan, -p, plan", "v alive, va dying"},
		{raw, "plan, remove, -p, plan, -va, -v", ""},
		{"disk filesystem", "plan, remove", "v dying, p alive, va alive, f dying, fa dying"},
		{"disk filesystem", "plan, remove, -fa", "v dying, p dying, va alive, f dead"},
		{"disk filesystem", "plan, remove, -fa, -p", "v dying, va dying, f dead"},

		// What has not been let go of is not removed.
		{managed, "!-fa, !-va, !-f, !-v", "v alive, va alive, f alive, fa alive"},
		{managed, "remove, !-va, !-f, !-v, -fa, !-v", "v dying, va dying, f dead"},
		{managed, "detach, -fa, -va, !-f, !-v", "v alive, f alive"},
		{raw, "plan, !-p, !-va", "v alive, p alive, va alive"},

		// What is gone is gone.
		{managed, "detach, -fa, -fa", "v alive, va dying, f alive"},
		{managed, "remove, -fa, -f, -f, -va, -va, -v, -v, !remove, !detach, !attach", ""},
	} {
		t.Run(test.what+": "+test.story, func(t *testing.T) {
			w := newWorld(t)
			pool, kind, _ := strings.Cut(test.what, " ")
			if kind == "block" {
				w.add("it", pool, block)
			} else {
				w.add("it", pool, filesystem)
			}
			parts := partsOf(w.one("it"))
			for _, step := range strings.FieldsFunc(test.story, func(r rune) bool { return r == ',' || r == ' ' }) {
				step, refused := strings.CutPrefix(step, "!")
				if err := w.step(step, parts); (err != nil) != refused {
					t.Errorf("%s: error is %v", step, err)
				}
				w.check()
			}
			if got := w.lives(parts); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// partsOf returns the index entries that an instance may have, by their names in
// stories.
func partsOf(s state.Storage) map[string]entry {
	parts := make(map[string]entry)
	if s.Volume != nil {
		tag := s.Volume.Tag.String()
		parts["v"] = entry{kind: "volume", tag: tag}
		parts["p"] = entry{kind: "plan", machine: "machine-0", tag: tag}
		parts["va"] = entry{kind: "volume-attachment", machine: "machine-0", tag: tag}
		if s.Provider == "disk" {
			parts["va1"] = entry{kind: "volume-attachment", machine: "machine-1", tag: tag}
		}
	}
	if s.Filesystem != nil {
		tag := s.Filesystem.Tag.String()
		parts["f"] = entry{kind: "filesystem", tag: tag}
		parts["fa"] = entry{kind: "filesystem-attachment", machine: "machine-0", tag: tag}
	}
	return parts
}

func (w *world) step(step string, parts map[string]entry) error {
	switch step {
	case "attach":
		return w.AttachStorage([]string{"it"}, machine0)
	case "attach1":
		return w.AttachStorage([]string{"it"}, machine1)
	case "detach":
		return w.DetachStorage([]string{"it"})
	case "remove":
		return w.RemoveStorage([]string{"it"})
	case "plan":
		return w.plan(parts["va"])
	case "work":
		w.work()
		return nil
	}
	part, ok := parts[strings.TrimPrefix(step, "-")]
	if !ok {
		return errors.Errorf("the story has an unknown step %q", step)
	}
	return w.remove(part)
}

func (w *world) lives(parts map[string]entry) string {
	var lives []string
	for _, name := range []string{"v", "p", "va", "va1", "f", "fa"} {
		part, ok := parts[name]
		if !ok {
			continue
		}
		if l := w.lifeOf(part); l != "-" {
			lives = append(lives, name+" "+string(l))
		}
	}
	return strings.Join(lives, ", ")
}

// Users and workers do whatever they like, in any order. Whatever has happened, the
// rules hold, and afterwards storage can be detached, attached again, and removed
// without a trace.
func TestAnyHistory(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			h := &history{
				world: newWorld(t),
				rand:  rand.New(rand.NewPCG(seed, 0)),
				lives: make(map[entry]life.Value),
				sizes: make(map[string]uint64),
				gone:  make(map[entry]bool),
			}
			h.must(h.SetPool("fast", "disk", nil))
			before := h.dump()
			for range 80 {
				h.do()
				h.verify()
				if t.Failed() {
					t.Fatalf("history:\n%s", strings.Join(h.done, "\n"))
				}
			}

			present := h.present()
			h.work()
			h.must(h.DetachStorage(h.present()))
			h.work()
			for _, name := range h.present() {
				if s := h.one(name); s.Life != life.Alive || len(s.Attachments) > 0 {
					t.Errorf("%s was detached and is %s with %d attachments", name, s.Life, len(s.Attachments))
				}
				h.must(h.AttachStorage([]string{name}, machine0))
			}
			h.work()
			for _, name := range h.present() {
				if s := h.one(name); s.Status != "attached" || len(s.Attachments) != 1 || s.Attachments[0].Life != life.Alive {
					t.Errorf("%s was attached and is %s", name, s.Status)
				}
			}
			h.must(h.RemoveStorage(h.present()))
			h.work()
			h.check()
			// Sequences go on, and each machine has one key that is written to wake
			// its worker.
			for key, value := range h.dump() {
				if before[key] != value && !strings.HasPrefix(key, "sequence/") && !strings.HasSuffix(key, "/matches") {
					t.Errorf("removing everything left %s: %s", key, value)
				}
			}
			if t.Failed() {
				t.Logf("storage %v, history:\n%s", present, strings.Join(h.done, "\n"))
			}
		})
	}
}

type history struct {
	*world
	rand  *rand.Rand
	done  []string
	lives map[entry]life.Value
	sizes map[string]uint64 // wanted, by the tag of the volume or filesystem
	gone  map[entry]bool
}

var historyPools = []struct {
	pool string
	kind storage.StorageKind
}{{"loop", filesystem}, {"loop", block}, {"tmpfs", filesystem}, {"fast", filesystem}, {"disk", block}, {"nfs", filesystem}}

func (h *history) present() (present []string) {
	all, err := h.AllStorage()
	h.must(err)
	for _, s := range all {
		present = append(present, s.Name)
	}
	return present
}

// do does something that may make sense or not.
func (h *history) do() {
	note := func(format string, args ...any) { h.done = append(h.done, fmt.Sprintf(format, args...)) }
	name := fmt.Sprintf("s%d", h.rand.IntN(4))
	entries := h.entries()
	if user := h.rand.IntN(10) < 3; user || len(entries) == 0 {
		var err error
		var what string
		switch h.rand.IntN(6) {
		case 0, 1:
			pick := historyPools[h.rand.IntN(len(historyPools))]
			what = fmt.Sprintf("add %s %s %s", name, pick.pool, pick.kind)
			err = h.AddStorage(state.StorageParams{Name: name, Kind: pick.kind, Pool: pick.pool, Size: 1, Machine: machine0})
		case 2:
			what, err = "attach "+name, h.AttachStorage([]string{name}, machine0)
		case 3:
			what, err = "detach "+name, h.DetachStorage([]string{name})
		case 4:
			what, err = "remove "+name, h.RemoveStorage([]string{name})
		case 5:
			size := h.rand.Uint64N(200)
			what, err = fmt.Sprintf("resize %s to %d", name, size), h.ResizeStorage(name, size)
		}
		note("%s: %v", what, err)
		return
	}
	e := entries[h.rand.IntN(len(entries))]
	switch h.rand.IntN(5) {
	case 0, 1:
		note("provision %v: %v", e, h.provision(e))
	case 2:
		if e.kind == "volume-attachment" {
			note("plan %v: %v", e, h.plan(e))
		}
	default:
		note("remove %v: %v", e, h.remove(e))
	}
}

// verify checks the rules on what workers are told.
func (h *history) verify() {
	h.check()
	now := make(map[entry]life.Value)
	for _, e := range h.entries() {
		now[e] = h.lifeOf(e)
		if h.gone[e] && e.machine == "" {
			h.t.Errorf("%v came back", e)
		}
		if e.machine == "" && rank(now[e]) < rank(h.lives[e]) {
			h.t.Errorf("%v went from %s to %s", e, h.lives[e], now[e])
		}
	}
	for e := range h.lives {
		if _, ok := now[e]; !ok {
			h.gone[e] = true
		}
	}
	h.lives = now
	all, err := h.AllStorage()
	h.must(err)
	for _, s := range all {
		parts := partsOf(s)
		of := func(name string) life.Value { return now[parts[name]] }
		for _, e := range []*state.Entity{s.Volume, s.Filesystem} {
			if e == nil {
				continue
			}
			if was := h.sizes[e.Tag.String()]; s.RequestedMiB < was && s.RequestedMiB < s.SizeMiB {
				h.t.Errorf("%s: has %d MiB, and is wanted with %d MiB, was with %d MiB", s.Name, s.SizeMiB, s.RequestedMiB, was)
			}
			h.sizes[e.Tag.String()] = s.RequestedMiB
		}
		if of("fa") != "" && (of("va") == life.Dying || of("p") == life.Dying) {
			h.t.Errorf("%s: the volume is taken from under its filesystem", s.Name)
		}
		if of("va") == life.Dying && of("p") != "" {
			h.t.Errorf("%s: the volume is detached before its plan is undone", s.Name)
		}
		if of("f") != "" && of("v") == life.Dead || of("v") == life.Dead && of("va") != "" || of("f") == life.Dead && of("fa") != "" {
			h.t.Errorf("%s: dead while in use", s.Name)
		}
		if s.Kind == filesystem && s.Provider != "tmpfs" && s.Provider != "nfs" && of("v") == "" {
			h.t.Errorf("%s: the volume went before its filesystem", s.Name)
		}
	}
}

func rank(l life.Value) int {
	return map[life.Value]int{"": 0, life.Alive: 1, life.Dying: 2, life.Dead: 3}[l]
}

// Removing what is attached says so by its code.
func TestRemoveOfAttachedHasItsCode(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", block)
	parts := partsOf(w.one("it"))
	wantCode(t, w.remove(parts["v"]), params.CodeStorageAttached)
	wantCode(t, w.remove(parts["va"]), params.CodeNotValid)
	w.must(w.DetachStorage([]string{"it"}))
	w.must(w.remove(parts["va"]))
	wantCode(t, w.remove(parts["v"]), params.CodeNotValid)
}
