package csi_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stowage-io/stowage/cmd/stowage/internal/csi"
	"github.com/stowage-io/stowage/testing/clocktest"
)

// filler fills messages from the input of a fuzz test. When there is no more input, it leaves fields out.
type filler struct {
	data []byte
	// words are texts for fields by a part of their names; "" is for all others. dir is where paths are.
	words map[string][]string
	dir   string
	// leave is how many of four fields are left as they are.
	leave int
}

func (f *filler) next() int {
	if len(f.data) == 0 {
		return 0
	}
	b := f.data[0]
	f.data = f.data[1:]
	return int(b)
}

// maxDepth and maxElements bound messages.
const (
	maxDepth    = 6
	maxElements = 3
)

func (f *filler) message(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for n := range fields.Len() {
		field := fields.Get(n)
		if f.next()%4 < f.leave || depth == 0 {
			continue
		}
		switch {
		case field.IsMap():
			entries := m.Mutable(field).Map()
			for range f.next() % (maxElements + 1) {
				key := protoreflect.ValueOfString(f.text(field.Name() + "_key")).MapKey()
				entries.Set(key, protoreflect.ValueOfString(f.text(field.Name())))
			}
		case field.IsList():
			list := m.Mutable(field).List()
			for range f.next() % (maxElements + 1) {
				value := list.NewElement()
				list.Append(f.value(field, value, depth))
			}
		default:
			m.Set(field, f.value(field, m.NewField(field), depth))
		}
	}
}

// value returns a value for a field, whose empty one is given.
func (f *filler) value(field protoreflect.FieldDescriptor, empty protoreflect.Value, depth int) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.MessageKind:
		f.message(empty.Message(), depth-1)
		return empty
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(f.text(field.Name()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(f.next()%2 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.next() % (field.Enum().Values().Len() + 1))) // the last is unknown
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(f.number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(f.number()))
	default: // bytes, and what no request has
		return empty
	}
}

// number returns a number of any size and sign.
func (f *filler) number() int64 {
	n := int64(f.next()) << (f.next() % 63)
	if f.next()%8 == 0 {
		return -n
	}
	return n - int64(f.next()%2)
}

// text returns a text for a field: one of its words, or any.
func (f *filler) text(field protoreflect.Name) string {
	longest := ""
	for part := range f.words {
		if strings.Contains(string(field), part) && len(part) > len(longest) {
			longest = part
		}
	}
	words := f.words[longest]
	if n := f.next(); n%8 != 0 {
		return words[(n-1)%len(words)]
	}
	raw := make([]byte, f.next()%200)
	for n := range raw {
		raw[n] = byte(f.next())
	}
	text := strings.ToValidUTF8(string(raw), "?") // a message with others cannot be sent
	if strings.Contains(string(field), "path") {
		return f.dir + "/" + text // the driver may do to it what it does to a path of its caller
	}
	return text
}

// possible are the codes that input can lead to. Others say that the driver has failed.
var possible = []codes.Code{
	codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.ResourceExhausted, codes.FailedPrecondition,
	codes.Aborted, codes.OutOfRange, codes.Unimplemented,
}

