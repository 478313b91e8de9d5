//go:build linux && faults

package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

// The storage directory is read-only.
// Fault F12.
func TestReadOnlyDirectory(t *testing.T) {
	r := begin(t, "read-only storage directory")
	r.sampled = true
	atSteps(t, r, func(t *testing.T, s stepTest) {
		s.at(t, r, "read-only", func(s *stepTest) bool {
			dir := filepath.Join(s.Base, "storage")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				s.Fatal(err)
			}
			command(s, "mount", "--bind", dir, dir)
			command(s, "mount", "-o", "remount,bind,ro", dir)
			for range 2 {
				o := task{World: s.world, Op: s.op.name}.run(s)
				r.steps++
				switch {
				case o.err == nil:
					s.Fatalf("the operation succeeded in a read-only directory")
				case !saysOneOf(o.err, "read-only file system"):
					s.Errorf("the error does not name the cause: %v", o.err)
				case o.final:
					s.Errorf("the error is permanent, although the directory may become writable: %v", o.err)
				}
			}
			command(s, "umount", dir)
			s.repeat()
			s.verify()
			return false
		})
	})
}

// The host does not pass loop devices to the container.
// Fault F13.
// Story D4.
func TestNoLoopControl(t *testing.T) {
	r := begin(t, "no loop-control")
	devicetest.RequireRoot(t)
	for _, op := range []operation{operations[0], operations[1]} {
		r.run(t, op.name, func(t *testing.T) {
			b := newBase(t, baseSize("loop", 1))
			s := stepTest{base: b, world: newWorld("loop", b.dir, 1), op: op}
			s.setup()
			for range 2 {
				o := task{World: s.world, Op: op.name, Fault: "no loop-control", Namespace: true}.run(t)
				r.steps++
				if o.err == nil || !o.final || !saysOneOf(o.err, "/dev/loop-control") {
					t.Errorf("got %v, want not supported and the name of the missing device", o.err)
				}
				if loops, _ := loopsOf(b.dir); len(loops) > 0 {
					t.Errorf("attached: %v", loops)
				}
			}
			// Once the host does, the operation succeeds.
			s.repeat()
			s.verify()
			s.finish()
		})
	}
}

// foreign is a kind of foreign data on a device.
type foreign struct {
	name string
	put  func(t *testing.T, path string, size int64)
}

func foreignData() []foreign {
	made := func(program string, args ...string) func(*testing.T, string, int64) {
		return func(t *testing.T, path string, _ int64) { command(t, program, append(args, path)...) }
	}
	at := func(offset func(size int64) int64) func(*testing.T, string, int64) {
		return func(t *testing.T, path string, size int64) { writeAt(t, path, offset(size), contents(1)[:4096]) }
	}
	return []foreign{
		{"ext4", made("mkfs.ext4", "-q")},
		{"xfs", made("mkfs.xfs", "-q")},
		{"btrfs", made("mkfs.btrfs", "-q")},
		{"swap", made("mkswap")},
		{"GPT", func(t *testing.T, path string, size int64) { writeAt(t, path, 0, gpt(size)) }},
		{"GPT at the end only", func(t *testing.T, path string, size int64) {
			table := gpt(size)
			writeAt(t, path, size-512, table[512:1024])
		}},
		{"an MBR partition table", func(t *testing.T, path string, _ int64) {
			table := make([]byte, 512)
			table[446+4], table[446+8], table[446+13] = 0x83, 8, 64
			table[510], table[511] = 0x55, 0xaa
			writeAt(t, path, 0, table)
		}},
		{"random bytes at the beginning", at(func(int64) int64 { return 0 })},
		{"random bytes after the beginning", at(func(int64) int64 { return 4<<20 - 4096 })},
		{"random bytes before the end", at(func(size int64) int64 { return size - 4<<20 })},
		{"random bytes at the end", at(func(size int64) int64 { return size - 4096 })},
		{"one byte in the middle", func(t *testing.T, path string, size int64) { writeAt(t, path, size/2+12345, []byte{1}) }},
		{"one byte", func(t *testing.T, path string, _ int64) { writeAt(t, path, 12345, []byte{1}) }},
	}
}

// foreignSize is large enough for all filesystem types, in MiB.
const foreignSize = 320

