package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
	"github.com/stowage-io/stowage/state"
)

// program is the provider of examples/provider behind a script, which can replace its
// answers.
type program struct {
	*machine
	dir string
}

// wrapper records each operation in the file "asked", and prints the next answer that is set
// for it. An answer that begins with "!" goes to the standard error, with exit status 3.
// Without an answer the wrapper runs the real provider, and adds a plan to each attachment.
// If the file "await" has a line, the wrapper first waits up to 30 seconds until the user
// has been shown that line: otherwise the next answer could replace a status that nobody has
// seen.
const wrapper = `#!/bin/sh
cd 'DIR' || exit 9
echo "$1" >> asked
if [ -s await ]; then
	tries=0
	until grep -qF -f await shown || [ $tries = 600 ]; do
		sleep 0.05
		tries=$((tries + 1))
	done
	rm await
fi
if [ -s "awaited/$1" ]; then
	head -n 1 "awaited/$1" > await
	sed -i 1d "awaited/$1"
fi
if [ -s "answers/$1" ]; then
	answer=$(head -n 1 "answers/$1")
	sed -i 1d "answers/$1"
	case "$answer" in
	!*) echo "${answer#!}" >&2; exit 3 ;;
	esac
	echo "$answer"
	exit 0
fi
./files "$1" > "answer.$$" || exit
sed 's/"attachment":{/"attachment":{"plan":{"device-type":"local"},/g' "answer.$$"
rm "answer.$$"
`

// newProgram builds the example provider, which keeps its volumes below the machine's
// directory.
func newProgram(m *machine) *program {
	m.Helper()
	p := &program{machine: m, dir: filepath.Join(m.dir, "provider")}
	for _, dir := range []string{"answers", "awaited"} {
		if err := os.MkdirAll(filepath.Join(p.dir, dir), 0o700); err != nil {
			m.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", filepath.Join(p.dir, "files"), "../examples/provider")
	if out, err := build.CombinedOutput(); err != nil {
		m.Fatalf("building the example: %v\n%s", err, out)
	}
	text := strings.ReplaceAll(wrapper, "DIR", p.dir)
	if err := os.WriteFile(filepath.Join(p.dir, "program"), []byte(text), 0o700); err != nil {
		m.Fatal(err)
	}
	return p
}

// flag is the command-line flag that adds the provider to an agent.
func (p *program) flag() string { return "--provider=disks=" + filepath.Join(p.dir, "program") }

// startManager starts an agent that also manages the environment.
func (p *program) startManager(args ...string) {
	p.Helper()
	p.start(append(args, "--manager", p.flag(), "--retry-min", "300ms")...)
}

// setAnswers sets the next answers for an operation.
func (p *program) setAnswers(operation string, answers ...string) {
	p.Helper()
	p.writeLines(filepath.Join("answers", operation), answers...)
}

// runShowing runs a command that has to succeed, and checks that it shows these lines: one
// for each answer to an operation, before the program answers again.
func (p *program) runShowing(operation string, lines []string, args ...string) {
	p.Helper()
	p.writeLines(filepath.Join("awaited", operation), lines...)
	path := filepath.Join(p.dir, "shown")
	shown, err := os.Create(path)
	if err != nil {
		p.Fatal(err)
	}
	defer shown.Close()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, stowage, append(args, "--data-dir", p.data)...)
	cmd.Stdout, cmd.Stderr = shown, shown
	failure := cmd.Run()
	text, err := os.ReadFile(path)
	if err != nil {
		p.Fatal(err)
	}
	if failure != nil {
		p.Fatalf("stowage %s: %v\n%s", strings.Join(args, " "), failure, text)
	}
	for _, line := range lines {
		if !strings.Contains(string(text), line) {
			p.Errorf("the output does not show %q:\n%s", line, text)
		}
	}
	if n := p.callCount(operation); n != len(lines)+1 {
		p.Errorf("the program was called %d times for %s, want %d", n, operation, len(lines)+1)
	}
}

func (p *program) writeLines(name string, lines ...string) {
	p.Helper()
	text := strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
}

// callCount returns how often the program was called for an operation.
func (p *program) callCount(operation string) int {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "asked"))
	if err != nil {
		p.Fatal(err)
	}
	times := 0
	for line := range strings.Lines(string(text)) {
		if line == operation+"\n" {
			times++
		}
	}
	return times
}

