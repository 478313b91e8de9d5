package uitest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// object is an object of JSON.
type object map[string]any

// server answers on a socket as an agent or server does, with what a real one would not have at will: hostile
// texts, many thousands of storage instances.
type server struct {
	socket string
	events chan object // what follows the first line of the stream
	done   chan struct{}

	mu sync.Mutex
	// answers are the lists, by path.
	answers map[string]object
	storage []object
}

func startServer(t *testing.T, storage []object, answers map[string]object) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{socket: filepath.Join(dir, "socket"), events: make(chan object), done: make(chan struct{}), answers: answers, storage: storage}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/watch", s.watch)
	mux.HandleFunc("/v1/", s.list)
	h := &http.Server{Handler: mux}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = h.Serve(listener) // until it is closed
	}()
	t.Cleanup(func() {
		close(s.done)
		h.Close()
		<-served
		os.RemoveAll(dir)
	})
	return s
}

func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	encoder := json.NewEncoder(w)
	s.mu.Lock()
	first := object{"storage": s.storage, "position": "a-0"}
	s.mu.Unlock()
	for line := first; ; {
		if err := encoder.Encode(line); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case line = <-s.events:
		case <-r.Context().Done():
			return
		case <-s.done:
			return
		}
	}
}

func (s *server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := strings.TrimPrefix(r.URL.Path, "/v1/")
	answer, ok := s.answers[name]
	if !ok {
		answer = object{name: []object{}}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// storageOf returns storage as the API has it.
func storageOf(name, status, message string) object {
	location, attachments := "", []object{}
	if status == "attached" {
		location = "/srv/" + name
		attachments = append(attachments, object{"machine": "web1", "life": "alive", "location": location})
	}
	return object{
		"name": name, "kind": "filesystem", "pool": "loop", "provider": "loop", "size-mib": 1024, "wanted-mib": 1024,
		"life": "alive", "revision": "a", "status": status, "message": message, "since": "2026-03-01T10:02:11Z",
		"location": location, "volume": "0/1", "filesystem": "0/0", "attachments": attachments,
	}
}

// Names, messages and attributes are shown as text, whatever is in them.
//
// Promise S31.
func TestHostileText(t *testing.T) {
	const attack = `<img src=x onerror=alert(1)><script>alert(2)</script>`
	name := "a" + attack
	evil := storageOf(name, "error", attack+" \u202egnol \x1b[2J"+strings.Repeat("long", 100))
	evil["labels"] = object{attack: attack}
	evil["pool"] = attack
	evil["asker"] = object{"way": attack, "name": attack}
	evil["from"] = object{"snapshot": attack}
	evil["claim"] = attack
	evil["attachments"] = []object{{"machine": attack, "life": "alive", "location": attack}}
	at := "2026-03-01T10:02:11Z"
	s := startServer(t, []object{evil}, map[string]object{
		"machines":  {"machines": []object{{"name": attack, "number": "1", "status": attack, "last-seen": at, "labels": object{attack: attack}, "space": object{attack: object{"size-mib": 10, "free-mib": 5}}}}},
		"servers":   {"servers": []object{{"name": attack, "address": attack, "status": attack}}},
		"pools":     {"pools": []object{{"name": attack, "provider": attack, "attributes": object{attack: attack, "deep": []object{{"a": attack}}}}}},
		"snapshots": {"snapshots": []object{{"name": attack, "storage-name": name, "status": attack, "message": attack, "size-mib": 1}}},
		"events":    {"events": []object{{"time": at, "storage": name, "number": 1, "type": "error", "entity": attack, "text": attack, "by": attack}}},
	})
	b, _ := openPage(t, "--socket", s.socket)
	check := func(view string) {
		t.Helper()
		b.await(view, "document.querySelector('main').innerText.includes("+quote(attack)+")")
		if n := eval[int](b, "document.querySelectorAll('img, body script, main [onerror]').length"); n > 0 {
			t.Errorf("%s: a text has become %d elements", view, n)
		}
		if eval[bool](b, `/[\u202e\u001b]/.test(document.body.textContent)`) {
			t.Errorf("%s: there are characters that change what others look like", view)
		}
	}
	check("storage")
	b.awaitText(`\u{202e}gnol \u{1b}[2J`)
	b.run("following the link", chromedp.Click(chromedp.CSS("tbody a")))
	b.await("opening the storage", "document.querySelector('h2').textContent === "+quote("Storage "+name))
	b.await("the snapshot", "document.querySelectorAll('section')[1].innerText.includes("+quote(attack)+")")
	b.await("the event", "document.querySelectorAll('section')[2].innerText.includes("+quote(attack)+")")
	check("detail")
	if eval[bool](b, "document.body.innerText.includes('stowage retry')") {
		t.Error("a command that is not safe to copy is shown")
	}
	for _, view := range []string{"Machines", "Pools", "Events"} {
		b.goTo("#/"+strings.ToLower(view), view)
		check(view)
	}
}

// many is more storage than a page should be made of.
const many = 10_000

// Many thousands of storage instances can be found, and none of them keeps the page from answering.
func TestManyStorageInstances(t *testing.T) {
	var all []object
	for i := range many {
		all = append(all, storageOf(fmt.Sprintf("vol/%d", i), "attached", ""))
	}
	all[7777] = storageOf("vol/7777", "error", "the disk is on fire")
	s := startServer(t, all, nil)
	b, _ := openPage(t, "--socket", s.socket)
	b.awaitText("10,000 storage instances")
	const rows = "[...document.querySelectorAll('tbody tr')].map((r) => r.querySelector('a').textContent)"
	shown := eval[[]string](b, rows)
	if len(shown) != 100 || shown[0] != "vol/7777" || shown[1] != "vol/0" || shown[11] != "vol/10" {
		t.Errorf("the page shows %d rows, %q", len(shown), shown)
	}
	// Rows are kept: only what is different is changed.
	eval[chromedp.Void](b, "void (document.querySelectorAll('tbody tr')[5].marked = true)")
	s.events <- object{"storage": []object{storageOf("vol/3", "detached", "")}}
	b.await("the change", "document.querySelectorAll('tbody tr')[4].innerText.includes('detached')")
	if !eval[bool](b, "document.querySelectorAll('tbody tr')[5].marked === true") {
		t.Error("a row that has not changed was made again")
	}
	// Focus stays with a row that moves.
	eval[chromedp.Void](b, "void document.querySelectorAll('tbody a')[9].focus()")
	s.events <- object{"storage": []object{storageOf("vol/8", "error", "it moves up")}}
	b.await("the move", "document.querySelectorAll('tbody tr')[0].innerText.includes('it moves up')")
	if got := eval[string](b, "document.activeElement.textContent"); got != "vol/8" {
		t.Errorf("the focus goes to %q", got)
	}

	b.run("turning the page", chromedp.Click(chromedp.CSS(".pages button:last-child")))
	b.awaitText("101 to 200 of 10,000")
	b.run("typing", chromedp.Focus(chromedp.CSS("#text")), chromedp.KeyEvent("9999"))
	b.await("the filter by name", "document.querySelectorAll('tbody tr').length === 1")
	if hash := eval[string](b, "location.hash"); hash != "#/storage?text=9999" {
		t.Errorf("the address is %s", hash)
	}
	b.goTo("#/storage?status=error", "Storage")
	b.await("the filter by status", rows+".join() === 'vol/8,vol/7777'")
	b.goTo("#/storage?text=on+fire", "Storage")
	b.await("the filter by message", rows+".join() === 'vol/7777'")
	b.goTo("#/storage?machine=none", "Storage")
	b.awaitText("No storage is as the filter says.")

	// A change of everything is shown, and announced as one.
	b.goTo("#/pools", "Pools")
	var changed []object
	for i := range many {
		changed = append(changed, storageOf(fmt.Sprintf("vol/%d", i), "detaching", ""))
	}
	s.events <- object{"storage": changed}
	b.await("the announcement", "document.getElementById('announcer').textContent === '10,000 storage instances have changed'")
	b.goTo("#/storage", "Storage")
	b.awaitText("10,000 in progress")
	var gone []string
	for i := range many - 1 {
		gone = append(gone, fmt.Sprintf("vol/%d", i))
	}
	s.events <- object{"gone": gone}
	b.await("the last one", rows+".join() === 'vol/9999'")
	b.press(kb.Escape)
}

// All views are legible, in both schemes and on a narrow screen.
func TestLooks(t *testing.T) {
	at := "2026-03-01T10:02:11Z"
	growing := storageOf("data", "attached", "growing to 2048 MiB")
	growing["wanted-mib"] = 2048
	growing["labels"] = object{"tier": "fast", "zone": "a"}
	busy := "detaching filesystem 0/4: /srv/www is in use: process 4711 (nginx) has /srv/www/log/access.log open; end it, or move it away, and the agent tries again"
	s := startServer(t, []object{
		growing, storageOf("logs/0", "attached", ""), storageOf("logs/1", "pending", ""), storageOf("www", "detaching", busy),
		storageOf("orders", "error", "/srv/orders: somebody has unmounted it"), storageOf("archive", "detached", ""),
	}, map[string]object{
		"machines": {"machines": []object{
			{"name": "web1", "number": "1", "status": "up", "last-seen": at, "labels": object{"zone": "a"}, "space": object{"loop": object{"size-mib": 102400, "free-mib": 61440}, "rootfs": object{"size-mib": 102400, "free-mib": 61440}, "tmpfs": object{"size-mib": 16384, "free-mib": 16384}}},
			{"name": "web2", "number": "2", "status": "unreachable", "last-seen": at, "drained": true, "space": object{"loop": object{"size-mib": 102400, "free-mib": 5120}}},
			{"name": "web3", "number": "3", "status": "pending"},
			{"name": "web4", "number": "4", "status": "fenced", "last-seen": at, "refused": at},
		}},
		"servers": {"servers": []object{
			{"name": "s1", "address": "10.0.0.1:7118", "status": "up", "leader": true}, {"name": "s2", "address": "10.0.0.2:7118", "status": "unreachable"},
		}},
		"pools": {"pools": []object{
			{"name": "loop", "provider": "loop", "attributes": object{}, "default": true},
			{"name": "fast", "provider": "loop", "attributes": object{"thin": true, "filesystem": "xfs", "mount-options": "noatime"}},
		}},
		"snapshots": {"snapshots": []object{{"name": "monday", "storage-name": "www", "status": "ready", "size-mib": 1024, "taken-at": at}}},
		"events": {"events": []object{
			{"time": at, "storage": "www", "number": 1, "type": "added", "size-mib": 1024, "text": "/srv/www", "by": "uid 0"},
			{"time": at, "storage": "www", "number": 2, "type": "made", "entity": "volume 0/1", "size-mib": 1024, "text": "volume-0-1"},
			{"time": at, "storage": "www", "number": 3, "type": "error", "entity": "filesystem 0/4", "text": busy},
		}},
	})
	b, _ := openPage(t, "--socket", s.socket)
	b.await("the storage", "document.querySelectorAll('tbody tr').length === 6")
	b.checkLooks("storage")
	b.goTo("#/storage/www", "Storage www")
	b.await("the events", "document.querySelectorAll('section')[2].innerText.includes('nginx')")
	b.checkLooks("storage-www")
	for view, text := range map[string]string{"Machines": "web4", "Pools": "noatime", "Events": "nginx"} {
		b.goTo("#/"+strings.ToLower(view), view)
		b.await(view, "document.querySelector('tbody').innerText.includes("+quote(text)+")")
		b.checkLooks(strings.ToLower(view))
	}
}
