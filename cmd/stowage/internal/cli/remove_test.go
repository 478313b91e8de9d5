package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
	"github.com/stowage-io/stowage/core/status"
)

// openTerminal returns a new terminal, and the end that a person is at.
func openTerminal(t *testing.T) (terminal, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs terminals: %v", err)
	}
	t.Cleanup(func() { _ = person.Close() })
	number, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("needs terminals: %v", err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return terminal, person
}

// runOnTerminal runs a command for a person who types an answer. It returns what the person saw.
func (m *machine) runOnTerminal(t *testing.T, answer string, args ...string) result {
	t.Helper()
	terminal, person := openTerminal(t)
	if _, err := io.WriteString(person, answer); err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	code := cli.Main(context.Background(), args, cli.Env{Stdin: terminal, Stdout: &stdout, Stderr: terminal, Getenv: m.getenv})
	// What was written is there, and ends with a word that no command writes.
	const end = "THE-END"
	if _, err := terminal.WriteString(end); err != nil {
		t.Fatal(err)
	}
	var seen []byte
	for buffer := make([]byte, 1024); !bytes.HasSuffix(seen, []byte(end)); {
		n, err := person.Read(buffer)
		if err != nil {
			t.Fatalf("reading the terminal: %v", err)
		}
		seen = append(seen, buffer[:n]...)
	}
	return result{code, stdout.String(), strings.TrimSuffix(string(seen), end)}
}

func twoStored() *backend {
	asked := row("pvc", status.Detached, "", "")
	asked.Asker = &user.Asker{Way: "csi", Name: "pvc-1"}
	return &backend{storage: []user.Storage{row("data", status.Attached, "", "/srv/data"), asked}}
}

func TestRemoveDryRun(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"remove", "data", "pvc", "--dry-run"}, `
- data  remove  filesystem, pool loop, 64M, attached to machine 0 at /srv/data; its data is destroyed
- pvc   remove  filesystem, pool loop, 64M; its data is destroyed; refused without --force, since csi asked for it, as pvc-1
`},
		{[]string{"rm", "data", "pvc", "--dry-run", "--keep-data", "--force"}, `
- data  release  filesystem, pool loop, 64M, attached to machine 0 at /srv/data; its data is kept
- pvc   release  filesystem, pool loop, 64M; its data is kept
`},
		{[]string{"release", "data", "pvc", "--dry-run", "--force"}, `
- data  release  filesystem, pool loop, 64M, attached to machine 0 at /srv/data; its data is kept
- pvc   release  filesystem, pool loop, 64M; its data is kept
`},
	} {
		b := twoStored()
		r := newMachine(t, b).run(t.Context(), test.args...)
		if r.code != 0 || "\n"+r.stdout != test.want {
			t.Errorf("%q: exit status %d, %s\n%swant%s", test.args, r.code, r.stderr, r.stdout, test.want)
		}
		if got, want := b.recordedCalls(), []string{`storage ["data" "pvc"]`}; !slices.Equal(got, want) {
			t.Errorf("%q: the agent was asked %q, want %q", test.args, got, want)
		}
	}
}

func TestRemoveKeepsData(t *testing.T) {
	b := twoStored()
	if r := newMachine(t, b).runOnTerminal(t, "", "remove", "data", "--keep-data"); r.code != 0 || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	if got := b.recordedCalls(); !slices.Contains(got, `release ["data"]`) {
		t.Errorf("the agent was asked %q", got)
	}
}

func TestRemoveAsksOnTerminal(t *testing.T) {
	const removal = `remove ["data" "pvc"]`
	for _, test := range []struct {
		answer string
		args   []string
		asks   bool
		code   int
		says   string
	}{
		{"y\n", nil, true, 0, ""},
		{"YES\n", nil, true, 0, ""},
		{"n\n", nil, true, 1, "nothing was removed: the answer was not yes"},
		{"\n", nil, true, 1, "nothing was removed: the answer was not yes"},
		{"\x04", nil, true, 1, "nothing was removed: the answer was not yes"}, // the end of the input
		{"", []string{"--yes"}, false, 0, ""},
	} {
		b := twoStored()
		r := newMachine(t, b).runOnTerminal(t, test.answer, append([]string{"remove", "data", "pvc"}, test.args...)...)
		asks := strings.Contains(r.stderr, "at /srv/data; its data is destroyed") && strings.Contains(r.stderr, "Destroy this storage and its data? [y/N]")
		if r.code != test.code || asks != test.asks || !strings.Contains(r.stderr, test.says) {
			t.Errorf("answer %q, %q: %+v", test.answer, test.args, r)
		}
		if removes := slices.Contains(b.recordedCalls(), removal); removes != (test.code == 0) {
			t.Errorf("answer %q, %q: the agent was asked %q", test.answer, test.args, b.recordedCalls())
		}
	}
}

// An agent makes storage again that its file still lists: the user is told when there is time to change that.
func TestRemoveTellsOfTheAgentsFile(t *testing.T) {
	b := twoStored()
	b.storage[0].Spec = "/etc/stowage.yaml\n"
	for _, verb := range []string{"remove", "release"} {
		want := "stowage: the agent applies /etc/stowage.yaml\\n whenever it starts: take the entry out of the file, or this is made again, empty: data\n"
		if r := newMachine(t, b).run(t.Context(), verb, "data", "pvc"); r.code != 0 || r.stderr != want {
			t.Errorf("%s: %+v, want %s", verb, r, want)
		}
	}
}

// Nobody is there to answer a script.
func TestRemoveDoesNotAskScripts(t *testing.T) {
	b := twoStored()
	if r := newMachine(t, b).run(t.Context(), "remove", "data"); r.code != 0 || r.stdout+r.stderr != "" {
		t.Errorf("%+v", r)
	}
	if got := b.recordedCalls(); !slices.Contains(got, `remove ["data"]`) {
		t.Errorf("the agent was asked %q", got)
	}
}

// What is removed while the command looks for it is missing, too.
func TestRemoveIgnoresWhatIsGoneInBetween(t *testing.T) {
	first, second := row("a", status.Attached, "", "/srv/a"), row("b", status.Attached, "", "/srv/b")
	b := &backend{storage: []user.Storage{first, second}}
	b.onRemove = func() error {
		if b.missing != "" {
			return nil
		}
		b.missing = "b"
		return errors.NotFoundf("storage \"b\"")
	}
	m := newMachine(t, b)
	if r := m.run(t.Context(), "remove", "a", "b", "--ignore-missing"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	calls := b.recordedCalls()
	if last := calls[len(calls)-1]; last != `remove ["a"]` {
		t.Errorf("calls %q", calls)
	}
	b.missing = ""
	if r := m.run(t.Context(), "remove", "a", "b"); r.code != 1 || !strings.Contains(r.stderr, `storage "b" not found`) {
		t.Errorf("without the flag: %+v", r)
	}
}