// volumes returns the volumes that the program has made, each by the first two parts of its
// ID.
func (p *program) volumes() []string {
	p.Helper()
	files, err := filepath.Glob(filepath.Join(p.dir, "volumes", "*"))
	if err != nil {
		p.Fatal(err)
	}
	for i, file := range files {
		kind, id, _ := strings.Cut(filepath.Base(file), "-")
		number, _, _ := strings.Cut(id, "-")
		files[i] = kind + "-" + number
	}
	return files
}

func (p *program) wantVolumes(want ...string) {
	p.Helper()
	if got := p.volumes(); !slices.Equal(got, want) {
		p.Errorf("the program has made %q, want %q", got, want)
	}
}

// wantNoStorage checks also that the program has no volumes left.
func (p *program) wantNoStorage() {
	p.Helper()
	p.machine.wantNoStorage()
	p.wantVolumes()
}

const onDisks = `
storage:
  - name: data
    directive: disks,64M
    kind: filesystem
    mount: MNT/data
    filesystem: ext4
  - name: raw
    directive: disks,32M
    kind: block
`

// wantOnDisks checks that all storage of the file onDisks is there exactly once.
func (p *program) wantOnDisks() {
	p.Helper()
	status := p.status()
	for name, want := range map[string]command.Storage{
		"data": {Kind: "filesystem", Volume: "0", Filesystem: "0/0", Location: p.mount("data")},
		"raw":  {Kind: "block", Volume: "1", SizeMiB: 32},
	} {
		got := status[name]
		if got.Kind != want.Kind || got.Pool != "disks" || got.Provider != "disks" || got.Status != "attached" || got.Message != "" ||
			got.Volume != want.Volume || got.Filesystem != want.Filesystem || len(got.Attachments) != 1 ||
			want.Location != "" && got.Location != want.Location || want.SizeMiB != 0 && got.SizeMiB != want.SizeMiB {
			p.Errorf("status of %s: %+v", name, got)
		}
	}
	loops := loopsBelow(p, p.dir)
	if len(loops) != 2 || len(loopsBelow(p, p.machine.dir)) != 2 {
		p.Errorf("loop devices %+v, want the program's 2", loops)
	}
	if raw := status["raw"].Location; !slices.ContainsFunc(loops, func(l kernel.Loop) bool { return l.Path == raw }) {
		p.Errorf("raw is at %q, want one of %+v", raw, loops)
	}
	mounts := mountsBelow(p, p.machine.dir)
	if len(mounts) != 1 || mounts[0].Mountpoint != p.mount("data") || mounts[0].FSType != "ext4" {
		p.Errorf("mounts %+v", mounts)
	}
	p.wantVolumes("volume-0", "volume-1")
	p.wantNoDuplicates()
}

func TestEnvironmentStorage(t *testing.T) {
	p := newProgram(newMachine(t))
	p.writeSpec(onDisks)
	p.startManager()
	p.apply()
	p.wantOnDisks()
	p.writeData("data", "raw")
	if report := p.must("report").Stdout; !strings.Contains(report, "environment-storage-provisioner") {
		t.Errorf("the report does not name the environment's worker:\n%s", report)
	}

	for range 2 {
		p.kill()
		p.startManager("--spec", p.spec)
		p.apply()
		p.wantOnDisks()
		p.wantData("data", "raw")
	}

	// As after a reboot: only what is on disk is still there.
	p.stop()
	unmountAndDetach(t, p.machine.dir)
	p.startManager()
	p.apply()
	p.wantOnDisks()
	p.wantData("data", "raw")

	p.must("detach", "data", "raw", "--wait")
	if n := len(loopsBelow(t, p.dir)) + len(mountsBelow(t, p.machine.dir)); n != 0 {
		t.Errorf("%d loop devices and mounts after detaching", n)
	}
	p.must("attach", "data", "raw", "--wait")
	p.wantOnDisks()
	p.wantData("data", "raw")

	p.must("remove", "data", "raw", "--wait")
	p.wantNoStorage()
	p.stop()
}

