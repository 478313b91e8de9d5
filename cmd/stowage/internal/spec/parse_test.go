package spec_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/storage"
)

const good = `
storage:
  - name: data
    directive: loop,2G        # pool,size
    kind: filesystem
    mount: /srv/data
    filesystem: xfs
  - name: raw
    directive: fast,64M,3
    kind: block
    machine: web-1
  - name: scratch
    directive: 256M,tmpfs,2
    kind: filesystem
    machine: 0
    mount: /srv/scratch
pools:
  - name: fast
    provider: loop
    attributes: {colour: blue, depth: 3, cold: false}
  - name: plain
    provider: loop
`

func TestParseReadsAllFields(t *testing.T) {
	file, err := spec.Parse("good.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range file.Storage {
		got = append(got, fmt.Sprintf("%s %+v %s %q %q %q %+v", s.Name, s.Directive, s.Kind, s.Machine, s.Mount, s.Filesystem, s.Instances()))
	}
	for _, p := range file.Pools {
		got = append(got, fmt.Sprintf("%s %s %#v", p.Name, p.Provider, p.Attributes))
	}
	want := []string{
		`data {Pool:loop Size:2048 Count:1} filesystem "" "/srv/data" "xfs" [{Name:data Mount:/srv/data}]`,
		`raw {Pool:fast Size:64 Count:3} block "web-1" "" "" [{Name:raw/0 Mount:} {Name:raw/1 Mount:} {Name:raw/2 Mount:}]`,
		`scratch {Pool:tmpfs Size:256 Count:2} filesystem "0" "/srv/scratch" "" ` +
			`[{Name:scratch/0 Mount:/srv/scratch/0} {Name:scratch/1 Mount:/srv/scratch/1}]`,
		`fast loop storage.Attrs{"cold":false, "colour":"blue", "depth":3}`,
		`plain loop storage.Attrs{}`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestParseAcceptsEmptyLists(t *testing.T) {
	for _, text := range []string{"storage: []\n", "storage:\n", "pools: []\nstorage: ~\n", "--- {}\n"} {
		file, err := spec.Parse("f", []byte(text))
		if err != nil || len(file.Storage) != 0 || len(file.Pools) != 0 {
			t.Errorf("%q: %+v, %v", text, file, err)
		}
	}
}

func TestParseReadsMachine(t *testing.T) {
	for _, test := range []struct{ value, want string }{
		{"web-1", "web-1"}, {"db.example.com", "db.example.com"}, {"0x1f", "0x1f"},
		{"0", "0"}, {"17", "17"}, {`"17"`, "17"},
		{"", ""}, {"~", ""}, {`""`, ""},
	} {
		file, err := spec.Parse("f", []byte(one("machine: "+test.value)))
		if err != nil || file.Storage[0].Machine != test.want {
			t.Errorf("machine %s: %+v, %v, want %q", test.value, file, err, test.want)
		}
	}
}

// The same directory may be a mount point on several machines.
func TestParseAcceptsMountPointOnEachMachine(t *testing.T) {
	text := one("machine: web-1")
	for name, machine := range map[string]string{"more": "web-2", "unnamed": "", "numbered": "0"} {
		text += strings.Replace(fmt.Sprintf(second, "/srv/data"), "more", name, 1) + "    machine: " + machine + "\n"
	}
	if _, err := spec.Parse("f", []byte(text)); err != nil {
		t.Error(err)
	}
}

// one returns a file with one storage entry. Each line "field: value" replaces the line of
// that field, or is added.
func one(lines ...string) string {
	fields := []string{"name: data", "directive: loop,2G", "kind: filesystem", "mount: /srv/data"}
	for _, line := range lines {
		field, _, _ := strings.Cut(line, ":")
		found := false
		for i := range fields {
			if strings.HasPrefix(fields[i], field+":") {
				fields[i], found = line, true
			}
		}
		if !found {
			fields = append(fields, line)
		}
	}
	return "storage:\n  - " + strings.Join(fields, "\n    ") + "\n"
}

func block(lines ...string) string {
	return strings.Replace(one(append([]string{"kind: block"}, lines...)...), "    mount: /srv/data\n", "", 1)
}

func pool(fields string) string { return "pools:\n  - " + fields + "\n" }

func manyLabels(count int) string {
	texts := make([]string, count)
	for n := range texts {
		texts[n] = fmt.Sprintf("n%d: a", n)
	}
	return strings.Join(texts, ", ")
}

const second = `  - name: more
    directive: loop,1G
    kind: filesystem
    mount: %s
`

// Promise S9.
func TestParseRefusesBadInput(t *testing.T) {
	for _, test := range []struct {
		about, text, want string
	}{
		// The form of the file.
		{"empty file", "", "f.yaml:1: the file is empty: write `storage:` and a list"},
		{"only a comment", "# later\n", "f.yaml:1: the file is empty: write `storage:` and a list"},
		{"not YAML", "storage:\n  - name: [\n", "f.yaml:2: did not find expected node content"},
		{"binary", "storage: \x00\n", "f.yaml: control characters are not allowed"},
		{"two documents", "storage: []\n---\nstorage: []\n", "f.yaml:2: a second document: put each in its own file"},
		{"not a mapping", "- a\n", "f.yaml:1: the file: not a mapping: write `field: value` lines (storage, pools)"},
		{"unknown section", "\nvolumes: []\n", `f.yaml:2: the file: unknown field "volumes": the fields are storage, pools`},
		{"section twice", "storage: []\nstorage: []\n", "f.yaml:2: the file: storage: already given on line 1"},
		{"not a list", "storage:\n  name: data\n", "f.yaml:1: the file: storage: not a list: write each item after a dash"},
		{"alias", "storage: &a []\npools: *a\n", "f.yaml:2: an alias (*a): write the value out"},
		{"too deep", "storage: " + strings.Repeat("[", spec.MaxBytes-20), "f.yaml: exceeded max depth of 10000"},
		{"too large", strings.Repeat("#", spec.MaxBytes+1), "f.yaml: the file is larger than 1 MiB"},

		// Entries.
		{"an item that is no mapping", "storage:\n  - data\n",
			"f.yaml:2: storage[0]: not a mapping: write `field: value` lines (name, directive, kind, from, asker, attached, labels, machine, machine-labels, mount, filesystem, mkfs-options, mount-options)"},
		{"unknown field", one("sise: 2G"),
			`f.yaml:6: storage[0]: unknown field "sise": the fields are name, directive, kind, from, asker, attached, labels, machine, machine-labels, mount, filesystem, mkfs-options, mount-options`},
		{"field whose name is a list", "storage:\n  - ? [a]\n    : b\n",
			"f.yaml:2: storage[0]: a field whose name is not a word: the fields are name, directive, kind, from, asker, attached, labels, machine, machine-labels, mount, filesystem, mkfs-options, mount-options"},
		{"field twice", "storage:\n  - name: a\n    name: b\n", "f.yaml:3: storage[0]: name: already given on line 2"},
		{"field that is no string", one("directive: 2"), `f.yaml:3: storage data: directive: not a string: write it in quotes, "2"`},
		{"field that is a list", one("mount: [/srv]"), "f.yaml:5: storage data: mount: not a string"},

		// Names.
		{"no name", one("name:"), "f.yaml:2: storage[0]: name: missing"},
		{"upper case", one("name: Data"),
			`f.yaml:2: storage[0]: name: "Data" is not a name: a lower-case letter, then at most 62 lower-case letters, digits and hyphens`},
		{"path as name", one("name: ../x"),
			`f.yaml:2: storage[0]: name: "../x" is not a name: a lower-case letter, then at most 62 lower-case letters, digits and hyphens`},
		{"long name", one("name: " + strings.Repeat("a", 64)),
			`f.yaml:2: storage[0]: name: "` + strings.Repeat("a", 64) + `" is not a name: a lower-case letter, then at most 62 lower-case letters, digits and hyphens`},
		{"very long name", one("name: " + strings.Repeat("a", 200)),
			`f.yaml:2: storage[0]: name: "` + strings.Repeat("a", 80) + `…" is not a name: a lower-case letter, then at most 62 lower-case letters, digits and hyphens`},
		{"name used twice", one() + strings.Replace(fmt.Sprintf(second, "/srv/more"), "more", "data", 1),
			"f.yaml:6: storage data: name: already used on line 2"},

		// Directives.
		{"no directive", one("directive: ''"), "f.yaml:3: storage data: directive: missing: write POOL,SIZE such as loop,2G"},
		{"two sizes", one("directive: loop,2G,3G"), "f.yaml:3: storage data: directive: storage size is already set to 2048, new value 3072 not valid"},
		{"no pool", one("directive: 2G"), `f.yaml:3: storage data: directive: "2G" names no pool: write POOL,SIZE such as loop,2G`},
		{"no size", one("directive: tmpfs"), `f.yaml:3: storage data: directive: "tmpfs" gives no size: write POOL,SIZE such as tmpfs,2G`},
		{"too many", one("directive: loop,1M,100001"), "f.yaml:3: storage data: directive: the file asks for more than 100000 instances"},
		{"too many in total", one("directive: loop,1M,99999") + strings.Replace(fmt.Sprintf(second, "/srv/more"), "1G", "1G,2", 1),
			"f.yaml:7: storage more: directive: the file asks for more than 100000 instances"},

		// Kinds.
		{"no kind", one("kind: ~"), "f.yaml:4: storage data: kind: missing: write block or filesystem"},
		{"unknown kind", one("kind: disk"), `f.yaml:4: storage data: kind: "disk" is not a kind: write block or filesystem`},

		// Machines.
		{"bad machine", one("machine: web_1"), `f.yaml:6: storage data: machine: "web_1" is neither the name nor the number of a machine: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends`},
		{"bad number", one("machine: 007"), `f.yaml:6: storage data: machine: "007" is neither the name nor the number of a machine: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends`},
		{"very long machine", one("machine: " + strings.Repeat("a", 200)), `f.yaml:6: storage data: machine: "` + strings.Repeat("a", 80) +
			`…" is neither the name nor the number of a machine: a name has up to 63 lower-case letters, digits, hyphens and dots, with a letter or digit at both ends`},
		{"a snapshot with a wrong name", one("from: A"), `f.yaml:6: storage data: from: "A" is not a name: a lower-case letter, then at most 62 lower-case letters, digits and hyphens`},
		{"labels for a machine", one("machine: web\n    machine-labels: zone=a"), `f.yaml:7: storage data: machine-labels: they choose a machine: write machine: any, or leave them out`},
		{"labels without a machine", one("machine-labels: zone=a"), `f.yaml:6: storage data: machine-labels: they choose a machine: write machine: any, or leave them out`},
		{"a wrong label", one("machine: any\n    machine-labels: zone"), `f.yaml:7: storage data: machine-labels: label "zone": write KEY=VALUE, such as zone=a, of lower-case letters, digits, dots, slashes, underscores and hyphens`},
		{"asker without a name", one("asker: kubernetes"), `f.yaml:6: storage data: asker: "kubernetes" is not WAY/NAME, such as kubernetes/pvc-1: name "": 1 to 128 bytes of text in UTF-8, without control characters not valid`},
		{"asker of several", "storage:\n  - name: data\n    directive: loop,2G,2\n    kind: block\n    asker: csi/a/b\n", "f.yaml:5: storage data: asker: a program asks for one instance at a time: leave the count out of the directive"},
		{"attached as a word", one("attached: later"), "f.yaml:6: storage data: attached: write true or false"},
		{"attached as a list", one("attached: [true]"), "f.yaml:6: storage data: attached: write true or false"},
		{"labels that are no mapping", one("labels: zone=a"), "f.yaml:6: storage data: labels: not a mapping: write `key: value` lines under it"},
		{"a label that is a number", one("labels: {zone: a, rack: 1}"), `f.yaml:6: storage data: labels: "rack" is not a string: write it in quotes, "1"`},
		{"a label that is a list", one("labels:\n      zone: a\n      rack: [a]"), `f.yaml:8: storage data: labels: a key or a value that is not a string`},
		{"a label in upper case", one("labels:\n      zone: A"), `f.yaml:7: storage data: labels: label "zone=A": write KEY=VALUE, such as zone=a, of lower-case letters, digits, dots, slashes, underscores and hyphens`},
		{"a label given twice", one("labels: {zone: a, zone: b}"), `f.yaml:6: storage data: labels: label "zone" is given twice`},
		{"too many labels", one("labels: {" + manyLabels(65) + "}"), `f.yaml:6: storage data: labels: 65 labels, where at most 64 labels are allowed`},
		{"machine that is a fraction", one("machine: 1.5"), `f.yaml:6: storage data: machine: not a string: write it in quotes, "1.5"`},
		{"machine that is a list", one("machine: [web-1]"), "f.yaml:6: storage data: machine: not a string"},

		// Mount points.
		{"no mount point", one("mount: ''"), "f.yaml:5: storage data: mount: missing: write the directory to mount the filesystem on"},
		{"mount of a block device", one("kind: block"),
			"f.yaml:5: storage data: mount: a block device is not mounted: leave it out, or write kind: filesystem"},
		{"relative", one("mount: srv/data"), `f.yaml:5: storage data: mount: "srv/data" is not absolute: begin it with /`},
		{"with dots", one("mount: /srv/../etc"), `f.yaml:5: storage data: mount: "/srv/../etc" is not in its shortest form: write "/etc"`},
		{"with a slash at the end", one("mount: /srv/data/"),
			`f.yaml:5: storage data: mount: "/srv/data/" is not in its shortest form: write "/srv/data"`},
		{"with a control character", one(`mount: "/srv/\e[2J"`), `f.yaml:5: storage data: mount: "/srv/\x1b[2J" holds control characters`},
		{"too long", one("mount: /" + strings.Repeat("a", 4095)), "f.yaml:5: storage data: mount: longer than 4095 bytes"},
		{"long name in a path", one("mount: /srv/" + strings.Repeat("a", 256)),
			`f.yaml:5: storage data: mount: "/srv/` + strings.Repeat("a", 75) + `…" holds a name longer than 255 bytes`},
		{"the root", one("mount: /"), "f.yaml:5: storage data: mount: / belongs to the system: choose another directory"},
		{"inside /proc", one("mount: /proc/1"), `f.yaml:5: storage data: mount: "/proc/1" belongs to the system: mount outside /proc`},
		{"/dev", one("mount: /dev"), `f.yaml:5: storage data: mount: "/dev" belongs to the system: mount outside /dev`},
		{"same mount point", one() + fmt.Sprintf(second, "/srv/data"),
			`f.yaml:9: storage more: mount: "/srv/data" is already the mount point of data`},
		{"same mount point on a machine", one("machine: web-1") + fmt.Sprintf(second, "/srv/data") + "    machine: web-1\n",
			`f.yaml:10: storage more: mount: "/srv/data" is already the mount point of data`},
		{"inside another", one() + fmt.Sprintf(second, "/srv/data/deep/more"),
			`f.yaml:9: storage more: mount: "/srv/data/deep/more" is inside "/srv/data", the mount point of data`},
		{"above another", one() + fmt.Sprintf(second, "/srv"),
			`f.yaml:9: storage more: mount: "/srv" would hide "/srv/data", the mount point of data`},
		{"above another's instances", one("directive: loop,1G,2") + fmt.Sprintf(second, "/srv/data"),
			`f.yaml:9: storage more: mount: "/srv/data" would hide "/srv/data/0", the mount point of data/0`},

		// Filesystems.
		{"filesystem of a block device", block("filesystem: ext4"),
			"f.yaml:5: storage data: filesystem: a block device has none: leave it out, or write kind: filesystem"},
		{"options of a block device", block("mkfs-options: nodesize=4096"),
			"f.yaml:5: storage data: mkfs-options: a block device has none: leave it out, or write kind: filesystem"},
		{"options that are no string", one("mount-options: [noatime]"), "f.yaml:6: storage data: mount-options: not a string"},

		// Pools.
		{"pool without a name", pool("provider: loop"), "f.yaml:2: pools[0]: name: missing"},
		{"bad pool name", pool("name: 9fast"), `f.yaml:2: pools[0]: name: "9fast" is not a pool name: a letter, then letters, digits and hyphens`},
		{"long pool name", pool("name: " + strings.Repeat("a", 256)),
			`f.yaml:2: pools[0]: name: "` + strings.Repeat("a", 80) + `…" is longer than 255 bytes`},
		{"pool without a provider", pool("name: fast"), "f.yaml:2: pool fast: provider: missing"},
		{"pool twice", pool("{name: fast, provider: loop}") + "  - {name: fast, provider: tmpfs}\n",
			"f.yaml:3: pool fast: name: already used on line 2"},
		{"attributes that are no mapping", pool("{name: fast, provider: loop, attributes: [a]}"),
			"f.yaml:2: pool fast: attributes: not a mapping: write `key: value` lines under it"},
		{"attribute that is a list", pool("{name: fast, provider: loop, attributes: {a: [b]}}"),
			`f.yaml:2: pool fast: attributes: "a" is not a string, a whole number or a boolean`},
		{"attribute twice", pool("{name: fast, provider: loop, attributes: {a: 1, a: 2}}"),
			`f.yaml:2: pool fast: attributes: "a" is given twice`},
	} {
		t.Run(test.about, func(t *testing.T) {
			file, err := spec.Parse("f.yaml", []byte(test.text))
			if err == nil {
				t.Fatalf("accepted as %+v", file)
			}
			if err.Error() != test.want {
				t.Errorf("\ngot  %s\nwant %s", err, test.want)
			}
			if !errors.Is(err, errors.NotValid) {
				t.Errorf("%v does not satisfy errors.IsNotValid", err)
			}
		})
	}
}

// A user who repairs a file sees all that is wrong with it at once.
func TestParseReportsAllErrors(t *testing.T) {
	const text = `pools:
  - {name: fast}
storage:
  - name: data
    directive: loop,64m
    kind: disk
    from: NOTHING
    mount: relative
  - name: raw
    directive: loop,1M
    kind: block
    mount: /srv/raw
  - size: 3
  - name: data
    directive: loop,1M
    kind: block
`
	want := []string{
		"f.yaml:2: pool fast: provider: missing",
		`f.yaml:5: storage data: directive: unrecognized storage directive field "64m" (want a pool, a count or a size such as 512M, 10G, 10Gi or 10GiB, with a unit of M, G, T, P, E, Z or Y) not valid`,
		`f.yaml:6: storage data: kind: "disk" is not a kind: write block or filesystem`,
		`f.yaml:7: storage data: from: "NOTHING" is not a name: a lower-case letter, then at most 62 lower-case letters, digits and hyphens`,
		"f.yaml:12: storage raw: mount: a block device is not mounted: leave it out, or write kind: filesystem",
		`f.yaml:13: storage[2]: unknown field "size": the fields are name, directive, kind, from, asker, attached, labels, machine, machine-labels, mount, filesystem, mkfs-options, mount-options`,
		"f.yaml:14: storage data: name: already used on line 4",
	}
	_, err := spec.Parse("f.yaml", []byte(text))
	var all *spec.Errors
	if !errors.As(err, &all) || !errors.Is(err, errors.NotValid) {
		t.Fatalf("got %v", err)
	}
	if got := all.Lines(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	_, err = spec.Parse("f.yaml", []byte("storage:\n"+strings.Repeat("  - x\n", 25)))
	if !errors.As(err, &all) || len(all.Lines()) != 21 || all.Lines()[20] != "and 5 more errors" {
		t.Errorf("25 errors: got %v", err)
	}
}

func TestParseNamesZeroSizes(t *testing.T) {
	for directive, want := range map[string]string{
		"loop,0":    `"loop,0" gives a size of zero: write POOL,SIZE such as loop,2G`,
		"loop,0M":   `"loop,0M" gives a size of zero: write POOL,SIZE such as loop,2G`,
		"loop,0.0G": `"loop,0.0G" gives a size of zero: write POOL,SIZE such as loop,2G`,
		"loop,3":    `"loop,3" gives no size: write POOL,SIZE such as loop,2G`,
		"loop,1M,0": `storage instance count "0" (must be greater than zero) not valid`,
	} {
		_, err := spec.Parse("f", []byte("storage: [{name: a, kind: block, directive: '"+directive+"'}]"))
		if want = "f:1: storage a: directive: " + want; err == nil || err.Error() != want {
			t.Errorf("%s: got  %v\nwant %s", directive, err, want)
		}
	}
}

func TestMountsAddRefusesNestedPaths(t *testing.T) {
	var mounts spec.Mounts
	for _, p := range []string{"/a/b/c", "/a/b/d", "/ab"} {
		if err := mounts.Add(p, p); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"/a", "/a/b", "/a/b/c", "/a/b/c/d/e", "/ab/c"} {
		if checked, added := mounts.Check(p), mounts.Add(p, p); checked == nil || added == nil || checked.Error() != added.Error() {
			t.Errorf("%s: checked %v, added %v", p, checked, added)
		}
	}
	if err := mounts.Check("/a/bc"); err != nil {
		t.Error(err)
	}
	if err := mounts.Add("/a/bc", "x"); err != nil {
		t.Error(err)
	}
}

// FuzzParse checks that an accepted file has the properties that later steps rely on.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(one("directive: loop,1M,3", "filesystem: ext4")))
	f.Add([]byte(block()))
	f.Add([]byte(one("machine: web-1") + fmt.Sprintf(second, "/srv/data") + "    machine: 0\n"))
	f.Add([]byte(one("machine: any")))
	f.Add([]byte(one("machine: 0x1f")))
	f.Add([]byte(pool("{name: fast, provider: loop, attributes: {a: 1}}")))
	f.Add([]byte("storage: &a [*a]\n"))
	f.Add([]byte("{storage: [{name: a, directive: 'loop,1E,1'}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := spec.Parse("f", data)
		if err != nil {
			if !errors.Is(err, errors.NotValid) || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("error %q", err)
			}
			return
		}
		instances := 0
		mounts := map[string]*spec.Mounts{}
		for _, s := range file.Storage {
			if s.Machine != "" && !s.IsAnywhere() && !machine.IsName(s.Machine) && !machine.IsNumber(s.Machine) {
				t.Errorf("%s is on machine %q", s.Name, s.Machine)
			}
			if mounts[s.Machine] == nil {
				mounts[s.Machine] = &spec.Mounts{}
			}
			for _, i := range s.Instances() {
				instances++
				if (s.Kind == storage.StorageKindFilesystem) != (i.Mount != "") {
					t.Errorf("%s is mounted on %q", i.Name, i.Mount)
				}
				if i.Mount == "" {
					continue
				}
				if err := mounts[s.Machine].Add(i.Mount, i.Name); err != nil {
					t.Error(err)
				}
			}
			if s.Directive.Count == 0 || s.Directive.Size == 0 || s.Directive.Pool == "" {
				t.Errorf("directive %+v", s.Directive)
			}
		}
		if instances > spec.MaxInstances {
			t.Errorf("%d instances", instances)
		}
	})
}

// Labels that are left out stay as they are, and an empty mapping removes them.
func TestParseLabels(t *testing.T) {
	for text, want := range map[string]map[string]string{
		one(): nil, one("labels:"): nil, one("labels: {}"): {}, one(`labels: {tier: fast, rack: "1"}`): {"tier": "fast", "rack": "1"},
	} {
		file, err := spec.Parse("f.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := file.Storage[0].Labels; !maps.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s has the labels %#v, want %#v", text, got, want)
		}
	}
}
