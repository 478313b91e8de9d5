package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
	"github.com/stowage-io/stowage/cmd/stowage/internal/control"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/testing/clocktest"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// backend is an agent that only answers from its fields, and records the calls.
type backend struct {
	onRemove func() error // what Remove returns
	missing  string       // Storage of this name alone is not found
	happened []user.StorageEvent
	storage  []user.Storage
	looks    []user.StorageLook
	usage    user.UsageList
	changes  []user.Change
	orphans  []user.Orphan
	notAsked []user.NotAsked
	names    []string
	err      error
	// attached and unfinished are in the result of Apply.
	attached int
	machines []user.Machine
	// snapshots are all snapshots, or the answers to requests for one, in order; the last one stays.
	snapshots  []user.Snapshot
	claims     []user.Claim
	unfinished []string
	// events are sent by a watch one after the other; then the watch waits until it is
	// cancelled.
	events []user.Event
	// sent, if not nil, is closed when a watch has sent all events.
	sent chan struct{}

	mu    sync.Mutex
	calls []string
}

func (b *backend) record(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, fmt.Sprintf(format, args...))
}

// recordedCalls returns the calls so far.
func (b *backend) recordedCalls() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

func (b *backend) Apply(_ context.Context, args user.ApplyArgs) (user.ApplyResult, error) {
	b.record("apply %s %q dry=%v", filepath.Base(args.File), args.Content, args.DryRun)
	return user.ApplyResult{Changes: b.changes, Names: b.names, Attached: b.attached, Unfinished: b.unfinished}, b.err
}

func (b *backend) Storage(_ context.Context, names []string) ([]user.Storage, error) {
	b.record("storage %q", names)
	if b.missing != "" && slices.Equal(names, []string{b.missing}) {
		return nil, errors.NotFoundf("storage %q", b.missing)
	}
	return b.storage, b.err
}

func (b *backend) Look(_ context.Context, names []string) ([]user.StorageLook, error) {
	b.record("look %q", names)
	return b.looks, b.err
}

func (b *backend) Usage(_ context.Context, names []string) (user.UsageList, error) {
	b.record("usage %q", names)
	return b.usage, b.err
}

func (b *backend) Watch(ctx context.Context, args user.WatchArgs, send func(user.Event) error) error {
	b.record("watch %q", args.Names)
	for _, event := range b.events {
		if err := send(event); err != nil {
			return err
		}
	}
	if b.sent != nil {
		close(b.sent)
	}
	<-ctx.Done()
	return ctx.Err()
}

func (b *backend) Declare(_ context.Context, on user.Condition, declared user.Declaration) error {
	b.record("declare %+v %+v", on, declared)
	return b.err
}

func (b *backend) RemoveIf(_ context.Context, on user.Condition) error {
	b.record("remove if %+v", on)
	return b.err
}

func (b *backend) Attach(_ context.Context, args user.AttachArgs) (user.ChangesResult, error) {
	b.record("%s", strings.TrimSpace(fmt.Sprintf("attach %q %s %s", args.Names, args.Machine, args.Mount)))
	return user.ChangesResult{Changes: b.changes}, b.err
}

func (b *backend) Claims(_ context.Context, names []string) ([]user.Claim, error) {
	b.record("claims %q", names)
	return b.claims, b.err
}

func (b *backend) Claim(_ context.Context, name string, request user.ClaimRequest) error {
	b.record("claim %s %+v", name, request)
	return b.err
}

func (b *backend) Unclaim(_ context.Context, name string) error {
	b.record("unclaim %s", name)
	return b.err
}

func (b *backend) Offer(_ context.Context, names []string) error {
	b.record("offer %q", names)
	return b.err
}

func (b *backend) Snapshots(_ context.Context, names []string) ([]user.Snapshot, error) {
	b.record("snapshots %q", names)
	if len(names) > 0 && len(b.snapshots) > 1 {
		defer func() { b.snapshots = b.snapshots[1:] }()
		return b.snapshots[:1], b.err
	}
	if len(names) > 0 && len(b.snapshots) == 0 {
		return nil, errors.NotFoundf("snapshot %q", names[0])
	}
	return b.snapshots, b.err
}

func (b *backend) CreateSnapshot(_ context.Context, name string, request user.SnapshotRequest) error {
	b.record("create snapshot %s %+v", name, request)
	return b.err
}

func (b *backend) DeleteSnapshot(_ context.Context, name string, force bool) error {
	b.record("delete snapshot %s %t", name, force)
	return b.err
}

func (b *backend) AwaitSnapshot(context.Context, string) error { return b.err }

func (b *backend) Machines(context.Context) ([]user.Machine, error) {
	return b.machines, b.err
}

func (b *backend) Move(_ context.Context, args user.MoveArgs) (user.MoveResult, error) {
	b.record("move %+v", args)
	return user.MoveResult{Machines: map[string]string{"a": "web"}}, b.err
}

func (b *backend) Servers(context.Context) ([]user.Server, error) {
	return []user.Server{{Name: "a-1", Address: "10.0.0.1:7118", Status: user.ServerUp, Leader: true, EtcdVersion: "3.7.3"}}, b.err
}

func (b *backend) RemoveServer(_ context.Context, args user.RemoveServerArgs) error {
	b.record("remove-server %+v", args)
	return b.err
}

func (b *backend) DrainMachine(_ context.Context, args user.MachineArgs) (user.DrainMachineResult, error) {
	b.record("drain-machine %+v", args)
	return user.DrainMachineResult{Machines: map[string]string{"a": "web"}, Stays: []string{"b"}}, b.err
}

func (b *backend) UndrainMachine(_ context.Context, args user.MachineArgs) error {
	b.record("undrain-machine %+v", args)
	return b.err
}

func (b *backend) LabelMachine(_ context.Context, args user.LabelMachineArgs) error {
	b.record("label-machine %+v", args)
	return b.err
}

func (b *backend) FenceMachine(_ context.Context, args user.FenceMachineArgs) error {
	b.record("fence-machine %+v", args)
	return b.err
}

