//go:build linux

package provider

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/sourcetest"
)

// An object is looked at in all phases, without the lock of a call, and is not changed.
func TestLook(t *testing.T) {
	forEachSource(t, func(t *ownedTest) {
		id := t.mustCreate(ownerTags(uuid.NewString(), uuid.NewString()))
		unlock, err := t.store().Lock(t.ctx)
		if err != nil {
			t.Fatal(err)
		}
		found, err := t.directory().Look(t.ctx, id)
		unlock()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(found.Record); err != nil || len(found.Mounts) > 0 || len(found.Devices) > 0 || len(found.Holders()) > 0 {
			t.Errorf("detached: %+v, %v", found, err)
		}
		at := t.mustAttach(id)
		if found, err = t.directory().Look(t.ctx, id); err != nil {
			t.Fatal(err)
		}
		if t.kind == LoopProviderType {
			if !slices.Equal(found.Devices, []string{at}) || len(found.Files) != 1 || found.Files[0].Size == 0 {
				t.Errorf("attached at %s: %+v", at, found)
			}
			f, err := os.Open(at)
			if err != nil {
				t.Fatal(err)
			}
			if holders := holdersOf(found); len(holders) > 0 {
				t.Errorf("this process is not among its users: %+v", holders)
			}
			f.Close()
		} else if t.kind != RootfsProviderType && (len(found.Mounts) != 1 || found.Mounts[0].Path != at || found.Mounts[0].ReadOnly) {
			t.Errorf("attached at %s: %+v", at, found)
		}
		if t.kind == managedType || t.kind == TmpfsProviderType {
			if err := unix.Mount("", at, "", unix.MS_SHARED, ""); err != nil {
				t.Fatal(err)
			}
			for propagation, want := range map[string]int{"private": 1, "slave": 0} {
				cmd := exec.Command("unshare", "--mount", "--propagation", propagation, "sh", "-c", "echo ready; read line")
				kill := sourcetest.Holder(t.T, cmd)
				holders := holdersOf(found)
				if len(holders) != want || want == 1 && (holders[0].PID != cmd.Process.Pid || holders[0].Use != "mounted at "+at) {
					t.Errorf("%d (%s) has a copy of the mounts, and it is used by %+v", cmd.Process.Pid, propagation, holders)
				}
				kill()
			}
		}
		usage, ok, err := found.Usage()
		if want := t.kind != LoopProviderType; err != nil || ok != want || want && (usage.Size == 0 || usage.Free > usage.Size) {
			t.Errorf("usage %+v, %v, %v", usage, ok, err)
		}
		same, ok, err := t.directory().Usage(t.ctx, id)
		if want := t.kind != LoopProviderType; err != nil || ok != want || same.Size != usage.Size || same.Shared != usage.Shared {
			t.Errorf("usage %+v, %v, %v; want that of the footprint, %+v", same, ok, err, usage)
		}
		if got := t.mustAttach(id); got != at {
			t.Errorf("attached at %s, want %s as before", got, at)
		}
		if err := t.detach(id); err != nil {
			t.Fatal(err)
		}
		if found, err := t.directory().Look(t.ctx, id); err != nil || len(found.Mounts) > 0 || len(found.Devices) > 0 {
			t.Errorf("detached again: %+v, %v", found, err)
		}
		if usage, ok, err := t.directory().Usage(t.ctx, id); err != nil || ok && t.kind != RootfsProviderType {
			t.Errorf("usage of what is detached: %+v, %v, %v", usage, ok, err)
		}
		t.mustRemove(id)
		if _, err := t.directory().Look(t.ctx, id); !errors.Is(err, errors.NotFound) {
			t.Errorf("removed: %v", err)
		}
	})
}

// holdersOf returns the holders, without other programs that look at all devices of the machine, and
// for that open each of them for a moment.
func holdersOf(found *Footprint) []Holder {
	return slices.DeleteFunc(found.Holders(), func(h Holder) bool {
		return h.PID != os.Getpid() && strings.HasPrefix(h.Use, "has open /dev/")
	})
}