// A filesystem is wanted on a device with foreign data.
// Fault F14.
// Story D2.
func TestForeignSignatures(t *testing.T) {
	r := begin(t, "foreign signatures: first and last 4 MiB as before")
	devicetest.RequireRoot(t)
	for _, foreign := range foreignData() {
		for _, kind := range formats() {
			if testing.Short() && kind != "ext4" {
				continue
			}
			r.run(t, foreign.name+" for "+kind, func(t *testing.T) {
				s := onDevice(t, kind)
				device, file := s.device(), filepath.Join(s.backing().dir(), "volumes", s.backing().id(0))
				foreign.put(t, device, foreignSize<<20)
				unix.Sync()
				before := edges(t, file)
				for range 2 {
					o := task{World: s.world, Op: "create"}.run(t)
					r.steps++
					if o.err == nil || !o.final || !saysOneOf(o.err, "refusing to format") || !saysOneOf(o.err, device) {
						t.Errorf("device %s: got %v, want not formatted", device, o.err)
					}
				}
				unix.Sync()
				if !bytes.Equal(before, edges(t, file)) {
					t.Fatal("the foreign data were changed")
				}
				s.removeVolumes()
			})
		}
	}
}

// A process is killed while it formats over data because a user asked for that. The
// request is for one call: without another request the data are unchanged, or the
// formatting that was begun is finished.
// Fault F14.
func TestKillWhileFormattingOnRequest(t *testing.T) {
	r := begin(t, "kill -9 while formatting over data on request")
	devicetest.RequireRoot(t)
	for _, kind := range formats() {
		if testing.Short() && kind != "ext4" {
			continue
		}
		for step, killed := 1, true; killed && step <= mostSteps; step++ {
			ok := r.run(t, fmt.Sprintf("%s %02d", kind, step), func(t *testing.T) {
				s := onDevice(t, kind)
				device, file := s.device(), filepath.Join(s.backing().dir(), "volumes", s.backing().id(0))
				command(t, "mkfs.btrfs", "-q", device)
				unix.Sync()
				before := edges(t, file)
				requested := s.world
				requested.Requested = true
				o := task{World: requested, Op: "create", Fault: "kill", Step: step}.run(t)
				t.Logf("kill at %q: killed %v, %v", o.last(), o.killed, o.err)
				r.steps++
				killed = o.killed
				if !killed && o.err != nil {
					t.Fatal(o.err)
				}
				if o = (task{World: s.world, Op: "create"}).run(t); o.err != nil {
					unix.Sync()
					if !saysOneOf(o.err, "refusing to format") || !bytes.Equal(before, edges(t, file)) {
						t.Fatalf("formatting is not finished, and the data are changed: %v", o.err)
					}
					s.must(requested, "create")
				}
				s.repeat()
				s.verify()
				s.finish()
			})
			killed = killed && ok
		}
	}
}

// A filesystem is wanted on a device that cannot be read.
// Fault F15.
// Story D2.
func TestUnreadableDevice(t *testing.T) {
	r := begin(t, "unreadable device: not formatted")
	devicetest.RequireRoot(t)
	for _, kind := range formats() {
		for name, size := range map[string]int64{"all of it": 0, "its end": foreignSize<<20 - 4096, "its middle and end": foreignSize << 19} {
			r.run(t, kind+" "+name, func(t *testing.T) {
				s := onDevice(t, kind)
				file := filepath.Join(s.backing().dir(), "volumes", s.backing().id(0))
				if err := os.Truncate(file, size); err != nil {
					t.Fatal(err)
				}
				o := task{World: s.world, Op: "create"}.run(t)
				r.steps++
				if o.err == nil || o.final || !saysOneOf(o.err, "cannot be proven blank", "input/output error") {
					t.Errorf("got %v, want not proven blank", o.err)
				}
				if err := os.Truncate(file, foreignSize<<20); err != nil {
					t.Fatal(err)
				}
				if got := edges(t, file); !bytes.Equal(got, make([]byte, len(got))) {
					t.Error("the unreadable device was written to")
				}
				// Once the device can be read, it is formatted.
				s.repeat()
				s.verify()
				s.finish()
			})
		}
	}
}