func (b *backend) RemoveMachine(_ context.Context, args user.RemoveMachineArgs) error {
	b.record("remove-machine %+v", args)
	return b.err
}

func (b *backend) CreateToken(_ context.Context, args user.CreateTokenArgs) (string, error) {
	b.record("create-token %+v", args)
	return "hash.id.secret", b.err
}

func (b *backend) Tokens(context.Context) ([]user.Token, error) {
	return []user.Token{{ID: "id", Role: "machine", Machine: "web", Expires: time.Now().Add(90*time.Minute + time.Second), Uses: 2}, {ID: "other", Role: "machine", Uses: 1, Expires: time.Now().Add(31 * time.Second)}}, b.err
}

func (b *backend) RemoveTokens(_ context.Context, ids []string) error {
	b.record("remove-tokens %q", ids)
	return b.err
}

func (b *backend) Detach(_ context.Context, names []string) error {
	b.record("detach %q", names)
	return b.err
}

func (b *backend) Remove(_ context.Context, args user.RemoveArgs) error {
	b.recordNames("remove", args)
	if b.onRemove != nil {
		return b.onRemove()
	}
	return b.err
}

func (b *backend) Release(_ context.Context, args user.RemoveArgs) error {
	b.recordNames("release", args)
	return b.err
}

// recordNames records a call with the names, and whether it was forced.
func (b *backend) recordNames(call string, args user.RemoveArgs) {
	if args.Force {
		call = "force " + call
	}
	b.record("%s %q", call, args.Names)
}

func (b *backend) Retry(_ context.Context, names []string) error {
	b.record("retry %q", names)
	return b.err
}

func (b *backend) Format(_ context.Context, names []string) error {
	b.record("format %q", names)
	return b.err
}

func (b *backend) Events(_ context.Context, args user.EventsArgs) ([]user.StorageEvent, error) {
	b.record("events %q %d %v", args.Names, args.Limit, args.Since.IsZero())
	return b.happened, b.err
}

func (b *backend) Orphans(_ context.Context, machine string) (user.OrphanList, error) {
	b.record("orphans %q", machine)
	return user.OrphanList{Orphans: b.orphans, NotAsked: b.notAsked}, b.err
}

func (b *backend) Adopt(_ context.Context, args user.AdoptArgs) (user.ChangesResult, error) {
	b.record("adopt %+v", args)
	return user.ChangesResult{Changes: b.changes}, b.err
}

func (b *backend) DeleteOrphan(_ context.Context, args user.DeleteOrphanArgs) (user.DeleteOrphanResult, error) {
	b.record("delete-orphan %+v", args)
	return user.DeleteOrphanResult{Deleted: b.orphans, Until: time.Unix(1e9, 0).UTC()}, b.err
}

func (b *backend) Backup(_ context.Context, args user.BackupArgs) (user.BackupResult, error) {
	b.record("backup %+v", args)
	return user.BackupResult{UUID: "u", Generation: 2, Schema: 4, Bytes: 4096}, b.err
}

func (b *backend) Resize(_ context.Context, args user.ResizeArgs) (user.ChangesResult, error) {
	b.record("resize %+v", args)
	return user.ChangesResult{Changes: b.changes}, b.err
}

func (b *backend) Rename(_ context.Context, args user.RenameArgs) (user.ChangesResult, error) {
	b.record("rename %+v", args)
	return user.ChangesResult{Changes: b.changes}, b.err
}

func (b *backend) Import(_ context.Context, args user.ImportArgs) (user.ChangesResult, error) {
	b.record("import %+v", args)
	return user.ChangesResult{Changes: b.changes}, b.err
}

func (b *backend) Pools(context.Context) ([]user.Pool, error) {
	return []user.Pool{
		{Name: "fast", Provider: "loop", Attributes: map[string]any{"fs": "xfs"}},
		{Name: "tmpfs", Provider: "tmpfs", Attributes: map[string]any{}, Default: true},
	}, b.err
}

func (b *backend) Users(context.Context) ([]user.User, error) {
	return []user.User{{Name: "ann\x1b", Role: "viewer", Enrolled: time.Now().Add(-time.Hour)}}, b.err
}

func (b *backend) RemoveUsers(_ context.Context, names []string) error {
	b.record("remove-users %q", names)
	return b.err
}

func (b *backend) Report(context.Context) (map[string]any, error) {
	return map[string]any{"state": "started", "manifolds": map[string]any{"control": "fine"}}, b.err
}

type logger struct{ t *testing.T }

func (l logger) Warningf(format string, args ...any) { l.t.Logf(format, args...) }

// machine is where commands run: a data directory. If newMachine has a backend, an agent
// listens on the directory's socket.
type machine struct {
	dir   string
	stdin string

	// timeoutAfter, if not nil, is the output after which a command's --timeout ends. If nil,
	// the real clock decides.
	timeoutAfter *string
}

// timeoutWriter advances the clock when a command's output equals a text.
type timeoutWriter struct {
	bytes.Buffer
	after string
	clock *clocktest.Clock
}

func (w *timeoutWriter) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if w.String() == w.after {
		w.clock.Advance(time.Hour)
	}
	return n, err
}

