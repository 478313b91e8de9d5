//go:build linux

package copytree

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/storage/provider/internal/devicetest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// acl is a POSIX ACL that gives the user 1234 read access: struct posix_acl_xattr_header and entries.
const acl = "\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\xd2\x04\x00\x00" +
	"\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"

// capabilities are those of a file that may use CAP_NET_RAW: struct vfs_cap_data, version 2.
const capabilities = "\x01\x00\x00\x02" + "\x00\x20\x00\x00\x00\x20\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00"

const large = 8 << 20

// makeTree fills a directory with everything that a copy keeps.
func makeTree(t *testing.T, dir string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string) { t.Helper(); must(t, os.WriteFile(in(name), []byte(name), 0o640)) }
	must(t, os.MkdirAll(in("dir/sticky"), 0o700))
	must(t, os.Chmod(in("dir/sticky"), 0o777|fs.ModeSticky))
	for _, name := range []string{"file", "-rf", "new\nline", "\xff\xfe", "*", " ", "dir/inner", "dir/.hidden"} {
		write(name)
	}
	must(t, os.Link(in("file"), in("dir/linked")))
	must(t, os.Symlink("/etc/passwd", in("absolute")))
	must(t, os.Symlink("/etc", in("etc")))
	must(t, os.Symlink("nothing", in("dangling")))
	must(t, unix.Mkfifo(in("fifo"), 0o644))
	must(t, unix.Mknod(in("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(in("socket"), unix.S_IFSOCK|0o666, 0))
	write("program")
	must(t, os.Chown(in("program"), 1234, 4321))
	must(t, os.Chmod(in("program"), 0o755|fs.ModeSetuid|fs.ModeSetgid))
	must(t, unix.Setxattr(in("program"), "security.capability", []byte(capabilities), 0))
	must(t, unix.Setxattr(in("file"), "user.mine", []byte("value"), 0))
	must(t, unix.Setxattr(in("file"), "system.posix_acl_access", []byte(acl), 0))
	must(t, unix.Setxattr(in("dir"), "system.posix_acl_default", []byte(acl), 0))
	must(t, os.Lchown(in("dangling"), 1234, 4321))
	sparse, err := os.Create(in("sparse"))
	must(t, err)
	must(t, sparse.Truncate(large))
	_, err = sparse.WriteAt(make([]byte, 1<<20), large/2)
	must(t, err)
	_, err = sparse.WriteAt([]byte("data"), large-4)
	must(t, err)
	must(t, sparse.Sync())
	must(t, sparse.Close())
	must(t, os.WriteFile(in("large"), []byte(strings.Repeat("0123456789abcdef", large/16)), 0o600))
	must(t, os.Chown(dir, 1234, 4321))
	must(t, os.Chmod(dir, 0o751))
	old := time.Unix(1e9, 123456789)
	for _, name := range []string{"file", "dir", ""} {
		must(t, os.Chtimes(in(name), old, old))
	}
}

// describe returns what a copy keeps of the entries of a directory, by their paths.
func describe(t *testing.T, dir string) map[string]string {
	t.Helper()
	first := map[uint64]string{}
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		must(t, err)
		info, err := entry.Info()
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		name, err := filepath.Rel(dir, path)
		must(t, err)
		if first[st.Ino] == "" {
			first[st.Ino] = name
		}
		text := fmt.Sprintf("%v %d:%d %v, %d links, as %q, rdev %d", info.Mode(), st.Uid, st.Gid, info.ModTime().UnixNano(), st.Nlink, first[st.Ino], st.Rdev)
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			must(t, err)
			text += ", " + fmt.Sprint(len(data)) + " bytes: " + string(data[:min(len(data), 64)]) + string(data[max(0, len(data)-64):])
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			must(t, err)
			text += ", to " + to
		}
		buf := make([]byte, 4096)
		n, err := unix.Llistxattr(path, buf)
		must(t, err)
		attributes := strings.Split(string(buf[:n]), "\x00")
		slices.Sort(attributes)
		for _, attribute := range attributes {
			if attribute != "" {
				n, err := unix.Lgetxattr(path, attribute, buf)
				must(t, err)
				text += fmt.Sprintf(", %s %x", attribute, buf[:n])
			}
		}
		all[name] = text
		return nil
	}))
	return all
}

