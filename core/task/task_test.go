package task_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/task"
)

const owned = `"provider":"loop","kind":"volume","id":"a","model-uuid":"m","entity-uuid":"e"`

// An agent carries out what it knows completely, and nothing else.
func TestParseRequest(t *testing.T) {
	for text, want := range map[string]string{
		`{"inspect":{}}`:                                   "",
		`{"inspect":{"path":"/srv/a"}}`:                    "",
		`{"inspect":{"device":"loop7"}}`:                   "",
		`{"scan":{"after":"x"}}`:                           "",
		`{"tag":{"objects":[]}}`:                           "",
		`{"delete":{` + owned + `,"now":true}}`:            "",
		`{"tag":{"objects":[{` + owned + `}]}}`:            "",
		`{"import":{"provider":"rootfs","path":"/srv/a"}}`: "",
		`{"snapshot":{"provider":"loop","volume-id":"a","resource-tags":{"stowage-storage-uuid":"e","stowage-model-uuid":"m"}}}`:       "",
		`{"snapshot":{"provider":"rootfs","filesystem-id":"a","resource-tags":{"stowage-storage-uuid":"e","stowage-model-uuid":"m"}}}`: "",
		`{"snapshot":{"volume-id":"a"}}`:                                                                "without a provider",
		`{"snapshot":{"provider":"loop"}}`:                                                              "not of one volume or filesystem",
		`{"snapshot":{"provider":"loop","volume-id":"a","filesystem-id":"a"}}`:                          "not of one volume or filesystem",
		`{"snapshot":{"provider":"loop","volume-id":"a"}}`:                                              "without an owner",
		`{"look":{"objects":[{"provider":"loop","kind":"volume","id":"a"}],"entities":["volume-0-1"]}}`: "",
		`{"measure":{"filesystems":[{"provider":"rootfs","kind":"filesystem","id":"a"}]}}`:              "",
		`{"measure":{"filesystems":[` + strings.Repeat("{},", 500) + `{}]}}`:                            "more than 500 filesystems",
		`{"look":{"objects":[{"provider":"loop","kind":"snapshot","id":"a"}]}}`:                         `an object of kind "snapshot"`,
		`{"look":{"objects":[{"provider":"loop","kind":"volume"}]}}`:                                    `ID ""`,
		`{"look":{"entities":["a","b","c"]}}`:                                                           "more than 2",
		`{`:                                                                                             "unexpected EOF",
		`{}`:                                                                                            "not exactly one kind",
		`{"scan":{},"inspect":{}}`:                                                                      "not exactly one kind",
		`{"run":{"command":"sh"}}`:                                                                      "unknown field",
		`{"import":{"path":"/a","provider":"p","later":1}}`:                                             "unknown field",
		`{"inspect":{"path":"a"}}`:                                                                      `"a" is not an absolute path`,
		`{"inspect":{"path":"/a/../b"}}`:                                                                "not an absolute path in its shortest form",
		`{"inspect":{"path":"/a","device":"b"}}`:                                                        "both a path and a device",
		`{"inspect":{"device":"../a"}}`:                                                                 "not the name of a block device",
		`{"import":{"path":"/a"}}`:                                                                      "no provider",
		`{"import":{"provider":"p"}}`:                                                                   "not an absolute path",
		`{"import":{"provider":"p","path":"//a"}}`:                                                      "not an absolute path",
		`{"import":{"provider":"p","path":"/a","copy":true}}`:                                           "without a device or a copy",
		`{"import":{"provider":"p","path":"/a","volume":true,"device":".."}}`:                           "not the name of a block device",
		`{"delete":{"provider":"p","kind":"volume","id":"a","entity-uuid":"e"}}`:                        "without an owner",
		`{"delete":{"kind":"volume","id":"a","model-uuid":"m","entity-uuid":"e"}}`:                      "without a provider or an ID",
		`{"tag":{"objects":[{"provider":"p","kind":"machine","id":"a"}]}}`:                              `of kind "machine"`,
	} {
		r, err := task.ParseRequest([]byte(text))
		if want == "" {
			var kinds map[string]any
			if json.Unmarshal([]byte(text), &kinds); err != nil || kinds[string(r.Kind())] == nil {
				t.Errorf("%s: kind %q, %v", text, r.Kind(), err)
			}
		} else if !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Only what changes something has to wait for the other changes.
func TestKindChanges(t *testing.T) {
	for kind, want := range map[task.Kind]bool{
		task.KindInspect: false, task.KindScan: false, task.KindLook: false, task.KindMeasure: false, task.KindImport: true, task.KindTag: true, task.KindDelete: true,
		task.KindSnapshot: true, task.KindFlush: false,
	} {
		if kind.Changes() != want {
			t.Errorf("%s changes something: %v", kind, !want)
		}
	}
}
