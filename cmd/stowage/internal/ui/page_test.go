package ui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/ui"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// reader is an agent.
type reader struct {
	mu      sync.Mutex
	err     error           // of all lists
	args    user.EventsArgs // of the last request for events
	changes chan user.Event // nil: watching fails
	watch   error           // what watching ends with, once changes is closed
}

func (r *reader) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *reader) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *reader) Watch(ctx context.Context, _ []string, each func(user.Event) error) error {
	if r.changes == nil {
		return errors.New("nothing is to be watched")
	}
	for {
		select {
		case event, ok := <-r.changes:
			if !ok {
				return r.watch
			}
			if err := each(event); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *reader) Events(_ context.Context, args user.EventsArgs) ([]user.StorageEvent, error) {
	r.args = args
	return []user.StorageEvent{{Storage: "data", Number: 7, Type: "remove-wanted", By: "ann"}}, r.failure()
}

func (r *reader) Machines(context.Context) ([]user.Machine, error) {
	return []user.Machine{{Name: "web"}}, r.failure()
}
func (r *reader) Servers(context.Context) ([]user.Server, error)     { return nil, r.failure() }
func (r *reader) Pools(context.Context) ([]user.Pool, error)         { return nil, r.failure() }
func (r *reader) Snapshots(context.Context) ([]user.Snapshot, error) { return nil, r.failure() }

func newPage(t *testing.T, r *reader) *ui.Page {
	t.Helper()
	page, err := ui.New(ui.Config{Reader: r, Source: "here", Heartbeat: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// visitor is a browser.
type visitor struct {
	t      *testing.T
	page   *ui.Page
	cookie *http.Cookie
}

// open opens the link of the page.
func open(t *testing.T, page *ui.Page) *visitor {
	t.Helper()
	v := &visitor{t: t, page: page}
	answer := v.get(page.Link())
	if answer.Code != http.StatusSeeOther || answer.Header().Get("Location") != root(page) {
		t.Fatalf("the link is answered with %d, to %s", answer.Code, answer.Header().Get("Location"))
	}
	v.cookie = answer.Result().Cookies()[0]
	return v
}

// root is the path of the page.
func root(page *ui.Page) string {
	path, _, _ := strings.Cut(page.Link(), "open?")
	return path
}

// get makes a request of the page itself.
func (v *visitor) get(path string) *httptest.ResponseRecorder {
	v.t.Helper()
	return v.do(v.request(http.MethodGet, path))
}

func (v *visitor) request(method, path string) *http.Request {
	r := httptest.NewRequestWithContext(v.t.Context(), method, path, nil)
	r.Host = "127.0.0.1:7118"
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if v.cookie != nil {
		r.AddCookie(v.cookie)
	}
	return r
}

func (v *visitor) do(r *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	v.page.ServeHTTP(answer, r)
	return answer
}

// The headers keep the page from loading or sending anything elsewhere, and others from using it.
//
// Promise S31.
func TestHeaders(t *testing.T) {
	v := open(t, newPage(t, &reader{}))
	for _, path := range []string{"", "main.js", "style.css", "api/pools", "api/none", "none.js"} {
		header := v.get(root(v.page) + path).Header()
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
				"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			"Access-Control-Allow-Origin": "",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%q: %s is %q, want %q", path, name, got, want)
			}
		}
	}
	if got := v.get(root(v.page) + "api/pools").Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("the data is kept: %q", got)
	}
	c := v.cookie
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != root(v.page) || c.Domain != "" {
		t.Errorf("the cookie is %s", c)
	}
}

func TestTypesOfFiles(t *testing.T) {
	v := open(t, newPage(t, &reader{}))
	for path, want := range map[string]string{
		"": "text/html", "main.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml",
		"api/pools": "application/json",
	} {
		answer := v.get(root(v.page) + path)
		if got := answer.Header().Get("Content-Type"); answer.Code != http.StatusOK || !strings.HasPrefix(got, want) {
			t.Errorf("%q is answered with %d and %s, want %s", path, answer.Code, got, want)
		}
	}
}

// The link is for one browser, which can open it again.
//
// Promise S31.
func TestLinkOpensOnce(t *testing.T) {
	page := newPage(t, &reader{})
	other := &visitor{t: t, page: page}
	if answer := other.get(root(page) + "open?token=guess"); answer.Code != http.StatusForbidden {
		t.Errorf("a wrong token is answered with %d", answer.Code)
	}
	if answer := other.do(other.request(http.MethodHead, page.Link())); answer.Code != http.StatusForbidden {
		t.Errorf("a request for the headers of the link is answered with %d", answer.Code)
	}
	v := open(t, page)
	for _, link := range []string{page.Link(), root(page) + "open?token="} {
		answer := other.get(link)
		if answer.Code != http.StatusForbidden || len(answer.Result().Cookies()) > 0 || !strings.Contains(answer.Body.String(), "stowage ui") {
			t.Errorf("another browser is answered with %d: %s", answer.Code, answer.Body)
		}
	}
	if answer := v.get(page.Link()); answer.Code != http.StatusSeeOther {
		t.Errorf("the same browser is answered with %d", answer.Code)
	}
}

// What the page shows is for the browser that has opened the link, and for the page alone.
//
// Promise S31.
func TestDataNeedsCookieOfSamePage(t *testing.T) {
	v := open(t, newPage(t, &reader{}))
	for _, name := range []string{"about", "watch", "machines", "servers", "pools", "snapshots", "events"} {
		path := root(v.page) + "api/" + name
		stranger := &visitor{t: t, page: v.page}
		if answer := stranger.get(path); answer.Code != http.StatusUnauthorized {
			t.Errorf("without the cookie, %s is answered with %d", name, answer.Code)
		}
		stranger.cookie = &http.Cookie{Name: v.cookie.Name, Value: "guess"}
		if answer := stranger.get(path); answer.Code != http.StatusUnauthorized {
			t.Errorf("with a wrong cookie, %s is answered with %d", name, answer.Code)
		}
		for _, site := range []string{"cross-site", "same-site", "none"} {
			r := v.request(http.MethodGet, path)
			r.Header.Set("Sec-Fetch-Site", site)
			if answer := v.do(r); answer.Code != http.StatusUnauthorized {
				t.Errorf("for a page of %s, %s is answered with %d", site, name, answer.Code)
			}
		}
	}
}

// A name of another site that resolves to this host does not get the page.
//
// Promise S31.
func TestHostOfRequest(t *testing.T) {
	v := open(t, newPage(t, &reader{}))
	for host, want := range map[string]int{
		"127.0.0.1:7118": http.StatusOK, "127.0.0.1:8000": http.StatusOK, "localhost:7118": http.StatusOK, "localhost": http.StatusOK,
		"[::1]:7118": http.StatusOK, "127.0.0.53": http.StatusOK,
		"": http.StatusForbidden, "evil.example:7118": http.StatusForbidden, "127.0.0.1.evil.example": http.StatusForbidden, "10.0.0.1:7118": http.StatusForbidden,
		"localhost.evil.example": http.StatusForbidden, "0.0.0.0:7118": http.StatusForbidden,
	} {
		for _, path := range []string{"", "api/pools"} {
			r := v.request(http.MethodGet, root(v.page)+path)
			r.Host = host
			if answer := v.do(r); answer.Code != want {
				t.Errorf("host %q, %q: %d, want %d", host, path, answer.Code, want)
			}
		}
	}
}

// Promise S31.
func TestOnlyReading(t *testing.T) {
	v := open(t, newPage(t, &reader{}))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, http.MethodTrace, "CONNECT"} {
		for _, path := range []string{"", "api/pools", "api/watch", "open"} {
			answer := v.do(v.request(method, root(v.page)+path))
			if answer.Code != http.StatusMethodNotAllowed || answer.Header().Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %q is answered with %d", method, path, answer.Code)
			}
		}
	}
}

