//go:build linux

package mount

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func init() {
	// The same cases every time, unless the command line has another seed.
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
}

// TestTableFindsWhatASearchOfAllFinds compares each query with one that looks at every mount.
func TestTableFindsWhatASearchOfAllFinds(t *testing.T) {
	paths := []string{"/", "/a", "/a/b", "/a/b/c", "/a b", "/a-b", "/ab", "/b", "/a//deleted", "/a/b//deleted"}
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.SampledFrom(paths)
		var mounts []*mountinfo.Info
		for id := range rapid.IntRange(0, 12).Draw(t, "mounts") {
			mounts = append(mounts, &mountinfo.Info{
				ID: id + 20, Major: rapid.SampledFrom([]int{0, 7}).Draw(t, "major"), Minor: rapid.SampledFrom([]int{1, 11, 12}).Draw(t, "minor"),
				Root: path.Draw(t, "root"), Mountpoint: path.Draw(t, "mount point"),
				FSType: rapid.SampledFrom([]string{"ext4", "btrfs"}).Draw(t, "type"), Source: rapid.SampledFrom([]string{"none", "/nowhere"}).Draw(t, "source"),
			})
		}
		table := newTable(mounts)
		where, dir := path.Draw(t, "path"), Directory{major: 7, minor: 1, root: rapid.SampledFrom(paths[:8]).Draw(t, "directory")}
		ofDir := func(m *mountinfo.Info) bool { return m.Major == dir.major && m.Minor == dir.minor }
		for query, q := range map[string]struct {
			got  []*mountinfo.Info
			want func(*mountinfo.Info) bool
		}{
			"Under":    {table.Under(where), func(m *mountinfo.Info) bool { return within(m.Mountpoint, where) }},
			"OfSource": {table.OfSource("ext4", "none"), func(m *mountinfo.Info) bool { return m.FSType == "ext4" && m.Source == "none" }},
			"OfDevice": {table.OfDevice(7, 1), func(m *mountinfo.Info) bool {
				if m.FSType == "btrfs" {
					return slices.Contains(table.Devices(m), unix.Mkdev(7, 1))
				}
				return ofDir(m)
			}},
			"OfDirectory":     {table.OfDirectory(dir), func(m *mountinfo.Info) bool { return ofDir(m) && strings.TrimSuffix(m.Root, "//deleted") == dir.root }},
			"WithinDirectory": {table.WithinDirectory(dir), func(m *mountinfo.Info) bool { return ofDir(m) && within(m.Root, dir.root) }},
		} {
			var want []*mountinfo.Info
			for _, m := range mounts {
				if q.want(m) {
					want = append(want, m)
				}
			}
			if !slices.Equal(q.got, want) {
				t.Fatalf("%s: %+v, want %+v", query, q.got, want)
			}
		}
		for _, m := range mounts {
			if table.ByID(uint64(m.ID)) != m {
				t.Fatalf("mount %d is not found by its ID", m.ID)
			}
		}
	})
}