func TestAgentKilledWhileProviderRuns(t *testing.T) {
	p := newProgram(newMachine(t))
	p.writeSpec(onDisks)
	p.startManager()
	for range 5 {
		p.must("apply", "-f", p.spec)
		p.kill()
		p.startManager()
	}
	p.apply()
	p.wantOnDisks()

	p.must("remove", "data", "raw")
	for range 5 {
		p.kill()
		p.startManager()
	}
	p.must("remove", "data", "raw", "--ignore-missing", "--wait")
	p.wantNoStorage()
	p.stop()
}

// failed and underWay are answers for one volume: a failure, and an operation that goes on.
const (
	failed   = `{"results": [{"error": {"message": "the array is full"}}]}`
	underWay = `{"results": [{"error": {"message": "copying", "code": "in-progress"}}]}`
)

func TestProviderErrorsAreShownAndRetried(t *testing.T) {
	p := newProgram(newMachine(t))
	p.writeSpec("storage: [{name: data, directive: 'disks,64M', kind: filesystem, mount: MNT/data}]")
	p.startManager()
	p.setAnswers("create-volumes", failed, underWay, "!no licence")
	p.runShowing("create-volumes", []string{"the array is full", "copying", "exit status 3: no licence"}, "apply", "-f", p.spec, "--wait")
	p.wantVolumes("volume-0")
	p.writeData("data")

	p.setAnswers("detach-volumes", `{"results": [{"error": {"message": "the link is down"}}]}`)
	p.setAnswers("destroy-volumes", underWay, "no JSON")
	p.runShowing("destroy-volumes", []string{"copying", "reading the answer of"}, "remove", "data", "--wait")
	if n := p.callCount("detach-volumes"); n != 2 {
		t.Errorf("the program was called %d times for detach-volumes, want 2", n)
	}
	p.wantNoStorage()

	// A permanent error is shown at once, and not retried.
	p.setAnswers("create-volumes", `{"results": [{"error": {"message": "no such tier", "code": "permanent"}}]}`)
	r := p.run("apply", "-f", p.spec, "--wait")
	if r.Code != 1 || !strings.Contains(r.Stderr, "no such tier") {
		t.Error(r.All())
	}
	p.must("remove", "data", "--wait")
	if n := p.callCount("create-volumes"); n != 5 {
		t.Errorf("the program was called %d times for create-volumes, want 5", n)
	}
	p.wantNoStorage()
	p.stop()
}

func TestEnvironmentStorageWithoutManager(t *testing.T) {
	p := newProgram(newMachine(t))
	p.writeSpec(onDisks)
	p.start(p.flag())
	r := p.run("apply", "-f", p.spec)
	if r.Code != 1 || !strings.Contains(r.Stderr, p.spec+":4: ") || !strings.Contains(r.Stderr, "--manager") {
		t.Error(r.All())
	}
	p.stop()

	p.startManager("--spec", p.spec)
	p.apply()
	p.writeData("data", "raw")
	p.stop()

	// Without a manager the machine's own work continues, and the status explains the rest.
	p.start()
	for name, s := range p.status() {
		if !strings.Contains(s.Message, "--manager") {
			t.Errorf("the status of %s does not say that it needs a manager: %+v", name, s)
		}
	}
	p.must("attach", "data", "raw", "--wait")
	p.wantData("data", "raw")
	p.must("remove", "data", "raw")
	p.stop()

	p.startManager()
	p.must("remove", "data", "raw", "--ignore-missing", "--wait") // the manager may have done it already
	p.wantNoStorage()
	p.stop()
}

// The plan that a volume's provider returns is recorded when the volume is attached, and
// removed when the volume is detached or removed.
func TestAttachmentPlansAreRecordedAndRemoved(t *testing.T) {
	p := newProgram(newMachine(t))
	p.writeSpec(onDisks)
	p.startManager()
	p.apply()
	p.stop()
	for tag, plan := range p.plans("volume-0", "volume-1") {
		if plan.Error != nil || plan.Result.Life != "alive" || plan.Result.PlanInfo.DeviceType != "local" {
			t.Errorf("the plan of %s: %+v", tag, plan)
		}
	}

	p.startManager()
	p.must("remove", "raw", "--wait")
	p.must("detach", "data", "--wait")
	p.stop()
	for tag, plan := range p.plans("volume-0", "volume-1") {
		if !params.IsCodeNotFound(plan.Error) {
			t.Errorf("the plan of %s is still recorded: %+v", tag, plan)
		}
	}
	p.startManager()
	p.must("remove", "data", "--wait")
	p.wantNoStorage()
	p.stop()
}