func TestPathsOutside(t *testing.T) {
	v := open(t, newPage(t, &reader{}))
	for _, path := range []string{
		"/", "/main.js", "/api/pools", "/v1/storage", root(v.page) + "v1/storage", root(v.page) + "page.go", root(v.page) + "static/main.js",
		root(v.page) + "..%2fpage.go", root(v.page) + "%2e%2e/page.go", root(v.page) + "..%5cpage.go", root(v.page) + "api/..%2f..%2fpage.go",
	} {
		for answer := v.get(path); answer.Code != http.StatusNotFound; answer = v.get(answer.Header().Get("Location")) {
			if answer.Code/100 != 3 || !strings.HasPrefix(answer.Header().Get("Location"), "/") {
				t.Errorf("%s is answered with %d: %.200s", path, answer.Code, answer.Body)
				break
			}
		}
	}
}

func TestLists(t *testing.T) {
	r := &reader{}
	v := open(t, newPage(t, r))
	body := func(name string, code int) string {
		t.Helper()
		answer := v.get(root(v.page) + "api/" + name)
		if answer.Code != code {
			t.Errorf("%s is answered with %d, want %d", name, answer.Code, code)
		}
		return strings.TrimSpace(answer.Body.String())
	}
	if got := body("about", 200); got != `{"source":"here"}` {
		t.Errorf("the source is %s", got)
	}
	if got := body("machines", 200); !strings.HasPrefix(got, `[{"name":"web"`) {
		t.Errorf("the machines are %s", got)
	}
	if got := body("snapshots", 200); got != "[]" {
		t.Errorf("no snapshots are %s", got)
	}
	got := body("events?name=data&limit=5", 200)
	if !strings.Contains(got, `"by":"ann","description":"to be removed"`) || len(r.args.Names) != 1 || r.args.Names[0] != "data" || r.args.Limit != 5 {
		t.Errorf("the events of %+v are %s", r.args, got)
	}
	for _, limit := range []string{"0", "-1", "x", "99999999999999999999"} {
		if got := body("events?limit="+limit, 400); !strings.Contains(got, "write a number") {
			t.Errorf("limit %s: %s", limit, got)
		}
	}
	r.fail(errors.New("the agent is gone"))
	if got := body("pools", 502); got != `{"error":"the agent is gone"}` {
		t.Errorf("the error is %s", got)
	}
	r.fail(errors.NotSupportedf("servers"))
	if got := body("servers", 200); got != "[]" {
		t.Errorf("what is not supported is %s", got)
	}
}