// FuzzRPCs makes calls of all RPCs with requests of any kind, and with valid ones in which some fields are others,
// on a driver with some volumes. None panics, each
// has a code that its input explains, answers have what the specification requires, and nothing is touched but
// the paths that a request names.
func FuzzRPCs(f *testing.F) {
	all, required := rpcs(), requiredFields(f)
	for n := range all {
		for _, fill := range []byte{0, 1, 2, 3, 5, 7, 9, 255} {
			f.Add(append([]byte{byte(n), fill}, slices.Repeat([]byte{fill}, 60)...))
		}
		rising := []byte{byte(n), 1}
		for b := range 200 {
			rising = append(rising, byte(b*7+1))
		}
		f.Add(rising)
		if all[n].Name() == "CreateVolume" {
			f.Add([]byte{byte(n), 0, 3, 1})                                        // of a name that is taken
			f.Add([]byte{byte(n), 0, 0, 3, 3, 1, 0, 1, 0, 3, 1, 20, 1, 0})         // in a limit of 1 MiB
			f.Add([]byte{byte(n), 0, 0, 3, 3, 1, 50, 1, 0})                        // of 1 PiB
			f.Add([]byte{byte(n), 0, 0, 0, 0, 0, 0, 0, 3, 3, 1, 3, 1, 3, 1, 3, 1}) // on the first machine
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		volumes, log := newStore(), &logger{}
		call := csi.Handlers(csi.Config{
			Settings: csi.Settings{SocketPath: "/none", Machine: "here"}, Controller: volumes, Node: volumes, Clock: clocktest.New(), Logger: log,
		})
		create := func(name string, c *spec.VolumeCapability) string {
			made, err := call(t.Context(), spec.Controller_CreateVolume_FullMethodName, request(name, func(r *spec.CreateVolumeRequest) {
				r.VolumeCapabilities = []*spec.VolumeCapability{c}
			}))
			must(t, err)
			return made.(*spec.CreateVolumeResponse).GetVolume().GetVolumeId()
		}
		staged, detached := create("staged", block(writer)), create("detached", mount(writer, ""))
		must(t, volumes.Attach(t.Context(), staged, "here"))
		stage := &spec.NodeStageVolumeRequest{VolumeId: staged, StagingTargetPath: "/staging", VolumeCapability: block(writer)}
		root := t.TempDir()
		given, outside := filepath.Join(root, "given"), filepath.Join(root, "outside")
		for _, dir := range []string{given, outside, filepath.Join(outside, "empty"), filepath.Join(given, "target"), filepath.Join(given, "full", "a")} {
			must(t, os.MkdirAll(dir, 0o700))
		}
		for _, file := range []string{filepath.Join(outside, "empty-file"), filepath.Join(given, "file"), filepath.Join(given, "full", "b")} {
			must(t, os.WriteFile(file, nil, 0o600))
		}
		must(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o600))
		must(t, os.Symlink(outside, filepath.Join(given, "link")))
		before := tree(t, outside)
		input := &filler{data: data, dir: given, words: map[string][]string{
			"":          {"staged", "detached", "", "here", "*", strings.Repeat("x", 129), "%s", "\x00"},
			"volume_id": {staged, detached, "none", strings.ToUpper(staged)},
			"path": {
				"/staging", given + "/target", given + "/file", given + "/link", given + "/link/empty", given + "/link/empty-file", given + "/full",
				given + "/full/..", given + "/../outside/empty", given + "/new/target", "relative", "/", ".", "", given + "/",
			},
			"parameters":     {"loop", "none", "-m 1"},
			"parameters_key": {"pool", "mkfs-options", "csi.storage.k8s.io/pvc/name", "colour"},
			"segments":       {"here", "there", "full"},
			"segments_key":   {"stowage.io/machine", "zone"},
			"fs_type":        {"ext4", "xfs", "", "ntfs"},
			"mount_flags":    {"ro", "noatime", "discard", "", "ro,discard", "bind"},
			"token":          {staged, "", "x", "ffffffff-ffff-ffff-ffff-ffffffffffff"},
		}}
		for len(input.data) > 0 {
			r := all[input.next()%len(all)]
			request := newMessage(t, r.Input())
			input.leave = 1
			if example := valid[string(r.Name())]; example != nil && input.next()%2 == 0 {
				request, input.leave = example(&volume{id: staged, stage: stage}), 3
			}
			input.message(request.ProtoReflect(), maxDepth)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			response, err := call(ctx, r.path(), request)
			cancel()
			if code := codeOf(err); !slices.Contains(possible, code) {
				t.Errorf("%s {%v}: %v", r.Name(), request, err)
			}
			if err == nil {
				checkAnswer(t, required, string(r.Name()), response.ProtoReflect())
			}
			if after := tree(t, outside); after != before {
				t.Errorf("%s {%v}: outside of the caller's directory was\n%s, and now is\n%s", r.Name(), request, before, after)
			}
		}
		if text := log.text(); strings.Contains(text, "ERROR") {
			t.Errorf("logged: %s", text)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree describes what is below a directory.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var text strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s %s %d %v\n", path, info.Mode(), info.Size(), info.ModTime())
		return nil
	}))
	return text.String()
}

// checkAnswer checks that the fields of an answer that the specification requires are set. A number or a truth
// value may be zero.
func checkAnswer(t testing.TB, required map[string][]protoreflect.Name, rpc string, m protoreflect.Message) {
	t.Helper()
	for _, name := range required[string(m.Descriptor().Name())] {
		field := m.Descriptor().Fields().ByName(name)
		if field == nil {
			continue // a field of a message in this one
		}
		if kind := field.Kind(); (kind == protoreflect.StringKind || kind == protoreflect.MessageKind) && !m.Has(field) {
			t.Errorf("%s: the answer has no %s: %v", rpc, field.FullName(), m.Interface())
		}
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Kind() != protoreflect.MessageKind || field.IsMap():
		case field.IsList():
			for n := range value.List().Len() {
				checkAnswer(t, required, rpc, value.List().Get(n).Message())
			}
		default:
			checkAnswer(t, required, rpc, value.Message())
		}
		return true
	})
}
