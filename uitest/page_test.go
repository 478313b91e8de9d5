package uitest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var build = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("go", "build", "-C", "..", "-o", binary, "./cmd/stowage").CombinedOutput()
})

// binary is the built command.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ui")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "stowage")
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// process is a command that runs until it is interrupted.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
	mu   sync.Mutex
	log  bytes.Buffer
}

// start starts the command, and returns the first line that it writes with a text. The caller stops it.
func start(t *testing.T, text string, args ...string) (*process, string) {
	t.Helper()
	if out, err := build(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: "stowage " + args[0], cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = write, write
	err = p.cmd.Start()
	write.Close()
	if err != nil {
		read.Close()
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		defer close(p.done)
		defer read.Close()
		for lines := bufio.NewScanner(read); lines.Scan(); {
			if strings.Contains(lines.Text(), text) {
				select {
				case ready <- lines.Text():
				default:
				}
			}
			p.mu.Lock()
			p.log.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
		}
		p.err = p.cmd.Wait()
	}()
	select {
	case line := <-ready:
		return p, line
	case <-p.done:
		t.Fatalf("%s has ended: %v\n%s", p.name, p.err, p.log.String())
	case <-time.After(limit):
		p.stop()
		t.Fatalf("%s does not begin", p.name)
	}
	return nil, ""
}

// stop interrupts the command, which must end without an error.
func (p *process) stop() {
	select {
	case <-p.done: // it was stopped before
		return
	default:
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Errorf("%s does not end", p.name)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	if p.err != nil {
		p.t.Errorf("%s ended with: %v\n%s", p.name, p.err, p.log.String())
	}
}

// openPage starts the page of an agent, and opens it.
func openPage(t *testing.T, args ...string) (*browser, *process) {
	t.Helper()
	p, link := start(t, "http://", append([]string{"ui"}, args...)...)
	t.Cleanup(p.stop)
	return openBrowser(t, link), p
}

// agent is an agent with a state of its own.
type agent struct {
	t    *testing.T
	data string
	// made are the names of the storage that it has.
	made []string
	*process
}

func startAgent(t *testing.T) *agent {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("mounts need root, which STOWAGE_REQUIRE_ROOT=1 promises")
		}
		t.Skip("mounts need root")
	}
	// The directories of tests are too long for the path of a socket.
	dir, err := os.MkdirTemp("", "a")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, data: filepath.Join(dir, "agent")}
	a.restart()
	t.Cleanup(func() {
		if len(a.made) > 0 {
			a.command(append([]string{"remove", "--ignore-missing", "--wait"}, a.made...)...)
		}
		a.stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *agent) restart() {
	a.t.Helper()
	a.process, _ = start(a.t, "listening on", "run", "--data-dir", a.data, "--log-level", "debug")
}

// command runs a command for the agent.
func (a *agent) command(args ...string) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit) // a cleanup has no context of its test
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append(args, "--data-dir", a.data)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		a.t.Fatalf("stowage %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// create makes storage in a directory of the test.
func (a *agent) create(name string) {
	a.t.Helper()
	a.made = append(a.made, name)
	a.command("create", name, "--pool", "tmpfs", "--size", "16M", "--mount", filepath.Join(filepath.Dir(a.data), name), "--wait")
}

// What happens to the storage of an agent is shown as it happens, without the page being loaded again.
func TestPageIsLive(t *testing.T) {
	a := startAgent(t)
	b, _ := openPage(t, "--data-dir", a.data)
	b.awaitText("There is no storage yet.")
	b.await("the connection", "document.getElementById('connection').textContent === 'Live'")
	b.checkLooks("empty")
	eval[chromedp.Void](b, "void (window.unchanged = true)")

	a.create("data")
	a.create("logs")
	b.awaitText("2 storage instances")
	b.await("the status", "[...document.querySelectorAll('tbody tr')].every((r) => r.innerText.includes('attached'))")
	b.await("the announcement", "/(data|logs) is attached/.test(document.getElementById('announcer').textContent)")

	// The agent finds that the filesystem is gone, and the page says so.
	a.command("detach", "logs", "--wait")
	b.await("the change of one row", "document.querySelector('tbody').innerText.includes('detached')")

	b.goTo("#/storage/logs", "Storage logs")
	b.awaitText("stowage attach logs")
	b.awaitText("to be detached")
	a.command("remove", "logs", "--wait")
	b.awaitText("There is no such storage.")
	b.goTo("#/events?text=logs", "Events")
	b.await("the event", "document.querySelector('tbody tr')?.innerText.includes('removed')")
	if !eval[bool](b, "window.unchanged === true") {
		t.Error("the page was loaded again")
	}
}

// A page whose agent has ended says so and since when, and goes on by itself when there is one again. The page of
// a command that has ended does not take another command for its own.
func TestLostConnection(t *testing.T) {
	a := startAgent(t)
	a.create("data")
	b, ui := openPage(t, "--data-dir", a.data)
	b.await("the storage", "document.querySelector('tbody')?.innerText.includes('data')")

	b.setLossy(true)
	a.stop()
	b.await("the reason", "/^Not connected: (the agent at|cannot reach the agent at) /.test(document.getElementById('connection').textContent)")
	b.awaitText("What you see is as of")
	if !eval[bool](b, "document.body.classList.contains('stale')") {
		t.Error("stale data looks as if it were live")
	}
	b.checkLooks("lost")
	a.restart()
	b.await("the connection", "document.getElementById('connection').textContent === 'Live'")
	b.setLossy(false)
	a.create("later")
	b.await("the new storage", "document.querySelector('tbody').innerText.includes('later')")

	b.setLossy(true)
	ui.stop()
	b.awaitText("the command stowage ui does not answer")
	again, _ := start(t, "http://", "ui", "--data-dir", a.data, "--listen", strings.TrimPrefix(b.origin, "http://"))
	t.Cleanup(again.stop)
	b.awaitText("this page is of a command that has ended")
}

// The keyboard alone reaches each view and each storage instance.
func TestKeyboard(t *testing.T) {
	a := startAgent(t)
	a.create("data")
	b, _ := openPage(t, "--data-dir", a.data)
	b.await("the storage", "document.querySelector('tbody')?.innerText.includes('data')")

	for _, view := range []string{"Machines", "Pools", "Events", "Storage"} {
		b.tabTo(view)
		b.press(kb.Enter)
		b.await("opening "+view, "document.activeElement.tagName === 'H2' && document.activeElement.textContent === "+quote(view))
		if title := eval[string](b, "document.title"); !strings.HasPrefix(title, view) {
			t.Errorf("the title of %s is %s", view, title)
		}
	}
	b.tabTo("data")
	b.press(kb.Enter)
	b.await("opening data", "document.activeElement.textContent === 'Storage data'")
	b.checkLooks("detail")

	// Past the navigation.
	eval[chromedp.Void](b, "void document.activeElement.blur()")
	b.tabTo("Skip to the content")
	b.press(kb.Enter)
	if tag := eval[string](b, "document.activeElement.tagName"); tag != "MAIN" {
		t.Errorf("the link to the content leads to %s", tag)
	}
	if hash := eval[string](b, "location.hash"); hash != "#/storage/data" {
		t.Errorf("the link to the content changes the address to %s", hash)
	}
}

// A screen reader finds landmarks, headings and tables, on a narrow screen, too, where rows are blocks.
func TestAccessibilityTree(t *testing.T) {
	a := startAgent(t)
	a.create("data")
	b, _ := openPage(t, "--data-dir", a.data)
	b.await("the storage", "document.querySelector('tbody')?.innerText.includes('data')")
	for _, width := range []int64{1280, 400} {
		b.size(width, 900)
		found := b.roles()
		for _, want := range []string{
			"banner", "navigation Views", "main", "contentinfo", "search Filter storage", "heading stowage", "heading Storage",
			"link Storage", "searchbox Name or text", "combobox Status", "table 1 storage instance", "columnheader Name", "rowheader data", "cell 16M",
			"status",
		} {
			if width < 600 && want == "cell 16M" {
				want = "cell Size 16M" // the title is beside it
			}
			if !slices.Contains(found, want) {
				t.Errorf("at a width of %d, a screen reader finds no %q in:\n%s", width, want, strings.Join(found, "\n"))
			}
		}
	}
}

// roles returns the role of each element for a screen reader, with its name if it has one.
func (b *browser) roles() (found []string) {
	b.t.Helper()
	for _, node := range call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if node.Ignored || node.Role == nil {
			continue
		}
		var role, name string
		if err := json.Unmarshal(node.Role.Value, &role); err != nil {
			b.t.Fatal(err)
		}
		if node.Name != nil && node.Name.Value != nil {
			if err := json.Unmarshal(node.Name.Value, &name); err != nil {
				b.t.Fatal(err)
			}
		}
		found = append(found, strings.TrimSpace(role+" "+name))
	}
	return found
}