func newMachine(t *testing.T, b *backend) *machine {
	t.Helper()
	// The path of a socket has at most 107 bytes. That of t.TempDir contains the test's name.
	dir, err := os.MkdirTemp("", "cli")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	m := &machine{dir: dir}
	if b == nil {
		return m
	}
	server, err := control.NewServer(control.ServerConfig{
		SocketPath: filepath.Join(m.dir, "stowage.sock"), Backend: b, Logger: logger{t},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Kill()
		if err := server.Wait(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// file writes a file into the machine's directory, and returns its path.
func (m *machine) file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(m.dir, "spec.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

type result struct {
	code           int
	stdout, stderr string
}

func (m *machine) getenv(name string) string {
	return map[string]string{"STOWAGE_DIR": m.dir}[name]
}

func (m *machine) run(ctx context.Context, args ...string) result {
	var stdout, stderr bytes.Buffer
	env := cli.Env{
		Stdin:  strings.NewReader(m.stdin),
		Stdout: &stdout,
		Stderr: &stderr,
		Getenv: m.getenv,
	}
	if m.timeoutAfter == nil {
		code := cli.Main(ctx, args, env)
		return result{code, stdout.String(), stderr.String()}
	}
	timed := &timeoutWriter{after: *m.timeoutAfter, clock: clocktest.New()}
	env.Stdout, env.Clock = timed, timed.clock
	code := cli.Main(ctx, args, env)
	return result{code, timed.String(), stderr.String()}
}

var since = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)

func row(name string, s status.Status, message, location string) user.Storage {
	r := user.Storage{
		Name: name, Kind: "filesystem", Pool: "loop", Provider: "loop", SizeMiB: 64, WantedMiB: 64,
		Life: life.Alive, Revision: "1x2y3z", Status: s, Message: message, Since: since, Location: location,
		Volume: "0/0", Filesystem: "0/1", Attachments: []user.Attachment{},
	}
	if s != status.Detached {
		r.Attachments = []user.Attachment{{Machine: "0", Life: life.Alive, Location: location}}
	}
	return r
}

func event(rows ...user.Storage) user.Event { return user.Event{Storage: rows} }

const spec = "storage: [{name: data, directive: 'loop,64M', kind: filesystem, mount: /srv/data}]"

func TestExitStatusAndErrors(t *testing.T) {
	unknown := &backend{err: errors.New("storage nowhere\x1b[2J\nforged not found")}
	for _, test := range []struct {
		backend *backend
		args    []string
		code    int
		stderr  string
	}{
		{nil, []string{"status"}, 1, "stowage: cannot reach the agent at DIR/stowage.sock: is `stowage run` or `stowage server` running, with this --data-dir or $STOWAGE_DIR?\n"},
		{nil, []string{"remove", "x"}, 1, "stowage: cannot reach the agent at DIR/stowage.sock: is `stowage run` or `stowage server` running, with this --data-dir or $STOWAGE_DIR?\n"},
		{nil, []string{"status", "--socket", "/nowhere/s"}, 1, "stowage: cannot reach the agent at /nowhere/s: is `stowage run` or `stowage server` running, with this --data-dir or $STOWAGE_DIR?\n"},
		{nil, []string{"apply", "-f", "DIR/none"}, 1, "stowage: open DIR/none: no such file or directory\n"},
		{nil, []string{"version"}, 0, ""},
		{nil, []string{"--help"}, 0, ""},
		{nil, []string{"sing"}, 2, "stowage: unknown command \"sing\" for \"stowage\"\nRun `stowage --help` for usage.\n"},
		{nil, []string{"status", "--colour"}, 2, "stowage: unknown flag: --colour\nRun `stowage --help` for usage.\n"},
		{nil, []string{"attach"}, 2, "stowage: requires at least 1 arg(s), only received 0\nRun `stowage --help` for usage.\n"},
		{nil, []string{"apply", "f.yaml"}, 2, "stowage: \"f.yaml\" is one argument too many for \"stowage apply\": name the file with -f\nRun `stowage --help` for usage.\n"},
		{nil, []string{"apply"}, 2, "stowage: required flag(s) \"file\" not set\nRun `stowage --help` for usage.\n"},
		{nil, []string{"status", "-o", "xml"}, 2, "stowage: -o \"xml\" is not known: write table, wide, name, json, yaml or jsonpath=PATH\n"},
		{nil, []string{"status", "-o", "yaml", "--watch"}, 2, "stowage: --watch needs -o table or -o json\n"},
		{nil, []string{"status", "--sort", "age"}, 2, "stowage: --sort \"age\" is not known: write problems, name, size or since\n"},
		{nil, []string{"retry"}, 2, "stowage: name the storage to retry, or use --all\n"},
		{nil, []string{"retry", "x", "--all"}, 2, "stowage: name the storage to retry, or use --all\n"},
		{unknown, []string{"retry", "nowhere"}, 1, "stowage: storage nowhere\\x1b[2J\\nforged not found\n"},
		{nil, []string{"detach", "x", "--timeout", "-1s"}, 2, "stowage: --timeout -1s is negative\n"},
		{nil, []string{"status", "--selector", "tier"}, 2, "stowage: --selector: label \"tier\": write KEY=VALUE, such as zone=a, of lower-case letters, digits, dots, slashes, underscores and hyphens\n"},
		{nil, []string{"status", "--data-dir", ""}, 2, "stowage: --data-dir is empty\n"},
		{nil, []string{"status", "--socket", "/" + strings.Repeat("a", 107)}, 2, "stowage: the socket's path \"/" + strings.Repeat("a", 107) + "\" is longer than 107 bytes: choose a shorter path\n"},
		{nil, []string{"run", "--log-format", "xml"}, 2, "stowage: --log-format \"xml\" is not known: write text or json\n"},
		{nil, []string{"run", "--log-level", "LOUD"}, 2, "stowage: --log-level \"LOUD\" is not known: write TRACE, DEBUG, INFO, WARNING or ERROR\n"},
		{nil, []string{"server"}, 2, "stowage: say where agents are served with --listen, such as --listen 0.0.0.0:7117\n"},
		{nil, []string{"server", "--listen", "7117"}, 1, "stowage: the address to listen on: address 7117: missing port in address\n"},
		{nil, []string{"agent"}, 2, "stowage: required flag(s) \"server\" not set\nRun `stowage --help` for usage.\n"},
		{nil, []string{"agent", "--server", "https://h", "--token", "a", "--token-file", "b"}, 2, "stowage: --token and --token-file are two tokens: use one of them\n"},
		{nil, []string{"agent", "--server", "https://h", "--token-file", "DIR/none"}, 1, "stowage: open DIR/none: no such file or directory\n"},
		{nil, []string{"token", "create"}, 2, "stowage: required flag(s) \"role\" not set\nRun `stowage --help` for usage.\n"},
		{nil, []string{"token", "create", "--role", "root"}, 2, "stowage: --role: role \"root\": the roles are machine, server, admin and viewer\n"},
		{nil, []string{"token", "sing"}, 2, "stowage: unknown command \"sing\" for \"stowage token\"\nRun `stowage --help` for usage.\n"},
		{nil, []string{"machines"}, 1, "stowage: cannot reach the agent at DIR/stowage.sock: is `stowage run` or `stowage server` running, with this --data-dir or $STOWAGE_DIR?\n"},
		{unknown, []string{"status", "nowhere"}, 1, "stowage: storage nowhere\\x1b[2J\\nforged not found\n"},
		{unknown, []string{"detach", "nowhere", "--wait"}, 1, "stowage: storage nowhere\\x1b[2J\\nforged not found\n"},
		{unknown, []string{"pools"}, 1, "stowage: storage nowhere\\x1b[2J\\nforged not found\n"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			m := newMachine(t, test.backend)
			args := make([]string, len(test.args))
			for i, arg := range test.args {
				args[i] = strings.ReplaceAll(arg, "DIR", m.dir)
			}
			r := m.run(t.Context(), args...)
			if want := strings.ReplaceAll(test.stderr, "DIR/", m.dir+"/"); r.code != test.code || r.stderr != want {
				t.Errorf("exit status %d, stderr\n%swant %d,\n%s", r.code, r.stderr, test.code, want)
			}
		})
	}
}

func TestMachines(t *testing.T) {
	seen := time.Now().Add(-3*time.Minute - time.Second)
	b := &backend{machines: []user.Machine{
		{
			Name: "db", Number: "1", Status: user.MachineUnreachable, LastSeen: seen, Refused: since, InstanceID: "i-1",
			Space: map[string]user.MachineSpace{"loop": {SizeMiB: 20 << 10, FreeMiB: 512}, "tmpfs": {SizeMiB: 4 << 10, FreeMiB: 4 << 10}},
		},
		{Name: "web", Number: "0", Status: user.MachinePending},
	}}
	m := newMachine(t, b)
	want := `NAME  NUMBER  STATUS       LAST SEEN  FREE         MESSAGE
db    1       unreachable  3m         512M of 20G  another agent, with a copy of its directory, was refused at 2025-01-02T03:04:05Z
web   0       pending      -          -            
`
	if r := m.run(t.Context(), "machines"); r.code != 0 || r.stdout != want {
		t.Errorf("exit status %d, %s\ngot:\n%swant:\n%s", r.code, r.stderr, r.stdout, want)
	}
	r := m.run(t.Context(), "machines", "-o", "json")
	var listed []map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &listed); err != nil || len(listed) != 2 {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	if _, ok := listed[1]["last-seen"]; ok || listed[0]["name"] != "db" || listed[0]["status"] != "unreachable" || listed[0]["last-seen"] == "" {
		t.Errorf("listed %v", listed)
	}
}

func TestTokens(t *testing.T) {
	b := &backend{}
	m := newMachine(t, b)
	if r := m.run(t.Context(), "token", "create", "--role", "machine", "--machine", "web", "--ttl", "2h", "--uses", "3"); r.code != 0 || r.stdout != "hash.id.secret\n" || r.stderr != "" {
		t.Errorf("created: %+v", r)
	}
	want := `ID     ROLE     MACHINE  EXPIRES IN  USES
id     machine  web      90m         2
other  machine  -        30s         1
`
	if r := m.run(t.Context(), "token", "list"); r.code != 0 || r.stdout != want {
		t.Errorf("listed: %+v, want\n%s", r, want)
	}
	if r := m.run(t.Context(), "token", "remove", "id", "other"); r.code != 0 {
		t.Errorf("removed: %+v", r)
	}
	if r := m.run(t.Context(), "attach", "data", "--machine", "web"); r.code != 0 {
		t.Errorf("attached: %+v", r)
	}
	calls := []string{"create-token {Role:machine Machine:web LifetimeSeconds:7200 Uses:3}", `remove-tokens ["id" "other"]`, `attach ["data"] web`}
	if got := b.recordedCalls(); !slices.Equal(got, calls) {
		t.Errorf("calls %q, want %q", got, calls)
	}
}

func TestMachineCommands(t *testing.T) {
	b := &backend{}
	m := newMachine(t, b)
	for _, args := range [][]string{
		{"machine", "label", "web", "zone=a", "disk-", "rack=r-1"}, {"machine", "fence", "web", "--confirmed"}, {"machine", "fence", "web"},
		{"machine", "undrain", "web"},
	} {
		if r := m.run(t.Context(), args...); r.code != 0 || r.stdout+r.stderr != "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
	const drained = "a  moves to web\nb  stays: it cannot leave the machine\n"
	if r := m.run(t.Context(), "machine", "drain", "web"); r.code != 0 || r.stdout != drained {
		t.Errorf("drained: %+v, want %q", r, drained)
	}
	for _, args := range [][]string{{"machine", "label", "web", "zone"}, {"machine", "label", "web", "zone=a", "zone=b"}} {
		if r := m.run(t.Context(), args...); r.code != 2 || !strings.Contains(r.stderr, `label "zone"`) {
			t.Errorf("%q: %+v", args, r)
		}
	}
	calls := []string{
		"label-machine {Machine:web Set:map[rack:r-1 zone:a] Remove:[disk]}", "fence-machine {Machine:web Confirmed:true}", "fence-machine {Machine:web Confirmed:false}",
		"undrain-machine {Machine:web}", "drain-machine {Machine:web}",
	}
	if got := b.recordedCalls(); !slices.Equal(got, calls) {
		t.Errorf("calls %q, want %q", got, calls)
	}
	b.err = errors.NotSupportedf("fencing")
	if r := m.run(t.Context(), "machine", "fence", "web"); r.code != 2 || !strings.Contains(r.stderr, "then repeat with --confirmed") {
		t.Errorf("a server without a program: %+v", r)
	}
}

// Promise S9.
func TestInvalidFilesDoNotReachAgent(t *testing.T) {
	b := &backend{}
	m := newMachine(t, b)
	path := m.file(t, "storage:\n  - name: Data\n")
	want := "stowage: " + path + ":2: storage[0]: name: \"Data\" is not a name: a lower-case letter, then at most 62 lower-case letters, digits and hyphens\n"
	for _, args := range [][]string{{"apply", "-f", path}, {"run", "--spec", path}} {
		if r := m.run(t.Context(), args...); r.code != 1 || r.stderr != want {
			t.Errorf("%v: exit status %d, stderr\n%swant\n%s", args, r.code, r.stderr, want)
		}
	}
	if len(b.recordedCalls()) != 0 {
		t.Errorf("the agent was asked %q", b.recordedCalls())
	}
	if _, err := os.Stat(filepath.Join(m.dir, "state.db")); !os.IsNotExist(err) {
		t.Errorf("state.db: got %v, want that no agent has started", err)
	}
}

// Each error of a file is on its own line, and cannot forge another.
func TestApplyPrintsAllErrors(t *testing.T) {
	m := newMachine(t, &backend{})
	path := m.file(t, "storage:\n  - name: data\n    kind: \"a\\nb\"\n    directive: loop,0\n")
	want := "stowage: " + path + ":4: storage data: directive: \"loop,0\" gives a size of zero: write POOL,SIZE such as loop,2G\n" +
		"stowage: " + path + ":3: storage data: kind: \"a\\nb\" is not a kind: write block or filesystem\n"
	if r := m.run(t.Context(), "apply", "-f", path); r.code != 1 || r.stderr != want {
		t.Errorf("exit status %d, stderr\n%swant\n%s", r.code, r.stderr, want)
	}
}

// Attaching says what it tries again, and nothing if there is no such storage.
func TestAttachPrintsRetries(t *testing.T) {
	retries := []user.Change{
		{Action: user.ActionRetry, Item: "storage", Name: "data", Detail: "no loop devices"},
		{Action: user.ActionRetry, Item: "storage", Name: "raw", Detail: "device busy"},
	}
	for want, changes := range map[string][]user.Change{
		"": nil,
		"~ data  retry  no loop devices\n~ raw   retry  device busy\n": retries,
	} {
		r := newMachine(t, &backend{changes: changes}).run(t.Context(), "attach", "data", "raw", "log")
		if r.code != 0 || r.stdout != want {
			t.Errorf("%+v, want %q", r, want)
		}
	}
}

func TestApplyPrintsChanges(t *testing.T) {
	changes := []user.Change{
		{Action: user.ActionAdd, Item: "pool", Name: "fast", Detail: "provider loop"},
		{Action: user.ActionAdd, Item: "storage", Name: "data", Detail: "filesystem, pool fast, 2G"},
		{Action: user.ActionAttach, Item: "storage", Name: "raw", Detail: "block, pool loop, 64M"},
		{Action: user.ActionLeave, Item: "storage", Name: "old", Detail: "not in the file"},
	}
	done := `
+ pool fast  add     provider loop
+ data       add     filesystem, pool fast, 2G
~ raw        attach  block, pool loop, 64M
`
	for _, test := range []struct {
		changes []user.Change
		dry     bool
		want    string
	}{
		{changes, false, done},
		{changes, true, done + "! old        leave   not in the file\n"},
		{nil, false, "\nnothing to change\n"},
		{changes[3:], false, "\nnothing to change\n"},
		{changes[3:], true, "\n! old  leave  not in the file\nnothing to change\n"},
	} {
		b := &backend{changes: test.changes}
		m := newMachine(t, b)
		r := m.run(t.Context(), "apply", "-f", m.file(t, spec), fmt.Sprintf("--dry-run=%v", test.dry))
		if got := "\n" + r.stdout; r.code != 0 || got != test.want {
			t.Errorf("exit status %d, stderr %q, stdout%swant%s", r.code, r.stderr, got, test.want)
		}
		if want := []string{fmt.Sprintf("apply spec.yaml %q dry=%v", spec, test.dry)}; !reflect.DeepEqual(b.recordedCalls(), want) {
			t.Errorf("the agent was asked %q, want %q", b.recordedCalls(), want)
		}
	}
}

func TestApplyReadsStandardInput(t *testing.T) {
	b := &backend{}
	m := newMachine(t, b)
	m.stdin = spec
	if r := m.run(t.Context(), "apply", "-f", "-"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if want := []string{fmt.Sprintf("apply stdin %q dry=false", spec)}; !reflect.DeepEqual(b.recordedCalls(), want) {
		t.Errorf("the agent was asked %q, want %q", b.recordedCalls(), want)
	}
}

func TestWaitForManyPrintsSummary(t *testing.T) {
	var pending, attached []user.Storage
	for i := range 101 {
		name := fmt.Sprintf("m/%d", i)
		pending = append(pending, row(name, status.Pending, "", ""))
		attached = append(attached, row(name, status.Attached, "", "/srv/"+name))
	}
	m := newMachine(t, &backend{events: []user.Event{event(pending...), event(attached[0]), event(attached[1:]...)}})
	r := m.run(t.Context(), "attach", "m", "--wait")
	if want := "m/0 attached at /srv/m/0\n"; r.code != 0 || !strings.HasPrefix(r.stdout, want) {
		t.Errorf("%+v\nwant %s first", r, want)
	}

	m = newMachine(t, &backend{events: []user.Event{event(pending...)}})
	want := "0/101 attached, 101 pending\n"
	m.timeoutAfter = &want
	if r = m.run(t.Context(), "attach", "m", "--wait", "--timeout", "2s"); r.code != 3 || r.stdout != want {
		t.Errorf("%+v\nwant %s", r, want)
	}
}

func TestWaitOutcomes(t *testing.T) {
	attached := row("data", status.Attached, "", "/srv/data")
	attaching := row("data", status.Attaching, "", "")
	failing := row("raw", status.Error, "no loop devices", "")
	pending := row("raw", status.Pending, "device busy", "")
	detached := row("data", status.Detached, "", "")
	detaching := row("data", status.Detaching, "", "")
	dying := row("data", status.Destroying, "", "")
	dying.Life = life.Dying
	var many []user.Storage
	for i := range 7 {
		many = append(many, row(fmt.Sprintf("m/%d", i), status.Pending, "", ""))
	}
	for _, test := range []struct {
		about  string
		args   []string
		events []user.Event
		code   int
		stdout string
		stderr string
	}{
		{"all attached", []string{"attach", "data", "raw", "--wait"},
			[]user.Event{event(attaching, pending), event(attached), event(row("raw", status.Attached, "", "/dev/loop7"))},
			0, "data attaching\nraw pending: device busy\ndata attached at /srv/data\nraw attached at /dev/loop7\nall 2 attached\n", ""},
		{"attached, location not known yet", []string{"attach", "raw", "--wait"},
			[]user.Event{event(row("raw", status.Attached, "", "")), event(row("raw", status.Attached, "", "/dev/loop7"))},
			0, "raw attached, its location is not known yet\nraw attached at /dev/loop7\nall 1 attached\n", ""},
		{"one fails", []string{"attach", "data", "raw", "--wait"},
			[]user.Event{event(attaching, failing), event(attached)},
			1, "data attaching\nraw error: no loop devices\ndata attached at /srv/data\n",
			"stowage: 1 of 2 not attached: raw error: no loop devices\n"},
		{"removed while waiting", []string{"attach", "data", "--wait"},
			[]user.Event{event(attaching), {Gone: []string{"data"}}},
			1, "data attaching\ndata removed\n", "stowage: 1 of 1 not attached: data is gone\n"},
		{"timeout", []string{"attach", "data", "raw", "--wait", "--timeout", "1s"},
			[]user.Event{event(attached, pending)},
			3, "data attached at /srv/data\nraw pending: device busy\n",
			"stowage: timed out after 1s: 1 of 2 not attached: raw pending: device busy\n"},
		{"timeout for many", []string{"attach", "m", "--wait", "--timeout", "1s"},
			[]user.Event{event(many...)},
			3, "m/0 pending\nm/1 pending\nm/2 pending\nm/3 pending\nm/4 pending\nm/5 pending\nm/6 pending\n",
			"stowage: timed out after 1s: 7 of 7 not attached: m/0 pending; m/1 pending; m/2 pending; m/3 pending; m/4 pending; and 2 more\n"},
		{"no answer", []string{"attach", "data", "--wait", "--timeout", "1s"}, nil,
			3, "", "stowage: timed out after 1s: the agent has not answered\n"},
		{"detached", []string{"detach", "data", "--wait"},
			[]user.Event{event(attached), event(detaching), event(detached)},
			0, "data attached at /srv/data\ndata detaching\ndata detached\nall 1 detached\n", ""},
		{"removed", []string{"remove", "data", "--wait"},
			[]user.Event{event(dying), {Gone: []string{"data"}}},
			0, "data destroying (removing)\ndata removed\nall 1 removed\n", ""},
		{"removed and added again", []string{"remove", "data", "--wait"},
			[]user.Event{event(dying), event(attaching)},
			0, "data destroying (removing)\ndata attaching\nall 1 removed\n", ""},
		{"removed before the watch", []string{"remove", "data", "--wait"}, []user.Event{{}}, 0, "all 1 removed\n", ""},
		{"to be attached, but removed before the watch", []string{"attach", "data", "--wait"}, []user.Event{{}},
			1, "", "stowage: 1 of 1 not attached: data is gone\n"},
		{"detached by another user", []string{"attach", "data", "--wait"}, []user.Event{event(attaching), event(detached)},
			1, "data attaching\ndata detached\n", "stowage: 1 of 1 not attached: data detached\n"},
		{"not asked to wait", []string{"remove", "data"}, nil, 0, "", ""},
		{"retried", []string{"retry", "data"}, nil, 0, "", ""},
	} {
		t.Run(test.about, func(t *testing.T) {
			t.Parallel()
			b := &backend{events: test.events}
			m := newMachine(t, b)
			if len(test.events) > 0 && test.code == 3 {
				m.timeoutAfter = &test.stdout
			}
			r := m.run(t.Context(), test.args...)
			if r.code != test.code || r.stdout != test.stdout || r.stderr != test.stderr {
				t.Errorf("exit status %d, stdout\n%sstderr\n%swant %d,\n%s%s", r.code, r.stdout, r.stderr, test.code, test.stdout, test.stderr)
			}
			if calls := b.recordedCalls(); !slices.Contains(calls, fmt.Sprintf("%s %q", test.args[0], namesIn(test.args))) {
				t.Errorf("the agent was asked %q", b.recordedCalls())
			}
		})
	}
}

// namesIn returns the arguments of a command up to its flags.
func namesIn(args []string) []string {
	var names []string
	for _, arg := range args[1:] {
		if strings.HasPrefix(arg, "-") {
			break
		}
		names = append(names, arg)
	}
	return names
}

func TestApplyWaitsForStorageInFile(t *testing.T) {
	b := &backend{
		names:  []string{"data", "raw"},
		events: []user.Event{event(row("data", status.Attached, "", "/srv/data"), row("raw", status.Attached, "", "/dev/loop7"))},
	}
	m := newMachine(t, b)
	r := m.run(t.Context(), "apply", "-f", m.file(t, spec), "--wait")
	if r.code != 0 || !strings.HasSuffix(r.stdout, "all 2 attached\n") {
		t.Errorf("%+v", r)
	}
	if got := b.recordedCalls()[len(b.recordedCalls())-1]; got != `watch ["data" "raw"]` {
		t.Errorf("the last call is %s, want a watch of data and raw", got)
	}
}

// What was attached before is counted, and not watched.
func TestApplyWaitsForUnfinished(t *testing.T) {
	failed := row("data/7", status.Error, "no space", "")
	for _, test := range []struct {
		unfinished []string
		events     []user.Event
		calls      int
		code       int
		want       string
	}{
		{nil, nil, 1, 0, "all 900 attached\n"},
		{[]string{"data/7"}, []user.Event{event(row("data/7", status.Attached, "", "/srv/data/7"))}, 2, 0, "all 901 attached\n"},
		{[]string{"data/7"}, []user.Event{event(failed)}, 2, 1, "1 of 901 not attached: data/7"},
	} {
		b := &backend{names: []string{"data"}, attached: 900, unfinished: test.unfinished, events: test.events}
		m := newMachine(t, b)
		r := m.run(t.Context(), "apply", "-f", m.file(t, spec), "--wait")
		if r.code != test.code || !strings.Contains(r.stdout+r.stderr, test.want) {
			t.Errorf("%+v, want %s", r, test.want)
		}
		calls := b.recordedCalls()
		if len(calls) != test.calls || test.calls == 2 && calls[1] != `watch ["data/7"]` {
			t.Errorf("the agent was asked %q", calls)
		}
	}
}

func TestApplyOfEmptyFileDoesNotWait(t *testing.T) {
	b := &backend{} // a watch would never end
	m := newMachine(t, b)
	r := m.run(t.Context(), "apply", "-f", m.file(t, "storage: []"), "--wait", "--timeout", "30s")
	if r.code != 0 || r.stdout != "nothing to change\n" {
		t.Errorf("%+v", r)
	}
	if len(b.recordedCalls()) != 1 {
		t.Errorf("the agent was asked %q", b.recordedCalls())
	}
}

// The timeout also ends a request that the agent does not answer, as when it is suspended.
func TestTimeoutCoversWholeCommand(t *testing.T) {
	m := newMachine(t, nil)
	listener, err := net.Listen("unix", filepath.Join(m.dir, "stowage.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	r := m.run(t.Context(), "remove", "data", "--wait", "--timeout", "50ms")
	if want := "stowage: timed out after 50ms: the agent has not answered\n"; r.code != 3 || r.stderr != want {
		t.Errorf("%+v, want %s", r, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r := m.run(ctx, "status"); r.code != 1 || r.stderr != "stowage: interrupted\n" {
		t.Errorf("%+v", r)
	}
}

func TestInterruptedWaitFails(t *testing.T) {
	b := &backend{events: []user.Event{event(row("data", status.Pending, "", ""))}, sent: make(chan struct{})}
	m := newMachine(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan result)
	go func() { done <- m.run(ctx, "attach", "data", "--wait") }()
	<-b.sent
	cancel()
	want := ": the agent goes on with the request, and `stowage status data` shows how far it is\n"
	if r := <-done; r.code != 1 || !strings.HasPrefix(r.stderr, "stowage: interrupted: ") || !strings.HasSuffix(r.stderr, want) {
		t.Errorf("%+v, want %s", r, want)
	}
}

func TestStatusFormats(t *testing.T) {
	r := row("data", status.Attached, "", "/srv/data")
	second := row("data2/10", status.Error, "a <b>\n", "")
	second.Attachments = []user.Attachment{}
	for _, test := range []struct {
		rows   []user.Storage
		format string
		want   string
	}{
		{nil, "json", "[]\n"},
		{nil, "yaml", "[]\n"},
		{nil, "table", "NAME  KIND  POOL  SIZE  STATUS  SINCE  LOCATION  MESSAGE\n"},
		{[]user.Storage{second, r}, "json", `[
  {
    "name": "data",
    "kind": "filesystem",
    "pool": "loop",
    "provider": "loop",
    "size-mib": 64,
    "wanted-mib": 64,
    "life": "alive",
    "revision": "1x2y3z",
    "status": "attached",
    "message": "",
    "since": "2025-01-02T03:04:05Z",
    "location": "/srv/data",
    "volume": "0/0",
    "filesystem": "0/1",
    "attachments": [
      {
        "machine": "0",
        "life": "alive",
        "location": "/srv/data",
        "read-only": false
      }
    ]
  },
  {
    "name": "data2/10",
    "kind": "filesystem",
    "pool": "loop",
    "provider": "loop",
    "size-mib": 64,
    "wanted-mib": 64,
    "life": "alive",
    "revision": "1x2y3z",
    "status": "error",
    "message": "a <b>\n",
    "since": "2025-01-02T03:04:05Z",
    "location": "",
    "volume": "0/0",
    "filesystem": "0/1",
    "attachments": []
  }
]
`},
		{[]user.Storage{r}, "yaml", `- name: data
  kind: filesystem
  pool: loop
  provider: loop
  size-mib: 64
  wanted-mib: 64
  life: alive
  revision: 1x2y3z
  status: attached
  message: ""
  since: 2025-01-02T03:04:05Z
  location: /srv/data
  volume: 0/0
  filesystem: 0/1
  attachments:
    - machine: "0"
      life: alive
      location: /srv/data
      read-only: false
`},
	} {
		m := newMachine(t, &backend{storage: test.rows})
		got := m.run(t.Context(), "status", "-o", test.format)
		if got.code != 0 || got.stdout != test.want {
			t.Errorf("%s: exit status %d, stderr %q, stdout\n%s\nwant\n%s", test.format, got.code, got.stderr, got.stdout, test.want)
		}
	}
}

// --selector shows the storage that has all of the labels.
func TestStatusOfLabels(t *testing.T) {
	fast, both := row("fast", status.Attached, "", ""), row("both", status.Attached, "", "")
	fast.Labels, both.Labels = map[string]string{"tier": "fast"}, map[string]string{"tier": "fast", "zone": "a"}
	for selector, want := range map[string][]string{
		"tier=fast": {"both", "fast"}, "zone=a,tier=fast": {"both"}, "tier=slow": {}, "": {"both", "fast", "plain"},
	} {
		m := newMachine(t, &backend{storage: []user.Storage{fast, both, row("plain", status.Attached, "", "")}})
		got := m.run(t.Context(), "status", "-l", selector, "-o", "json")
		var rows []user.Storage
		if err := json.Unmarshal([]byte(got.stdout), &rows); err != nil || got.code != 0 {
			t.Fatalf("%s: %v, %+v", selector, err, got)
		}
		names := []string{}
		for _, s := range rows {
			names = append(names, s.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%q selects %q, want %q", selector, names, want)
		}
	}
}

// Tables begin with what needs attention; scripts get names in their order.
func TestStatusOrders(t *testing.T) {
	attaching, broken, healthy := row("b", status.Attaching, "", ""), row("c", status.Error, "gone", ""), row("a", status.Attached, "", "/srv/a")
	attaching.SizeMiB, broken.SizeMiB, healthy.SizeMiB = 10, 20, 30
	attaching.Since = attaching.Since.Add(time.Hour)
	for args, want := range map[string]string{
		"": "cba", "--sort name": "abc", "--sort size": "acb", "--sort since": "bac", "-o wide": "cba", "-o name": "abc", "-o name --sort problems": "cba",
	} {
		m := newMachine(t, &backend{storage: []user.Storage{attaching, broken, healthy}})
		got := m.run(t.Context(), append([]string{"status"}, strings.Fields(args)...)...)
		var names string
		for line := range strings.Lines(got.stdout) {
			if !strings.HasPrefix(line, "NAME") {
				names += line[:1]
			}
		}
		if got.code != 0 || names != want {
			t.Errorf("%s: %q, want %q: %+v", args, names, want, got)
		}
	}
}

// With -o json, each change is an object; storage that loses the labels is gone.
func TestStatusWatchesAsObjects(t *testing.T) {
	slow, fast := row("data", status.Attached, "", "/srv/data"), row("data", status.Attached, "", "/srv/data")
	fast.Labels = map[string]string{"tier": "fast"}
	b := &backend{
		storage: []user.Storage{fast},
		events:  []user.Event{event(row("other", status.Attached, "", ""), fast), event(slow), event(fast), {Gone: []string{"data", "other"}}},
		sent:    make(chan struct{}),
	}
	m := newMachine(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout := &notifyWriter{want: "{\"gone\":\"data\"}\n", after: 2, seen: make(chan struct{})}
	done := make(chan int)
	go func() {
		done <- cli.Main(ctx, []string{"status", "--watch", "-o", "json", "-l", "tier=fast"}, cli.Env{
			Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &bytes.Buffer{}, Getenv: m.getenv,
		})
	}()
	<-stdout.seen
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit status %d", code)
	}
	var told []string
	for line := range strings.Lines(stdout.text.String()) {
		var change struct {
			Storage user.Storage
			Gone    string
		}
		if err := json.Unmarshal([]byte(line), &change); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		told = append(told, change.Storage.Name+" "+change.Storage.Labels["tier"], change.Gone)
	}
	if want := []string{"data fast", "", " ", "data", "data fast", "", " ", "data"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

func TestStatusWatchRunsUntilInterrupted(t *testing.T) {
	b := &backend{
		storage: []user.Storage{row("data", status.Pending, "", "")},
		events: []user.Event{
			event(row("data", status.Pending, "", "")),
			event(row("data", status.Pending, "", "")), // no visible change
			event(row("data", status.Attached, "", "/srv/data")),
			{Gone: []string{"data", "never-seen"}},
		},
		sent: make(chan struct{}),
	}
	m := newMachine(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout := &notifyWriter{want: "data removed\n", seen: make(chan struct{})}
	done := make(chan int)
	go func() {
		done <- cli.Main(ctx, []string{"status", "--watch"}, cli.Env{
			Stdin: strings.NewReader(""), Stdout: stdout, Stderr: &bytes.Buffer{},
			Getenv: m.getenv,
		})
	}()
	<-stdout.seen
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit status %d", code)
	}
	if want := "data pending\ndata attached at /srv/data\ndata removed\n"; stdout.text.String() != want {
		t.Errorf("got\n%swant\n%s", stdout.text.String(), want)
	}
}

// notifyWriter is a buffer that closes a channel when its text ends with want, and has had that after times.
type notifyWriter struct {
	text  bytes.Buffer
	want  string
	after int
	seen  chan struct{}
}

func (s *notifyWriter) Write(p []byte) (int, error) {
	n, err := s.text.Write(p)
	if text := s.text.String(); strings.HasSuffix(text, s.want) && strings.Count(text, s.want) >= s.after {
		close(s.seen)
	}
	return n, err
}

func TestPoolsAndReport(t *testing.T) {
	m := newMachine(t, &backend{})
	if r := m.run(t.Context(), "pools"); r.code != 0 || r.stdout != ""+
		"NAME   PROVIDER  ATTRIBUTES\n"+
		"fast   loop      {\"fs\":\"xfs\"}\n"+
		"tmpfs  tmpfs     {}\n" {
		t.Errorf("%+v", r)
	}
	if r := m.run(t.Context(), "report"); r.code != 0 || r.stdout != "manifolds:\n  control: fine\nstate: started\n" {
		t.Errorf("%+v", r)
	}
}

func TestVersionNamesTheToolchain(t *testing.T) {
	r := newMachine(t, nil).run(t.Context(), "version")
	if r.code != 0 || !strings.HasPrefix(r.stdout, "stowage ") || !strings.Contains(r.stdout, " go1.") {
		t.Errorf("%+v", r)
	}
}

// Without --yes, format only shows what is on the volume.
func TestFormatNeedsYes(t *testing.T) {
	found := row("data", status.Error, "refusing to format /dev/sdb: not blank: it holds xfs\x1b[2J", "")
	const shown = "data: refusing to format /dev/sdb: not blank: it holds xfs\\x1b[2J\n"
	for _, test := range []struct {
		args   []string
		stdout string
		asked  []string
	}{
		{[]string{"format", "data"}, shown + "nothing was changed: repeat with --yes to format the volume and lose its data\n", []string{`storage ["data"]`}},
		{[]string{"format", "data", "--yes"}, shown, []string{`storage ["data"]`, `format ["data"]`}},
	} {
		b := &backend{storage: []user.Storage{found}}
		m := newMachine(t, b)
		if r := m.run(t.Context(), test.args...); r.code != 0 || r.stdout != test.stdout {
			t.Errorf("%q: %+v", test.args, r)
		}
		if !reflect.DeepEqual(b.recordedCalls(), test.asked) {
			t.Errorf("%q: the agent was asked %q", test.args, b.recordedCalls())
		}
	}
}
