package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// howtoPrelude stands for what the pages leave to their reader: the service manager.
const howtoPrelude = `set -eu
service() {
	case $2 in
	start)
		setsid stowage run >>"$DIR/howto.log" 2>&1 </dev/null &
		echo $! >"$DIR/howto.pid"
		until stowage report >/dev/null 2>&1; do
			kill -0 "$(cat "$DIR/howto.pid")" || { cat "$DIR/howto.log"; return 1; }
		done
		;;
	stop)
		kill "$(cat "$DIR/howto.pid")"
		tail --pid="$(cat "$DIR/howto.pid")" -s 0.05 -f /dev/null
		;;
	esac
}
`

// TestBackupHowTo runs the blocks of the page on backups, in order, with directories of the
// test's in place of the page's.
func TestBackupHowTo(t *testing.T) {
	m := newMachine(t)
	page, err := os.ReadFile("../docs/howto/backup.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	script.WriteString(howtoPrelude)
	blocks := shellBlock.FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 7 {
		t.Fatalf("the page has %d blocks, want 7", len(blocks))
	}
	elsewhere := strings.NewReplacer(
		"/srv/", filepath.Join(m.dir, "mnt")+"/", "/backup/", filepath.Join(m.dir, "backup")+"/",
		"/new/", filepath.Join(m.dir, "new")+"/", "/copy/", filepath.Join(m.dir, "copy")+"/",
	)
	for _, dir := range []string{"backup/volumes", "backup/files", "new", "copy"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(m.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(stowage, filepath.Join(bin, "stowage")); err != nil {
		t.Fatal(err)
	}

	// What the page takes for granted, and what it promises: the data of the backup.
	m.writeSpec(`storage:
- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}
- {name: files, directive: 'rootfs,16M', kind: filesystem, mount: MNT/files}`)
	script.WriteString(`service stowage start
stowage apply -f "$SPEC" --wait
echo before | tee "$DIR/mnt/data/x" >"$DIR/mnt/files/x"
`)
	for i, block := range blocks {
		script.WriteString("echo '--- block " + strconv.Itoa(i+1) + "'\n" + elsewhere.Replace(block[1]))
		switch i {
		case 0:
			script.WriteString("echo after | tee \"$DIR/mnt/data/x\" >\"$DIR/mnt/files/x\"\n")
		case 2, 4, 6:
			script.WriteString("test \"$(cat \"$DIR/mnt/data/x\" \"$DIR/mnt/files/x\")\" = \"$(printf 'before\\nbefore')\"\n")
		}
	}
	script.WriteString(`stowage remove data files --wait
service stowage stop
rm -r "$DIR/copy" "$DIR/new"
`)
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Env = append(os.Environ(), "DIR="+m.dir, "SPEC="+m.spec, "STOWAGE_DIR="+m.data, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(m.dir, "howto.log"))
		t.Errorf("%v:\n%s\nlog of the agent:\n%s", err, out, log)
		killHowTo(t, m.dir)
	}
}

// killHowTo ends the agent that a script has left.
func killHowTo(t *testing.T, dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "howto.pid"))
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Error(err)
		return
	}
	exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	if err == nil && exe == stowage {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
