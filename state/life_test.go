package state_test

import (
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

const (
	block      = storage.StorageKindBlock
	filesystem = storage.StorageKindFilesystem
)

// Each line is the story of one storage instance: its steps, and then the lives of the volume
// (v), its plan (p), its attachment (va), the filesystem (f) and its attachment (fa). A step
// after "!" is refused.
func TestLife(t *testing.T) {
	const managed, native, raw = "loop filesystem", "tmpfs filesystem", "disk block"
	for _, test := range []struct {
		what, story, want string
	}{
		{managed, "", "v alive, va alive, f alive, fa alive"},
		{native, "", "f alive, fa alive"},
		{raw, "", "v alive, va alive"},

		// Detached storage stays.
		{managed, "detach", "v alive, va alive, f alive, fa dying"},
		{managed, "detach, -fa", "v alive, va dying, f alive"},
		{managed, "detach, -fa, -va", "v alive, f alive"},
		{managed, "detach, detach, -fa, detach, -va, detach", "v alive, f alive"},
		{managed, "work, detach, -fa, -va", "v alive, f alive"},
		{raw, "detach", "v alive, va dying"},
		{raw, "detach, -va", "v alive"},
		{native, "work, detach, -fa", "f alive"},

		// Storage can be attached again once it is completely detached.
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

		// A plan is removed before its attachment, and after the filesystem.
		{raw, "plan", "v alive, p alive, va alive"},
		{raw, "plan, plan, detach", "v alive, p dying, va alive"},
		{raw, "plan, detach, plan, !attach", "v alive, p dying, va alive"},
		{raw, "plan, detach, plan, -p, plan", "v alive, va dying"},
		{raw, "plan, remove, -p, plan, -va, -v", ""},
		{"disk filesystem", "plan, remove", "v dying, p alive, va alive, f dying, fa dying"},
		{"disk filesystem", "plan, remove, -fa", "v dying, p dying, va alive, f dead"},
		{"disk filesystem", "plan, remove, -fa, -p", "v dying, va dying, f dead"},

		// Attached storage that is not being detached cannot be removed.
		{managed, "!-fa, !-va, !-f, !-v", "v alive, va alive, f alive, fa alive"},
		{managed, "remove, !-va, !-f, !-v, -fa, !-v", "v dying, va dying, f dead"},
		{managed, "detach, -fa, -va, !-f, !-v", "v alive, f alive"},
		{raw, "plan, !-p, !-va", "v alive, p alive, va alive"},

		// Removal is idempotent.
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

// partsOf returns the index entries that an instance may have, by their names in stories.
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

// Removing attached storage has an error code of its own.
func TestRemoveAttachedCode(t *testing.T) {
	w := newWorld(t)
	w.add("it", "loop", block)
	parts := partsOf(w.one("it"))
	wantCode(t, w.remove(parts["v"]), params.CodeStorageAttached)
	wantCode(t, w.remove(parts["va"]), params.CodeNotValid)
	w.must(w.DetachStorage([]string{"it"}))
	w.must(w.remove(parts["va"]))
	wantCode(t, w.remove(parts["v"]), params.CodeNotValid)
}