// The disk with the volumes fails while data are being written. The disk with the records
// works. The error is reported before the filesystem is unmounted, while somebody can
// still react.
// Fault F6.
func TestLostWrites(t *testing.T) {
	loseWrites(t, "ext4", "I/O errors of data not written yet, then detach")
}

// Fault F6.
func TestLostWritesOnXFS(t *testing.T) {
	loseWrites(t, "xfs", "I/O errors of data not written yet, then detach, on XFS")
}

func loseWrites(t *testing.T, fsType, fault string) {
	r := begin(t, fault)
	devicetest.RequireRoot(t)
	for _, kind := range formats() {
		r.run(t, kind, func(t *testing.T) {
			b, disk := newBase(t, 100), newBaseOf(t, fsType, baseSize(kind, 1))
			s := stepTest{base: b, world: newWorld(kind, b.dir, 1), op: operations[3]}
			s.Disk = disk.dir
			s.setup()
			if err := os.WriteFile(s.path(0)+"/late", contents(2), 0o600); err != nil {
				t.Fatal(err)
			}
			shutDown(disk.dir, shutDownNoLogFlush)
			o := task{World: s.world, Op: "detach"}.run(t)
			r.steps++
			if o.err == nil || o.final || !saysOneOf(o.err, "input/output error", "read-only file system", "structure needs cleaning") {
				t.Errorf("data were lost, and detaching returned %v", o.err)
			}
			if len(b.mounts()) != 1 {
				t.Errorf("mounted at %q after an error", b.mounts())
			}
			b.clear()
			disk.reboot()
			s.must(s.backing(), "attach")
			for range 2 {
				if o := (task{World: s.world, Op: "detach"}).run(t); o.err != nil {
					t.Fatal(o.err)
				}
			}
			s.finish()
			disk.checkLeaks()
		})
	}
}

// onDevice makes and attaches a volume for a filesystem of a kind.
func onDevice(t *testing.T, kind string) stepTest {
	t.Helper()
	b := newBase(t, foreignSize+100)
	s := stepTest{base: b, world: newWorld(kind, b.dir, 1), op: operations[0]}
	s.Size = foreignSize
	s.setup()
	return s
}

// device returns the device of the first volume.
func (s stepTest) device() string {
	s.Helper()
	devices, err := s.devices()
	if err != nil || len(devices.blocks) == 0 {
		s.Fatalf("devices %v, %v", devices, err)
	}
	return "/dev/" + devices.blocks[s.volume(0)].DeviceName
}

// removeVolumes removes volumes without filesystems.
func (s stepTest) removeVolumes() {
	s.Helper()
	s.must(s.world, "destroy")
	s.must(s.backing(), "detach")
	s.must(s.backing(), "destroy")
	s.checkLeaks()
}

// edges returns the first and last 4 MiB of a file.
func edges(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	both := make([]byte, 8<<20)
	_, err = io.ReadFull(f, both[:4<<20])
	_, serr := f.Seek(-4<<20, io.SeekEnd)
	_, rerr := io.ReadFull(f, both[4<<20:])
	if err := errors.Join(err, serr, rerr); err != nil {
		t.Fatal(err)
	}
	return both
}

func writeAt(t testing.TB, path string, at int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// gpt returns the first sectors of a disk with an empty GUID partition table.
func gpt(size int64) []byte {
	const sector = 512
	first := make([]byte, 34*sector)
	entry := first[446:]
	entry[4] = 0xee // protective
	binary.LittleEndian.PutUint32(entry[8:], 1)
	binary.LittleEndian.PutUint32(entry[12:], uint32(size/sector-1))
	first[510], first[511] = 0x55, 0xaa
	header := first[sector : sector+92]
	copy(header, "EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")
	for at, value := range map[int]int64{24: 1, 32: size/sector - 1, 40: 34, 48: size/sector - 34, 72: 2} {
		binary.LittleEndian.PutUint64(header[at:], uint64(value))
	}
	copy(header[56:], "0123456789abcdef")
	binary.LittleEndian.PutUint32(header[80:], 128)
	binary.LittleEndian.PutUint32(header[84:], 128)
	binary.LittleEndian.PutUint32(header[88:], crc32.ChecksumIEEE(first[2*sector:]))
	binary.LittleEndian.PutUint32(header[16:], crc32.ChecksumIEEE(header))
	return first
}
