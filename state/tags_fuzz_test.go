package state

import (
	"strings"
	"testing"

	"github.com/juju/names/v5"
)

// FuzzTags compares with the names package. A parsed tag is part of keys, and is parsed from
// them again.
func FuzzTags(f *testing.F) {
	for _, text := range []string{
		"volume-0", "volume-12-34", "filesystem-0-lxd-1-2", "filesystem-gitlab-0-3", "volume-0/0", "volume-00",
		"volume-1-2-3", "machine-0", "machine-0-lxd-1", "machine-00", "unit-gitlab-0", "", "-", "volume-\xff",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := names.ParseTag(text)
		_, isVolume := want.(names.VolumeTag)
		_, isFilesystem := want.(names.FilesystemTag)
		_, isMachine := want.(names.MachineTag)

		tag, tagErr := parseEntityTag(text)
		if (tagErr == nil) != (err == nil && (isVolume || isFilesystem)) {
			t.Fatalf("%q is %q, %v, and to package names %v, %v", text, tag, tagErr, want, err)
		}
		if tagErr == nil {
			if tag.tag() != want || tag.id() != want.Id() || tag.kind() != want.Kind() {
				t.Errorf("%q is %s %s, and to package names %s %s", text, tag.kind(), tag.id(), want.Kind(), want.Id())
			}
			if again, err := parseEntityTag(lastComponent(entityKey(tag))); err != nil || again != tag {
				t.Errorf("%q comes back out of key %q as %q, %v", tag, entityKey(tag), again, err)
			}
			if machine := tag.scope(); machine != environScope {
				bound := machineTag(machine)
				if parsed, err := parseMachineTag(machine); err != nil || !strings.HasPrefix(tag.id(), bound.tag().Id()+"/") {
					t.Errorf("%q is of scope %q, which is %q, %v", tag, machine, parsed, err)
				}
			}
		}
		machine, machineErr := parseMachineTag(text)
		if (machineErr == nil) != (err == nil && isMachine) {
			t.Fatalf("%q is %q, %v, and to package names %v, %v", text, machine, machineErr, want, err)
		}
		if machineErr == nil && (machine.tag() != want || strings.Contains(string(machine), "/")) {
			t.Errorf("%q is %s, and to package names %s", text, machine.tag(), want)
		}
	})
}
