//go:build linux

package mount

import (
	"fmt"
	"strings"
	"testing"
)

// escape escapes a field as the kernel does: mangle in fs/proc_namespace.c.
var escape = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`)

// FuzzMountinfoRoundTrip writes a line as the kernel does, and parses it together with
// other lines.
func FuzzMountinfoRoundTrip(f *testing.F) {
	f.Add(uint16(33), uint16(7), uint16(3), "/", "/srv/with space", "rw,relatime", "shared:7 master:2", "ext4", "/dev/loop3", "ro")
	f.Add(uint16(30), uint16(0), uint16(40), "/var/lib//deleted", `/srv/back\slash#`, "ro,nosuid,nodev", "", "tmpfs", "tmpfs-filesystem-0-1", "rw,size=1024k")
	f.Add(uint16(9), uint16(0), uint16(5), `/\040`, "/a\tb\nc - d", "rw", "unbindable", "fuse.x", "", "rw")
	f.Fuzz(func(t *testing.T, id, major, minor uint16, root, point, options, optional, kind, source, super string) {
		for _, word := range []string{options, kind, super} {
			if word == "" || strings.ContainsAny(word, " \t\n\\\r\v\f") {
				t.Skip()
			}
		}
		// The kernel's paths are absolute, and may be paths that we never mount at.
		root, point = "/"+strings.TrimLeft(root, "/"), "/"+strings.TrimLeft(point, "/")
		if strings.ContainsRune(root+point+source, 0) || strings.ContainsAny(optional, "\n\\") || strings.Contains(" "+optional+" ", " - ") || optional != strings.Join(strings.Fields(optional), " ") || source == "" {
			t.Skip()
		}
		line := fmt.Sprintf("%d 1 %d:%d %s %s %s ", id, major, minor, escape.Replace(root), escape.Replace(point), options)
		if optional != "" {
			line += optional + " "
		}
		line += fmt.Sprintf("- %s %s %s\n", kind, escape.Replace(source), super)
		table, err := ParseTable(strings.NewReader(mounts + line))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		m := table.At(point)
		if m == nil {
			t.Fatalf("%q: nothing is found at %q", line, point)
		}
		got := fmt.Sprintf("%d %d:%d %q %q %q %q %q %q %q", m.ID, m.Major, m.Minor, m.Root, m.Mountpoint, m.Options, m.Optional, m.FSType, m.Source, m.VFSOptions)
		want := fmt.Sprintf("%d %d:%d %q %q %q %q %q %q %q", id, major, minor, root, point, options, optional, kind, source, super)
		if got != want {
			t.Errorf("%q is parsed as\n%s, want\n%s", line, got, want)
		}
		if n := len(table.OfDevice(uint32(major), uint32(minor))); n == 0 {
			t.Errorf("%q: not found by its device", line)
		}
		if n := len(table.OfSource(kind, source)); n == 0 {
			t.Errorf("%q: not found by its source", line)
		}
	})
}

// FuzzParseTable queries arbitrary tables in all ways.
func FuzzParseTable(f *testing.F) {
	f.Add(mounts)
	f.Add("22 27 0:21 / /proc rw,relatime - proc proc rw\n27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resv_strict,resuid=65534,resgid=65534\n")
	f.Add("1 1 0:0 / / rw -")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := ParseTable(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, m := range table.mounts {
			_, _ = Describe(m), IsReadOnly(m)
			if at := table.At(m.Mountpoint); at == nil || at.Mountpoint != m.Mountpoint {
				t.Errorf("%+v is not found at its mount point", m)
			}
			if found := table.ByID(uint64(m.ID)); m.ID >= 0 && (found == nil || found.ID != m.ID) {
				t.Errorf("%+v is not found by its id", m)
			}
			if len(table.Under(m.Mountpoint)) == 0 {
				t.Errorf("%+v is not found under its mount point", m)
			}
			if dir, err := Locate(m, "/srv"); err == nil {
				_ = table.WithinDirectory(dir)
			}
		}
	})
}

func FuzzValidatePath(f *testing.F) {
	f.Add("/srv/data")
	f.Add("/srv/../etc")
	f.Fuzz(func(t *testing.T, path string) {
		if ValidatePath(path) == nil && (path[0] != '/' || strings.Contains(path+"/", "/../")) {
			t.Errorf("%q is valid", path)
		}
	})
}
