package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mostStorage is about how many instances there are at most at a time.
const mostStorage = 14

// nextOperation chooses the next request, for storage without a pending one. It returns nil if
// no request is possible now, because all storage is being removed.
func (s *soak) nextOperation(flying []*operation) (*operation, error) {
	for range 1000 {
		o, err := s.choose(flying)
		if o != nil || err != nil {
			return o, err
		}
	}
	return nil, nil
}

// choose chooses a sort of request at random. It returns nil if there is no storage for it.
func (s *soak) choose(flying []*operation) (*operation, error) {
	var attached, detached, growing []*instance
	there := 0
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		i := s.all[name]
		busy := func(o *operation) bool { return o.about(i) }
		if i.want == nil || slices.ContainsFunc(flying, busy) || slices.ContainsFunc(s.doubtful, busy) {
			continue
		}
		there++
		if i.want.attached {
			attached = append(attached, i)
		} else {
			detached = append(detached, i)
		}
		// XFS can grow again only when its previous growth is on disk, which takes half a
		// minute.
		again := i.filesystem == "xfs" && i.grown
		if i.want.size < 2*i.first && !again && (i.filesystem != "ext4" || s.growsExt4) {
			growing = append(growing, i)
		}
	}
	var o *operation
	switch n := s.rand.IntN(100); {
	case n < 25 && there < mostStorage, there == 0:
		return s.create()
	case n < 40:
		return s.nextSnapshot(append(attached, detached...), flying)
	case n < 52:
		o = change("detach", s.some(attached), func(w want) *want { w.attached = false; return &w })
	case n < 65:
		o = change("attach", s.some(detached), func(w want) *want { w.attached = true; return &w })
	case n < 80:
		if len(growing) > 0 {
			o = s.grow(growing[s.rand.IntN(len(growing))])
		}
	case n < 80+there:
		// A snapshot that is not made yet needs its storage.
		free := slices.DeleteFunc(append(attached, detached...), func(i *instance) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(s.snapshots)), func(one *snapshot) bool { return one.of == i && !one.settled })
		})
		o = change("remove", s.some(free), func(want) *want { return nil })
	}
	return s.perhapsWait(o), nil
}

// perhapsWait makes the command of an operation wait, or not.
func (s *soak) perhapsWait(o *operation) *operation {
	if o != nil && !o.cannotWait && s.rand.IntN(4) == 0 {
		o.args = append(o.args, "--wait", "--timeout", "30s")
	}
	return o
}

// some returns one to three of all, if there are any.
func (s *soak) some(all []*instance) []*instance {
	s.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), 1+s.rand.IntN(3))]
}

// change returns the operation of a command that takes names.
func change(verb string, all []*instance, wish func(want) *want) *operation {
	if len(all) == 0 {
		return nil
	}
	o := &operation{args: []string{verb}, after: map[*instance]*want{}}
	for _, i := range all {
		o.args = append(o.args, i.name)
		o.after[i] = wish(*i.want)
		o.mayBeRefused = o.mayBeRefused || verb == "attach" && i.settled == nil
	}
	return o
}

func (s *soak) grow(i *instance) *operation {
	w := *i.want
	w.size += i.grow
	size := strconv.FormatUint(w.size, 10) + "M"
	if s.rand.IntN(2) == 0 {
		size = "+" + strconv.FormatUint(i.grow, 10) + "M"
	}
	o := &operation{args: []string{"resize", i.name, size}, after: map[*instance]*want{i: &w}}
	// A filesystem grows when it is attached, and the command does not allow waiting for that.
	o.cannotWait = !w.attached
	return o
}

// create declares one to three kinds of storage in a file, some of them twice.
func (s *soak) create() (*operation, error) {
	o := &operation{after: map[*instance]*want{}}
	var file strings.Builder
	if s.driver != nil {
		file.WriteString(driverPools)
	}
	file.WriteString("storage:\n")
	for range 1 + s.rand.IntN(3) {
		k := s.kinds[s.rand.IntN(len(s.kinds))]
		count := 1
		if s.rand.IntN(4) == 0 {
			count = 2
		}
		name := fmt.Sprintf("%s-%d", k.name, s.rand.IntN(4*k.many)) // possibly a former name
		if s.count(k, o)+count > k.many || s.taken(name, o) {
			continue
		}
		size := k.least + uint64(s.rand.Int64N(int64(k.most-k.least+1)))
		mount := filepath.Join(s.mounts, name)
		file.WriteString(k.declaration(name, size, count, mount))
		for n := range count {
			i := newInstance(name, k, size, mount)
			if count > 1 {
				i.name, i.mount = fmt.Sprintf("%s/%d", name, n), fmt.Sprintf("%s/%d", mount, n)
			}
			o.after[i] = &want{attached: true, size: size}
		}
	}
	if len(o.after) == 0 {
		return nil, nil
	}
	return o, s.declare(o, file.String())
}

// declare makes the operation one that applies a file with the text.
func (s *soak) declare(o *operation, text string) error {
	for i := range o.after {
		s.all[i.name] = i
	}
	s.files++
	spec := filepath.Join(s.dir, fmt.Sprintf("spec-%d.yaml", s.files%8)) // some files are being read
	o.args = []string{"apply", "-f", spec}
	s.note("%s is %s", filepath.Base(spec), strings.ReplaceAll(text, "\n", " | "))
	return os.WriteFile(spec, []byte(text), 0o600)
}

// declaration returns the text in a file that declares storage of the kind.
func (k *kind) declaration(name string, size uint64, count int, mount string) string {
	text := fmt.Sprintf("- name: %s\n  directive: %s,%dM,%d\n", name, k.pool, size, count)
	if k.block() {
		return text + "  kind: block\n"
	}
	text += fmt.Sprintf("  kind: filesystem\n  mount: %s\n", mount)
	if k.onVolume() {
		text += fmt.Sprintf("  filesystem: %s\n", k.filesystem)
	}
	return text
}

// count returns how many instances of a kind there are, or soon will be.
func (s *soak) count(k *kind, o *operation) int {
	n := 0
	for _, i := range s.all {
		if i.kind == k {
			n++
		}
	}
	for i := range o.after {
		if i.kind == k {
			n++
		}
	}
	return n
}

// taken reports whether storage has the name, or had it a moment ago.
func (s *soak) taken(name string, o *operation) bool {
	has := func(i *instance) bool {
		// Storage that was recovered under another name keeps its mount point.
		own, _, _ := strings.Cut(i.name, recoveredSuffix)
		return i.name == name || own == name || strings.HasPrefix(own, name+"/") || strings.HasPrefix(name, own+"/")
	}
	for _, i := range s.all {
		if has(i) {
			return true
		}
	}
	for i := range o.after {
		if has(i) {
			return true
		}
	}
	return false
}