// plans returns the attachment plans of volumes, from the state of an agent that has
// stopped.
func (p *program) plans(volumes ...string) map[string]params.VolumeAttachmentPlanResult {
	p.Helper()
	machine := names.NewMachineTag("0")
	plans := map[string]params.VolumeAttachmentPlanResult{}
	p.changeState(func(st *state.State) error {
		for _, volume := range volumes {
			id := params.MachineStorageId{MachineTag: machine.String(), AttachmentTag: volume}
			results, err := st.ForMachine(machine).VolumeAttachmentPlans([]params.MachineStorageId{id})
			if err != nil {
				return err
			}
			plans[volume] = results[0]
		}
		return nil
	})
	return plans
}

// A volume that is not blank is not formatted until a user confirms that its data may be
// lost.
func TestFormat(t *testing.T) {
	p := newProgram(newMachine(t))
	p.writeSpec("storage: [{name: data, directive: 'disks,64M', kind: filesystem, mount: MNT/data}]")
	p.startManager()
	p.setAnswers("attach-volumes", `{"results": [{"error": {"message": "no path", "code": "permanent"}}]}`)
	p.must("apply", "-f", p.spec)
	p.poll("the status is not error", func() bool { return p.status()["data"].Status == "error" })
	files, err := filepath.Glob(filepath.Join(p.dir, "volumes", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("got %q, %v", files, err)
	}
	dataIntact := func() bool {
		data, err := os.ReadFile(files[0])
		return err == nil && strings.Contains(string(data), "dear diary")
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("dear diary"), 2<<20); err != nil {
		t.Fatal(err)
	}
	if r := p.run("format", "data", "--yes"); r.Code != 1 || !strings.Contains(r.Stderr, "no block device") {
		t.Errorf("formatting a detached volume is not refused:\n%s", r.All())
	}
	p.must("retry", "data")
	p.poll("the data on the volume is not found", func() bool { return strings.Contains(p.status()["data"].Message, "data of an unknown kind") })
	if r := p.must("format", "data"); !strings.Contains(r.Stdout, "data of an unknown kind") || !strings.Contains(r.Stdout, "nothing was changed") {
		t.Error(r.All())
	}
	if !dataIntact() {
		t.Error("format without --yes overwrote the data")
	}
	p.must("format", "data", "--yes")
	p.poll("the volume is not formatted", func() bool { return p.status()["data"].Status == "attached" })
	p.writeData("data")
	p.wantData("data")
	if r := p.run("format", "data", "--yes"); r.Code != 1 || !strings.Contains(r.Stderr, "has its filesystem") {
		t.Errorf("formatting a volume in use is not refused:\n%s", r.All())
	}
	p.must("remove", "data", "--wait")
	p.wantNoStorage()
	p.stop()
}

// A provider with the name of a driver, whose file says that it deletes nothing, keeps what is released.
func TestProviderOfAFile(t *testing.T) {
	p := newProgram(newMachine(t))
	dir := filepath.Join(p.dir, "plugins")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := "name: openebs.io/jiva\ntype: program\npath: " + filepath.Join(p.dir, "program") + "\ndelete: false\n"
	if err := os.WriteFile(filepath.Join(dir, "jiva.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	p.writeSpec("storage: [{name: raw, directive: 'openebs-io-jiva,32M', kind: block}]")
	p.start("--manager", "--plugins-dir", dir, "--retry-min", "300ms")
	p.apply()
	if raw := p.status()["raw"]; raw.Provider != "openebs.io/jiva" || raw.Status != "attached" {
		t.Errorf("status: %+v", raw)
	}
	const want = `removing storage "raw": provider "openebs.io/jiva" deletes no block storage: release it, which leaves its data in place`
	if r := p.run("remove", "raw"); r.Code == 0 || !strings.Contains(r.Stderr, want) {
		t.Errorf("remove: exit status %d, %s, want %s", r.Code, r.Stderr, want)
	}
	p.must("release", "raw", "--wait")
	p.machine.wantNoStorage()
	p.wantVolumes("volume-0")
	p.stop()
}
