package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestExampleInTerminal does what `make run` does: it starts the agent on the example in a
// terminal, waits until everything is attached, and presses Ctrl-C.
func TestExampleInTerminal(t *testing.T) {
	m := newMachine(t)
	example, err := os.ReadFile("../examples/spec.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m.writeSpec(strings.ReplaceAll(string(example), "/srv/stowage", "MNT"))

	keyboardAndScreen, terminal := openTerminal(t, unix.Winsize{Row: 30, Col: 200})
	run := exec.Command(stowage, "run", "--data-dir", m.data, "--spec", m.spec, "--progress")
	run.Stdin, run.Stdout, run.Stderr = terminal, terminal, terminal
	run.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	hint, ended := make(chan struct{}), make(chan error, 1)
	var screen strings.Builder
	go func() {
		for lines := bufio.NewScanner(keyboardAndScreen); lines.Scan(); {
			fmt.Fprintln(&screen, lines.Text())
			if strings.HasPrefix(lines.Text(), "Ctrl-C stops the agent") {
				close(hint)
			}
		}
		ended <- run.Wait()
	}()
	defer func() {
		if t.Failed() {
			_ = run.Process.Kill()
			<-ended
			t.Logf("screen:\n%q", screen.String())
		}
	}()

	select {
	case <-hint:
	case err := <-ended:
		ended <- err
		t.Fatalf("the agent ended: %v", err)
	case <-time.After(waitTimeout):
		t.Fatal("the agent does not say that everything is attached")
	}
	const ctrlC = "\x03"
	if _, err := keyboardAndScreen.WriteString(ctrlC); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		ended <- nil
		if err != nil {
			t.Errorf("the agent ended with: %v", err)
		}
	case <-time.After(waitTimeout):
		t.Fatal("Ctrl-C does not end the agent")
	}
	shown := screen.String()
	for _, text := range []string{"LOCATION", "raw", "data", "scratch", "logs", m.mount("data"), "/dev/loop", "4/4 attached", "all 4 attached", "\x1b["} {
		if !strings.Contains(shown, text) {
			t.Errorf("the terminal did not show %q", text)
		}
	}

	// The storage stays in place, and the next agent takes it over.
	if mounts, loops := len(mountsBelow(t, m.dir)), len(loopsBelow(t, m.dir)); mounts != 3 || loops != 2 {
		t.Errorf("%d mounts and %d loop devices, want 3 and 2", mounts, loops)
	}
	m.start()
	m.must("remove", "raw", "data", "scratch", "logs", "--wait")
	m.wantNoStorage()
	m.stop()
}

// A terminal that does not report its size shows a row for each storage instance.
func TestTerminalOfUnknownSize(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: mem, directive: 'tmpfs,1M,3', kind: filesystem, mount: MNT/mem}]")
	m.start()
	keyboardAndScreen, terminal := openTerminal(t, unix.Winsize{})
	screen := make(chan string)
	go func() {
		var shown strings.Builder
		for lines := bufio.NewScanner(keyboardAndScreen); lines.Scan(); {
			fmt.Fprintln(&shown, lines.Text())
		}
		screen <- shown.String()
	}()
	for _, args := range [][]string{{"apply", "-f", m.spec, "--wait"}, {"remove", "mem", "--wait"}} {
		command := exec.Command(stowage, append(args, "--data-dir", m.data)...)
		command.Stdout = terminal
		if err := command.Run(); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	terminal.Close()
	shown := <-screen
	for _, text := range []string{"mem/0 ", "mem/1 ", "mem/2 ", "all 3 attached", "all 3 removed"} {
		if !strings.Contains(shown, text) {
			t.Errorf("the terminal did not show %q:\n%q", text, shown)
		}
	}
	if strings.Contains(shown, "more") {
		t.Errorf("the terminal omitted rows:\n%q", shown)
	}
	m.stop()
}

// openTerminal opens a pseudo-terminal, and returns the end of a person, who reads and
// types, and the end of a program.
func openTerminal(t *testing.T, size unix.Winsize) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &size); err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return person, program
}