func TestConfigThatIsNotValid(t *testing.T) {
	for field, config := range map[string]ui.Config{
		"Reader": {}, "Heartbeat -1s": {Reader: &reader{}, Heartbeat: -time.Second}, "Heartbeat 1m": {Reader: &reader{}, Heartbeat: time.Minute},
	} {
		if _, err := ui.New(config); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// streamLine is a line of the stream.
type streamLine struct {
	First   bool
	Error   string
	Gone    []string
	Storage []struct {
		Name  string
		Shown struct {
			Size, Status string
			Urgency      int
		}
	}
}

// The stream has all storage, then what changes, and the error that ends it.
func TestStream(t *testing.T) {
	r := &reader{changes: make(chan user.Event), watch: errors.New("the agent has stopped")}
	page := newPage(t, r)
	server := httptest.NewServer(page)
	defer server.Close()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar, Transport: server.Client().Transport}
	answer, err := client.Get(server.URL + page.Link())
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer, err = client.Get(server.URL + root(page) + "api/watch"); err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := json.NewDecoder(bufio.NewReader(answer.Body))
	next := func() (line streamLine) {
		t.Helper()
		if err := lines.Decode(&line); err != nil {
			t.Fatal(err)
		}
		return line
	}
	r.changes <- user.Event{Storage: []user.Storage{
		{Name: "data", Status: status.Error, Life: life.Dying, SizeMiB: 1024, WantedMiB: 2048}, {Name: "logs", Status: status.Attached},
	}}
	first := next()
	if !first.First || len(first.Storage) != 2 || first.Storage[1].Shown.Urgency != 3 {
		t.Errorf("the first line is %+v", first)
	}
	if shown := first.Storage[0].Shown; shown.Size != "1G → 2G" || shown.Status != "error (removing)" || shown.Urgency != 0 {
		t.Errorf("data is shown as %+v", shown)
	}
	r.changes <- user.Event{Gone: []string{"data"}}
	if second := next(); second.First || len(second.Gone) != 1 || second.Gone[0] != "data" {
		t.Errorf("the second line is %+v", second)
	}
	close(r.changes)
	if last := next(); last.Error != "the agent has stopped" {
		t.Errorf("the last line is %+v", last)
	}
	if lines.More() {
		t.Error("something follows the error")
	}
}

// Heartbeats come as long as the agent answers. A connection that is lost without a sign ends the stream.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{changes: make(chan user.Event)}
		v := open(t, newPage(t, r))
		answer := httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.page.ServeHTTP(answer, v.request(http.MethodGet, root(v.page)+"api/watch"))
		}()
		time.Sleep(35 * time.Second)
		synctest.Wait()
		if got := answer.Body.String(); got != "{}\n{}\n{}\n" {
			t.Errorf("after 35 seconds the stream is %q", got)
		}
		r.fail(errors.New("no route to host"))
		<-done
		if got := answer.Body.String(); got != "{}\n{}\n{}\n"+`{"error":"no route to host"}`+"\n" {
			t.Errorf("the stream is %q", got)
		}
	})
}

// A browser that has gone ends what is done for it.
func TestBrowserHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := open(t, newPage(t, &reader{changes: make(chan user.Event)}))
		ctx, cancel := context.WithCancel(t.Context())
		answer := httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			defer close(done)
			v.page.ServeHTTP(answer, v.request(http.MethodGet, root(v.page)+"api/watch").WithContext(ctx))
		}()
		synctest.Wait()
		cancel()
		<-done
		if answer.Body.Len() > 0 {
			t.Errorf("it is sent %q", answer.Body)
		}
	})
}