func copyDir(t *testing.T, from, to string) error {
	t.Helper()
	must(t, os.Mkdir(to, 0o700))
	f, err := os.Open(from)
	must(t, err)
	defer f.Close()
	d, err := os.Open(to)
	must(t, err)
	defer d.Close()
	return Copy(t.Context(), f, d)
}

func compare(t *testing.T, want, got map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%q is\n%s\nwant\n%s", name, got[name], text)
		}
	}
	for name := range got {
		if want[name] == "" {
			t.Errorf("%q was added", name)
		}
	}
}

func TestCopyKeepsEverything(t *testing.T) {
	for _, mkfs := range []string{"mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"} {
		t.Run(mkfs, func(t *testing.T) {
			disk := devicetest.NewDisk(t, 512<<20, mkfs, "-q")
			from, to := filepath.Join(disk.Dir, "from"), filepath.Join(disk.Dir, "to")
			must(t, os.Mkdir(from, 0o700))
			makeTree(t, from)
			want := describe(t, from)
			used := func() uint64 {
				t.Helper()
				d, err := os.Open(disk.Dir)
				must(t, err)
				defer d.Close()
				must(t, unix.Syncfs(int(d.Fd())))
				var st unix.Statfs_t
				must(t, unix.Fstatfs(int(d.Fd()), &st))
				return (st.Blocks - st.Bfree) * uint64(st.Bsize)
			}
			before := used()
			if err := copyDir(t, from, to); err != nil {
				t.Fatal(err)
			}
			compare(t, want, describe(t, to))
			if took := used() - before; (took < large/2) != (mkfs != "mkfs.ext4") {
				t.Errorf("the copy takes %d KiB", took>>10)
			}
			var st unix.Stat_t
			must(t, unix.Stat(filepath.Join(to, "sparse"), &st))
			if st.Blocks*512 > 2<<20 {
				t.Errorf("the sparse file has %d KiB", st.Blocks>>1)
			}
			compare(t, want, describe(t, from))
		})
	}
}

// What is mounted in the directory is not part of it.
func TestCopyLeavesOutMounts(t *testing.T) {
	dir := devicetest.Dir(t)
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	must(t, os.MkdirAll(filepath.Join(from, "inner"), 0o700))
	must(t, os.WriteFile(filepath.Join(from, "inner", "covered"), []byte("covered"), 0o600))
	must(t, unix.Mount("foreign", filepath.Join(from, "inner"), "tmpfs", 0, "size=1m"))
	defer func() { must(t, unix.Unmount(filepath.Join(from, "inner"), 0)) }()
	must(t, os.WriteFile(filepath.Join(from, "inner", "foreign"), nil, 0o600))
	if err := copyDir(t, from, to); err != nil {
		t.Fatal(err)
	}
	if names, err := filepath.Glob(to + "/inner/*"); err != nil || len(names) != 1 || filepath.Base(names[0]) != "covered" {
		t.Errorf("copied %q, %v", names, err)
	}
}

func TestCopyWithoutSpace(t *testing.T) {
	disk := devicetest.NewDisk(t, 32<<20, "mkfs.ext4", "-q")
	from := filepath.Join(disk.Dir, "from")
	must(t, os.Mkdir(from, 0o700))
	for _, name := range []string{"a", "b"} {
		must(t, os.WriteFile(filepath.Join(from, name), []byte(strings.Repeat("x", 8<<20)), 0o600))
	}
	err := copyDir(t, from, filepath.Join(disk.Dir, "to"))
	if err == nil || strings.Count(err.Error(), "No space left on device") != 1 || !strings.HasPrefix(err.Error(), "copying "+from+": ") {
		t.Errorf("got %v", err)
	}
}
