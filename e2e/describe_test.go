package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/e2e/internal/command"
)

// hold starts a process whose working directory is a directory, until the test or the returned function
// ends it.
func hold(t *testing.T, dir string) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command("cat")
	cmd.Dir = dir
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			stdin.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

// lookIn returns what the machine has of storage, as `stowage describe` has it in JSON.
func lookIn(t *testing.T, r command.Result) user.StorageLook {
	t.Helper()
	var all []struct{ Look user.StorageLook }
	if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil || len(all) != 1 {
		t.Fatalf("%v\n%s", err, r.All())
	}
	return all[0].Look
}

// The description of storage has what the machine has of it, and who uses it.
func TestDescribe(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(`
storage:
  - {name: data, directive: 'loop,64M', kind: filesystem, mount: MNT/data}
  - {name: raw, directive: 'loop,16M', kind: block}
  - {name: mem, directive: 'tmpfs,8M', kind: filesystem, mount: MNT/mem}
  - {name: logs, directive: 'rootfs,8M', kind: filesystem, mount: MNT/logs}
`)
	m.start()
	m.apply()
	m.writeData("data", "raw", "mem", "logs")
	look := func(name string) user.StorageLook {
		t.Helper()
		return lookIn(t, m.must("describe", name, "-o", "json"))
	}
	further := filepath.Join(m.dir, "further")
	if err := os.Mkdir(further, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(m.mount("data"), further, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	unmounted := false
	unmount := func() {
		if !unmounted {
			unmounted = true
			if err := unix.Unmount(further, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)

	for _, name := range []string{"data", "raw", "mem", "logs"} {
		at := m.status()[name].Location
		dir := at
		if name == "raw" {
			dir = ""
		}
		pid, end := 0, func() {}
		if dir != "" {
			pid, end = hold(t, dir)
		}
		found := look(name)
		if found.NotAsked != "" || len(found.Notes) > 0 || len(found.Operations) > 0 || len(found.Files) == 0 {
			t.Errorf("%s: %+v", name, found)
		}
		for _, f := range found.Files {
			info, err := os.Stat(f.Path)
			if err != nil || f.Missing || info.IsDir() != (f.Kind == "directory") {
				t.Errorf("%s: %+v: %v", name, f, err)
				continue
			}
			blocks := uint64(info.Sys().(*syscall.Stat_t).Blocks)
			if f.Kind == "file" && (f.SizeBytes != uint64(info.Size()) || f.AllocatedBytes != blocks*512) {
				t.Errorf("%s: %+v, and it has %d bytes in %d blocks", name, f, info.Size(), blocks)
			}
		}
		held := func(h user.StorageHolder) bool {
			return h.PID == pid && h.Name == "cat" && h.Use == "working directory "+dir
		}
		if pid != 0 && !slices.ContainsFunc(found.Holders, held) {
			t.Errorf("%s: process %d is not among its users: %+v", name, pid, found.Holders)
		}
		end()
		if found := look(name); len(found.Holders) > 0 {
			t.Errorf("%s: nobody uses it, and there are %+v", name, found.Holders)
		}
		var st unix.Statfs_t
		switch {
		case name == "raw":
			if !slices.Equal(found.Devices, []string{at}) || found.Usage != nil || len(found.Mounts) > 0 {
				t.Errorf("raw at %s: %+v", at, found)
			}
			continue
		case name == "data" && (len(found.Devices) != 1 || !slices.Equal(found.Mounts, []user.StorageMount{{Path: at}, {Path: further}})):
			t.Errorf("data at %s and %s: %+v", at, further, found)
		case name != "data" && !slices.Equal(found.Mounts, []user.StorageMount{{Path: at}}):
			t.Errorf("%s at %s: %+v", name, at, found)
		}
		if err := unix.Statfs(at, &st); err != nil {
			t.Fatal(err)
		}
		if u := found.Usage; u == nil || u.SizeBytes != st.Blocks*uint64(st.Frsize) || u.UsedBytes == 0 || u.UsedBytes > u.SizeBytes || u.Shared && name != "logs" {
			t.Errorf("%s: %+v, and it has %d blocks of %d", name, u, st.Blocks, st.Frsize)
		}
	}
	unmount()
	for line := range strings.Lines(m.must("status", "-o", "wide").Stdout) {
		name, _, _ := strings.Cut(line, " ")
		if used := regexp.MustCompile(` \d+(\.\d)?[KM] \(\d+%\) `).MatchString(line); used != (name == "data" || name == "mem") && name != "logs" {
			t.Errorf("how much is used: %q", line)
		}
	}

	// What cannot be done is described with who prevents it.
	pid, end := hold(t, m.mount("data"))
	m.must("detach", "data")
	m.poll("the description of data does not say why it cannot be detached", func() bool {
		for _, o := range look("data").Operations {
			if strings.HasPrefix(o.Entity, "filesystem attachment ") && o.Operation == "detach" && o.Failures > 0 &&
				strings.Contains(o.LastFailure, fmt.Sprintf("process %d (cat)", pid)) && !o.NextAttempt.IsZero() && !o.Since.IsZero() {
				return true
			}
		}
		return false
	})
	text := m.must("describe", "data").Stdout
	for _, part := range []string{"\nUnfinished:\n", "\nOn the machine:\n", "\nUsed by:\n", fmt.Sprintf("  %d cat", pid)} {
		if !strings.Contains(text, part) {
			t.Errorf("the description has no %q:\n%s", part, text)
		}
	}
	end()
	m.must("retry", "data")
	m.must("remove", "data", "raw", "mem", "logs", "--wait")
	m.wantNoStorage()
	m.stop()
}
