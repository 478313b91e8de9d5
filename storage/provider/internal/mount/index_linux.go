package mount

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// index finds mounts of a table without looking at all of them.
type index struct {
	ids                   map[uint64]int // positions in the table
	paths, roots, sources keys
	btrfs                 keys
}

func newIndex(mounts []*mountinfo.Info) *index {
	i := &index{ids: make(map[uint64]int, len(mounts))}
	for at, m := range mounts {
		if _, ok := i.ids[uint64(m.ID)]; !ok {
			i.ids[uint64(m.ID)] = at
		}
		i.paths = append(i.paths, key{m.Mountpoint, at})
		i.roots = append(i.roots, key{rootKey(m.Major, m.Minor, m.Root), at})
		i.sources = append(i.sources, key{sourceKey(m.FSType, m.Source), at})
		if m.FSType == "btrfs" {
			i.btrfs = append(i.btrfs, key{m.Source, at})
		}
	}
	for _, k := range []keys{i.paths, i.roots, i.sources} {
		slices.SortFunc(k, func(a, b key) int { return cmp.Or(cmp.Compare(a.text, b.text), cmp.Compare(a.at, b.at)) })
	}
	return i
}

// rootKey and sourceKey join parts with a byte that none of them contains.
func rootKey(major, minor int, root string) string {
	return fmt.Sprintf("%d:%d\x00%s", major, minor, root)
}

func sourceKey(fsType, source string) string { return fsType + "\x00" + source }

// keys holds a text about each mount, sorted.
type keys []key

type key struct {
	text string
	at   int // the mount's position in the table
}

// equal returns the keys with a text.
func (k keys) equal(text string) keys {
	from, _ := slices.BinarySearchFunc(k, text, compareText)
	to, _ := slices.BinarySearchFunc(k, text+"\x00", compareText)
	return k[from:to]
}

// startingWith returns the keys whose text has a prefix.
func (k keys) startingWith(prefix string) keys {
	from, _ := slices.BinarySearchFunc(k, prefix, compareText)
	to, _ := slices.BinarySearchFunc(k[from:], prefix, func(k key, prefix string) int {
		if strings.HasPrefix(k.text, prefix) {
			return -1
		}
		return compareText(k, prefix)
	})
	return k[from : from+to]
}

// within returns the keys whose text ends with the given path or with one below it.
func (k keys) within(path string) []keys {
	if strings.HasSuffix(path, "/") { // the root
		return []keys{k.startingWith(path)}
	}
	return []keys{k.equal(path), k.startingWith(path + "/")}
}

func compareText(k key, text string) int { return cmp.Compare(k.text, text) }

// pick returns the mounts of keys, in the order of the table.
func (t *Table) pick(found ...keys) []*mountinfo.Info {
	var positions []int
	for _, k := range found {
		for _, key := range k {
			positions = append(positions, key.at)
		}
	}
	slices.Sort(positions)
	var mounts []*mountinfo.Info
	for _, at := range positions {
		mounts = append(mounts, t.mounts[at])
	}
	return mounts
}
