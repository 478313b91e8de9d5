package e2e

import (
	"net"
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

// page is a document whose shell blocks a test runs, in order, in one shell.
type page struct {
	name   string
	blocks int // how many the page has
	// prelude runs before the first block, postlude after the last one, and after[i] after
	// block i, which counts from 1.
	prelude, postlude string
	after             map[int]string
}

// run runs the blocks of a page. Absolute paths in the page are those of test directories,
// by replacements as strings.NewReplacer takes them.
func (p page) run(t *testing.T, m *machine, replacements ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", p.name))
	if err != nil {
		t.Fatal(err)
	}
	blocks := shellBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) != p.blocks {
		t.Fatalf("%s has %d blocks, want %d", p.name, len(blocks), p.blocks)
	}
	var script strings.Builder
	// Jobs have process groups of their own with set -m.
	script.WriteString("set -eu\ntrap 'kill -9 $(jobs -p) 2>/dev/null || :' EXIT\n" + p.prelude)
	here := strings.NewReplacer(replacements...)
	for i, block := range blocks {
		number := i + 1
		script.WriteString("echo '--- block " + strconv.Itoa(number) + "'\n" + here.Replace(block[1]) + p.after[number])
	}
	script.WriteString(p.postlude)

	bin := filepath.Join(m.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(stowage, filepath.Join(bin, "stowage")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Env = append(os.Environ(), "DIR="+m.dir, "SPEC="+m.spec, "STOWAGE_DIR="+m.data, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(m.dir, "howto.log"))
		t.Errorf("%s: %v:\n%s\nlog of the agent:\n%s", p.name, err, out, log)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the script has left running
	}
}

// howtoPrelude defines what the how-to leaves to its reader: the service manager.
const howtoPrelude = `
service() {
	case $2 in
	start)
		stowage run >>"$DIR/howto.log" 2>&1 </dev/null &
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
service stowage start
stowage apply -f "$SPEC" --wait
echo before | tee "$DIR/mnt/data/x" >"$DIR/mnt/files/x"
`

func TestBackupHowTo(t *testing.T) {
	m := newMachine(t)
	m.writeSpec(`storage:
- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}
- {name: files, directive: 'rootfs,16M', kind: filesystem, mount: MNT/files}`)
	for _, dir := range []string{"backup/volumes", "backup/files", "new", "copy"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// What the page promises: the data is that of the backup.
	const restored = "test \"$(cat \"$DIR/mnt/data/x\" \"$DIR/mnt/files/x\")\" = \"$(printf 'before\\nbefore')\"\n"
	page{
		name: "howto/backup.md", blocks: 7, prelude: howtoPrelude,
		after: map[int]string{
			1: "echo after | tee \"$DIR/mnt/data/x\" >\"$DIR/mnt/files/x\"\n",
			3: restored, 5: restored, 7: restored,
		},
		postlude: `stowage remove data files --wait
service stowage stop
rm -r "$DIR/copy" "$DIR/new"
`,
	}.run(t, m,
		"/srv/", filepath.Join(m.dir, "mnt")+"/", "/backup/", filepath.Join(m.dir, "backup")+"/",
		"/new/", filepath.Join(m.dir, "new")+"/", "/copy/", filepath.Join(m.dir, "copy")+"/")
}

func TestSnapshotsHowTo(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage:\n- {name: data, directive: 'loop,32M', kind: filesystem, mount: MNT/data}\n" +
		"- {name: files, directive: 'rootfs,32M', kind: filesystem, mount: MNT/files}")
	page{
		name: "howto/snapshots.md", blocks: 5, prelude: howtoPrelude[:strings.Index(howtoPrelude, "echo before")],
		after: map[int]string{
			2: "stowage snapshot list | grep -q 'tuesday.*ready'\n",
			3: "test \"$(cat \"$DIR/mnt/restored/notes\" \"$DIR/mnt/data/notes\")\" = \"$(printf 'before the change\\nafter the change')\"\n",
			4: "test \"$(cat \"$DIR/mnt/data/notes\")\" = 'before the change'\n",
			5: "test \"$(stowage snapshot list | grep -c monday)\" = 0\n",
		},
		postlude: "stowage snapshot delete tuesday --wait\nstowage remove restored data files --wait\nservice stowage stop\n",
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/")
}

// The commands of the page end the situations that it describes.
func TestTroubleshooting(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage:\n- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}")
	page{
		name: "troubleshooting.md", blocks: 5, prelude: howtoPrelude[:strings.Index(howtoPrelude, "echo before")] + `
shows() { until stowage status data | grep -q "$1"; do sleep 0.1; done; }
`,
		after: map[int]string{
			1: `sleep 1000 <"$DIR/mnt/data/." & reader=$!
stowage detach data
shows 'held by process .* has open'
kill $reader
wait $reader || true
`,
			2: `if mountpoint -q "$DIR/mnt/data"; then exit 1; fi
mkdir -p "$DIR/mnt/data"
touch "$DIR/mnt/data/x"
stowage attach data
shows 'the directory is not empty'
rm "$DIR/mnt/data/x"
`,
			3: `shows ' attached '
umount "$DIR/mnt/data"
shows 'it was unmounted from'
`,
			4: "mountpoint -q \"$DIR/mnt/data\"\n",
		},
		postlude: "stowage remove data --wait\nservice stowage stop\n",
	}.run(t, m)
}

// The driver is used by hand, with the client and the specification that the how-to names.
func TestCSIHowTo(t *testing.T) {
	if os.Getenv("GRPCURL") == "" {
		t.Skip("GRPCURL is not set; run `make csi`")
	}
	m := newMachine(t)
	page{
		name: "howto/csi.md", blocks: 7,
		prelude: `set -m
SERVER=$DIR/server WEB=$DIR/web
mkdir "$DIR/mnt" "$DIR/run"
ln -s "$GRPCURL" "$DIR/bin/grpcurl"
version() { go -C "$1" list -m -f '{{.Version}}' "$2"; }
spec=github.com/container-storage-interface/spec
grep -qF "grpcurl/cmd/grpcurl@$(version ../csitest github.com/fullstorydev/grpcurl)" ../docs/howto/csi.md
grep -qF "spec/$(version . $spec)/csi.proto" ../docs/howto/csi.md
cp "$(go list -m -f '{{.Dir}}' $spec)/csi.proto" "$DIR"
trap 'cat "$DIR"/*.log; kill -9 $(jobs -p)' ERR
refuses() { if said=$("$@" 2>&1); then echo "not refused: $*"; exit 1; fi; }
`,
		after: map[int]string{
			3: "mountpoint -q \"$DIR/mnt/orders\"\n",
			4: `test "$(cat "$DIR/mnt/restored/log" "$DIR/mnt/orders/log")" = "$(printf 'first\nfirst\nsecond')"
refuses touch "$DIR/mnt/restored/log"
refuses csi csi.sock Controller/DeleteVolume <<<"{\"volume_id\": \"$orders\"}"
grep -qF FailedPrecondition <<<"$said"
`,
			5: "if compgen -G \"$STOWAGE_DIR/storage/loop/volumes/*\" || test -e \"$DIR/mnt/orders\" || test -e \"$DIR/run/csi.sock\"; then exit 1; fi\n",
			6: "stowage status --data-dir \"$SERVER\" | grep -q 'pages .* attached '\n",
		},
		postlude: `if compgen -G "$DIR/*/storage/loop/volumes/*" || compgen -G "$DIR/run/*.sock"; then exit 1; fi
`,
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/", "/tmp", m.dir, "/run/stowage", filepath.Join(m.dir, "run"), "127.0.0.1:7117", freeAddress(t))
}

// The driver of the page is an agent. systemctl starts and stops it, and the agent that uses it.
func TestCSIDriverHowTo(t *testing.T) {
	m := newMachine(t)
	page{
		name: "howto/csi-driver.md", blocks: 6,
		prelude: `set -m
mkdir "$DIR/run"
install() { mkdir -p "$DIR/providers"; } # that of the page makes the directories above it, too
begin() { # NAME COMMAND...
	"${@:2}" >>"$DIR/howto.log" 2>&1 </dev/null &
	echo $! >"$DIR/$1.pid"
}
end() {
	test -e "$DIR/$1.pid" || return 0
	kill "$(cat "$DIR/$1.pid")"
	tail --pid="$(cat "$DIR/$1.pid")" -s 0.05 -f /dev/null
	rm "$DIR/$1.pid"
}
systemctl() {
	case "$*" in
	daemon-reload) ;;
	"enable --now hostpath") begin driver stowage run --data-dir "$DIR/driver" --csi-endpoint "unix://$DIR/run/csi.sock" ;;
	"disable --now hostpath") end driver ;;
	"restart hostpath") end driver; systemctl enable --now hostpath ;;
	"restart stowage")
		end agent
		begin agent stowage run --plugins-dir "$DIR/providers" --retry-min 100ms
		until stowage report >/dev/null 2>&1; do kill -0 "$(cat "$DIR/agent.pid")"; done
		;;
	*) echo "systemctl $*: not known"; return 1 ;;
	esac
}
trap 'cat "$DIR"/howto.log; kill -9 $(jobs -p)' ERR
`,
		after: map[int]string{
			4: "test \"$(cat \"$DIR/mnt/data/greeting\")\" = hello\nstowage status --data-dir \"$DIR/driver\" | grep -q '320M .* attached'\n",
			5: "test \"$(cat \"$DIR/mnt/data/greeting\")\" = hello\n",
		},
		postlude: "end agent\nif compgen -G \"$DIR/*/storage/*/*/records/*\" || mountpoint -q \"$DIR/mnt/data\"; then exit 1; fi\n",
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/", "/run/hostpath", filepath.Join(m.dir, "run"),
		"/etc/stowage/providers", filepath.Join(m.dir, "providers"), "hostpath.csi.k8s.io", "csi.stowage.io")
}

// Nomad's client is played by the commands of the page.
func TestNomadHowTo(t *testing.T) {
	m := newMachine(t)
	m.start()
	page{
		name: "howto/nomad.md", blocks: 6,
		after: map[int]string{
			4: "mountpoint -q \"$DIR/mnt/6c14a1ab-4a0f-4d35-8a3c-5f1f3a2c2c5e\"\n",
			5: "stowage status --selector nomad-volume=db -o name | grep -qx nomad-6c14a1ab-4a0f-4d35-8a3c-5f1f3a2c2c5e\n",
		},
	}.run(t, m, "/opt/nomad/volumes", filepath.Join(m.dir, "mnt"), "/opt/nomad", filepath.Join(m.dir, "nomad"), "/srv/stowage", m.data)
	m.wantNoStorage()
	m.stop()
}

func TestMachinesHowTo(t *testing.T) {
	m := newMachine(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	disks := newProgram(m)
	page{
		name: "howto/machines.md", blocks: 12,
		prelude: `set -m
unset STOWAGE_DIR XDG_CONFIG_HOME
export HOME=$DIR/home
SERVER=$DIR/server WEB=$DIR/web DB=$DIR/db
trap 'cat "$DIR"/*.log' ERR
`,
		after: map[int]string{
			4:  "echo precious >\"$DIR/mnt/orders/x\"\n",
			5:  "test \"$(cat \"$DIR/mnt/orders/x\")\" = precious\n",
			6:  "test \"$(cat \"$DIR/mnt/orders/x\")\" = precious\n",
			7:  "if mountpoint -q \"$DIR/mnt/pages\"; then exit 1; fi\n",
			9:  "if test -e \"$HOME/.config/stowage/contexts/prod.yaml\"; then exit 1; fi\n",
			11: "grep -q . \"$DIR/token-web\"\n",
		},
		postlude: "if compgen -G \"$DIR/*/storage/loop/volumes/*\"; then exit 1; fi\n",
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/", "/tmp/", m.dir+"/", "127.0.0.1:7117", address,
		"/opt/disks", filepath.Join(disks.dir, "program"))
}

func TestAPIPage(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil && os.Getenv("STOWAGE_REQUIRE_ROOT") != "1" {
		t.Skip("the commands of the page need curl")
	}
	m := newMachine(t)
	m.writeSpec("storage:\n- {name: data, directive: 'loop,16M', kind: block}")
	page{
		name: "reference/api.md", blocks: 5, prelude: howtoPrelude[:strings.Index(howtoPrelude, "service stowage start")] + `
service stowage start
stowage apply -f "$SPEC" --wait
DIR=$STOWAGE_DIR
`,
		after: map[int]string{
			1: "test \"$(stowage status -o json | grep -c '\"name\"')\" = 1\n",
			5: "test \"$(stowage status -o json | grep -c '\"name\"')\" = 1\n",
		},
		postlude: `stowage detach data --wait
test "$(stowage status -o json | grep -c '"status": "detached"')" = 1
stowage remove data --wait
DIR=${STOWAGE_DIR%/*}
service stowage stop
`,
	}.run(t, m)
}

func TestClaimsHowTo(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil && os.Getenv("STOWAGE_REQUIRE_ROOT") != "1" {
		t.Skip("the commands of the page need curl")
	}
	m := newMachine(t)
	page{
		name: "howto/claims.md", blocks: 7, prelude: howtoPrelude[:strings.Index(howtoPrelude, "service stowage start")] + `
service stowage start
has() { stowage claims | grep "^$1  *bound .* $2  *attached  *$3" >/dev/null; }
refuses() { if said=$("$@" 2>&1); then echo "not refused: $*"; exit 1; fi; }
says() { grep -qF "$1" <<<"$said" || { echo "$said"; exit 1; }; }
TOP=$DIR DIR=$STOWAGE_DIR
`,
		after: map[int]string{
			1: "has orders orders \"$TOP/mnt/orders\"\nmountpoint -q \"$TOP/mnt/orders\"\n",
			3: `has cache disk/0 /dev/
refuses stowage remove disk
says 'it belongs to claim "cache"'
test "$(stowage status -l tier=fast -o json | grep -c '"name"')" = 3
DIR=$TOP
service stowage stop
service stowage start
DIR=$STOWAGE_DIR
until has cache disk/0 /dev/; do sleep 0.1; done
`,
			4: "has cache disk/0 /dev/\n",
			5: "refuses mountpoint -q \"$TOP/mnt/orders\"\nrefuses stowage status orders\n",
			6: `refuses stowage claim other -l tier=fast --kind block --size 65M
says 'no storage with the labels tier=fast fits (1 retained from another claim, 2 too small)'
`,
			7: `stowage claim other -l tier=fast --kind block --size 20M --reclaim-policy delete --wait
has other disk/0 /dev/
stowage unclaim other --wait
refuses stowage status disk/0
`,
		},
		postlude: `test "$(stowage claims -o json)" = "[]"
stowage remove disk large --wait
if compgen -G "$STOWAGE_DIR/storage/loop/volumes/*"; then exit 1; fi
DIR=$TOP
service stowage stop
`,
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/")
}

func TestServersHowTo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	page{
		name: "howto/servers.md", blocks: 7,
		prelude: `set -m
FIRST=$DIR/first SECOND=$DIR/second THIRD=$DIR/third WEB=$DIR/web
trap 'cat "$DIR"/*.log' ERR
`,
		postlude: "if compgen -G \"$DIR/*/storage/loop/volumes/*\"; then exit 1; fi\n",
	}.run(t, s.machine, "/srv/", filepath.Join(s.dir, "mnt")+"/", "/tmp/", s.dir+"/", "127.0.0.1:7117", freeAddress(t), "127.0.0.1:7127", freeAddress(t), "127.0.0.1:7137", freeAddress(t))
}

// What the rules and the dashboard name is what processes serve.
func TestMonitoringHowTo(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil && os.Getenv("STOWAGE_REQUIRE_ROOT") != "1" {
		t.Skip("the commands of the page need curl")
	}
	m := newMachine(t)
	replacements := []string{"/tmp/", m.dir + "/", "127.0.0.1:7117", freeAddress(t)}
	var served []string
	for _, port := range []string{"9163", "9164", "9165"} {
		address := freeAddress(t)
		replacements = append(replacements, "127.0.0.1:"+port, address)
		served = append(served, "http://"+address+"/metrics")
	}
	page{
		name: "howto/monitoring.md", blocks: 4,
		prelude: `set -m
SERVER=$DIR/server WEB=$DIR/web
trap 'cat "$DIR"/*.log; kill -9 $(jobs -p)' ERR
`,
		after: map[int]string{
			2: "curl -fs " + strings.Join(served, " ") + ` >"$DIR/pages"
for metric in $(grep -oh '\bstowage_[a-z_]*' ../monitoring/alerts.yaml ../monitoring/dashboard.json | sed 's/_bucket$//' | sort -u); do
	grep -q "^# TYPE $metric " "$DIR/pages" || { echo "no process serves $metric"; false; }
done
`,
		},
		postlude: "if compgen -G \"$DIR/*/storage/loop/volumes/*\"; then exit 1; fi\n",
	}.run(t, m, replacements...)
}

func TestTutorial(t *testing.T) {
	m := newMachine(t)
	const hello = "test \"$(cat \"$DIR/mnt/tutorial/data/greeting\")\" = hello\n"
	page{
		name: "tutorial.md", blocks: 8,
		after: map[int]string{
			3: "if mountpoint -q \"$DIR/mnt/tutorial/data\"; then exit 1; fi\n",
			4: hello,
			5: "test $(df --output=size --block-size=1M \"$DIR/mnt/tutorial/cache\" | tail -1) -eq 32\n",
			6: "mountpoint -q \"$DIR/mnt/tutorial/data\"\n",
			7: hello,
			8: "if test -e \"$DIR/mnt/tutorial\"; then exit 1; fi\n",
		},
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/", "/var/lib/stowage-tutorial", m.data)
}

// The other machine has another ID, and nothing in memory of the disk.
func TestMoveDiskHowTo(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage:\n- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}\n" +
		"- {name: files, directive: 'rootfs,16M', kind: filesystem, mount: MNT/files}")
	const kept = "test \"$(cat \"$DIR/mnt/data/x\" \"$DIR/mnt/files/x\")\" = \"$(printf 'before\\nbefore')\"\n"
	page{
		name: "howto/move-disk.md", blocks: 4, prelude: `
if [ "$(readlink /proc/self/ns/mnt)" = "$(readlink /proc/1/ns/mnt)" ]; then echo "run this in scripts/sandbox"; exit 1; fi
mkdir "$DIR/disk" "$DIR/transfer"
truncate -s 128M "$DIR/disk.img"
mkfs.ext4 -q "$DIR/disk.img"
mount -o loop "$DIR/disk.img" "$DIR/disk"
export STOWAGE_DIR=$DIR/disk/stowage
` + howtoPrelude,
		after: map[int]string{
			1: `echo 0123456789abcdef0123456789abcdef >"$DIR/machine-id"
mount --bind "$DIR/machine-id" /etc/machine-id
`,
			2: kept, 4: kept,
		},
		postlude: `stowage import old "$STOWAGE_DIR"/storage/loop/volumes/volume-0-0-* --pool loop --block --wait
stowage remove old data files --wait
if compgen -G "$STOWAGE_DIR/storage/loop/volumes/*"; then exit 1; fi
service stowage stop
umount "$DIR/disk"
umount /etc/machine-id
`,
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/", "/disk", filepath.Join(m.dir, "disk"), "LABEL=stowage", "-o loop "+filepath.Join(m.dir, "disk.img"),
		"/transfer", filepath.Join(m.dir, "transfer"))
}

func TestCleanUpHowTo(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage:\n- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}\n" +
		"- {name: files, directive: 'rootfs,16M', kind: filesystem, mount: MNT/files}\n" +
		"- {name: cache, directive: 'tmpfs,16M', kind: filesystem, mount: MNT/cache}")
	const nothing = "if test -e \"$STOWAGE_DIR\"; then exit 1; fi\n"
	page{
		name: "howto/clean-up.md", blocks: 5, prelude: howtoPrelude,
		after: map[int]string{
			1: nothing + howtoPrelude[strings.Index(howtoPrelude, "service stowage start"):] + "kill -9 \"$(cat \"$DIR/howto.pid\")\"\nrm \"$STOWAGE_DIR/state.db\"\n",
			4: "if losetup --list --noheadings --output BACK-FILE | grep \"$STOWAGE_DIR/\"; then exit 1; fi\n",
			5: nothing,
		},
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/")
}

func TestProductionHowTo(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage:\n- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}")
	for _, dir := range []string{"sbin", "units"} {
		if err := os.Mkdir(filepath.Join(m.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	page{
		name: "howto/production.md", blocks: 3, prelude: howtoPrelude[:strings.Index(howtoPrelude, "echo before")],
		after: map[int]string{
			1: `if command -v systemd-analyze >/dev/null; then
	systemd-analyze verify --man=no "$DIR"/units/stowage-backup.* 2>"$DIR/verified" || { cat "$DIR/verified"; exit 1; }
	if grep stowage-backup "$DIR/verified"; then exit 1; fi
fi
touch -d "15 days ago" "$DIR/backups/state-old"
`,
			2: "test \"$(echo \"$DIR\"/backups/state-* | wc -w)\" = 1\nif test -e \"$DIR/backups/state-old\"; then exit 1; fi\n",
		},
		postlude: `service stowage stop
stowage restore "$DIR"/backups/state-*
service stowage start
stowage remove data --wait
service stowage stop
`,
	}.run(t, m, "/var/backups/stowage", filepath.Join(m.dir, "backups"), "/usr/local/sbin", filepath.Join(m.dir, "sbin"),
		"/etc/systemd/system", filepath.Join(m.dir, "units"))
}

func TestProviderHowTo(t *testing.T) {
	m := newMachine(t)
	files := filepath.Join(m.dir, "files")
	buildExample(t, "./examples/provider", filepath.Join(files, "provider"))
	page{
		name: "howto/provider.md", blocks: 4,
		after: map[int]string{
			1: "test \"$(ls \"$DIR/files/volumes\" | wc -l)\" = 1\n",
			2: "test \"$(ls \"$DIR/files/volumes\" | wc -l)\" = 0\n",
			3: "mountpoint -q \"$DIR/mnt/data\"\n",
		},
		postlude: "test \"$(ls \"$DIR/files/volumes\" \"$DIR/files/tags\" | grep -c volume-)\" = 0\n",
	}.run(t, m, "/srv/", filepath.Join(m.dir, "mnt")+"/", "/tmp/", m.dir+"/", "/opt/files", files)
}

// buildExample builds a program of the examples.
func buildExample(t *testing.T, name, output string) {
	t.Helper()
	build := exec.Command("go", "build", "-o", output, name)
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestTutorialOfServers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	cluster := filepath.Join(m.dir, "c")
	buildExample(t, "./examples/shared-directory", filepath.Join(cluster, "shared", "provider"))
	page{
		name: "tutorial-servers.md", blocks: 8,
		prelude: `unset STOWAGE_DIR XDG_CONFIG_HOME
export HOME=$DIR/home
mkdir "$HOME"
trap 'tail -n 20 "$DIR"/c/*.log; kill $(jobs -p)' ERR
`,
		after: map[int]string{
			4: "test \"$(cat \"$DIR/c/orders/data\")\" = precious\n",
			5: "test \"$(cat \"$DIR/c/orders/data\")\" = precious\n",
			7: "test \"$(cat \"$DIR/c/orders/data\")\" = precious\n",
			8: "if test -e \"$DIR/c\" || test -e \"$HOME/.config/stowage/contexts/tutorial.yaml\"; then exit 1; fi\n",
		},
	}.run(t, m, "/srv/cluster", cluster, "127.0.0.1:7117", freeAddress(t), "127.0.0.1:7127", freeAddress(t), "127.0.0.1:7137", freeAddress(t))
}
