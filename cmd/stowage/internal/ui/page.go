// Package ui serves a web page that shows storage, machines, pools and events as they are, and changes
// nothing: all that it can do is in [Reader].
//
// The page is for one user on one host, through the user's own connection to an agent or a server. It
// belongs on a loopback address, where every user of the host can connect, so the data needs a cookie,
// which a browser gets once, for the token in the link that the user opens.
package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

//go:embed static
var embedded embed.FS

// Reader is what the page needs of a client.
type Reader interface {
	Watch(ctx context.Context, names []string, each func(user.Event) error) error
	Events(ctx context.Context, args user.EventsArgs) ([]user.StorageEvent, error)
	Machines(ctx context.Context) ([]user.Machine, error)
	Servers(ctx context.Context) ([]user.Server, error)
	Pools(ctx context.Context) ([]user.Pool, error)
	Snapshots(ctx context.Context) ([]user.Snapshot, error)
}

// Config configures a [Page].
type Config struct {
	// Reader has what the page shows. Required.
	Reader Reader
	// Source is the name of the agent or server, which the page shows.
	Source string
	// Heartbeat is how often the page is told that the agent or server still answers. Zero means 10
	// seconds, and at most 20 are allowed: the page takes a silence of 30 seconds for a lost connection.
	Heartbeat time.Duration
}

const (
	defaultHeartbeat = 10 * time.Second
	maxHeartbeat     = 20 * time.Second
)

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or nil.
func (c Config) Validate() error {
	switch {
	case c.Reader == nil:
		return errors.NotValidf("nil Reader")
	case c.Heartbeat < 0 || c.Heartbeat > maxHeartbeat:
		return errors.NotValidf("Heartbeat %s", c.Heartbeat)
	}
	return nil
}

// Page is the handler of a page. Its methods may be called concurrently.
type Page struct {
	config Config
	// root is the path of the page. Browsers send a cookie to all ports of a host, so another user's
	// server on this host could get it. They send it only for paths below that of the cookie, which
	// such a server does not know.
	root    string
	cookie  string
	link    string
	handler http.Handler

	mu    sync.Mutex
	token string // empty once it was used
}

// New returns a page.
func New(config Config) (*Page, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.Heartbeat == 0 {
		config.Heartbeat = defaultHeartbeat
	}
	files, err := fs.Sub(embedded, "static")
	if err != nil {
		return nil, errors.Trace(err)
	}
	p := &Page{config: config, root: "/" + rand.Text() + "/", cookie: rand.Text(), token: rand.Text()}
	p.link = p.root + "open?token=" + p.token
	mux := http.NewServeMux()
	mux.Handle("GET "+p.root, http.StripPrefix(p.root, static(files)))
	mux.HandleFunc("GET "+p.root+"open", p.open)
	api := func(name string, serve http.HandlerFunc) {
		mux.HandleFunc("GET "+p.root+"api/"+name, func(w http.ResponseWriter, r *http.Request) {
			if err := p.authorize(r); err != nil {
				refuse(w, http.StatusUnauthorized, err)
				return
			}
			serve(w, r)
		})
	}
	api("about", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"source": config.Source})
	})
	api("watch", p.watch)
	api("machines", list(config.Reader.Machines))
	api("servers", list(config.Reader.Servers))
	api("pools", list(config.Reader.Pools))
	api("snapshots", list(config.Reader.Snapshots))
	api("events", p.events)
	p.handler = mux
	return p, nil
}

// Link returns the path and the query of the link to the page. It can be opened in one browser.
func (p *Page) Link() string { return p.link }

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	for name, value := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
			"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":       "nosniff",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	} {
		header.Set(name, value)
	}
	switch {
	case !isLoopback(r.Host):
		// A name of another site that resolves to this host makes the page part of that site.
		refuse(w, http.StatusForbidden, errors.New("the page is served to this host only: open it at 127.0.0.1 or localhost"))
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, errors.New("the page can only be read"))
	default:
		p.handler.ServeHTTP(w, r)
	}
}

// isLoopback tells whether the host of a request, with or without a port, is this host and no name that
// others control. A port forwarding of ssh may change the port.
func isLoopback(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

const cookieName = "stowage-ui"

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (p *Page) hasCookie(r *http.Request) bool {
	cookie, err := r.Cookie(cookieName)
	return err == nil && equal(cookie.Value, p.cookie)
}

// open exchanges the token for the cookie.
func (p *Page) open(w http.ResponseWriter, r *http.Request) {
	if !p.hasCookie(r) && !p.useToken(r) {
		refuse(w, http.StatusForbidden, errors.New("this link is not valid, or was opened before: run `stowage ui` again, and open its link"))
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: p.cookie, Path: p.root,
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, p.root, http.StatusSeeOther)
}

// useToken tells whether the request has the token, which is used up by that.
func (p *Page) useToken(r *http.Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Method != http.MethodGet || p.token == "" || !equal(r.URL.Query().Get("token"), p.token) {
		return false
	}
	p.token = ""
	return true
}

// authorize returns an error unless the request is one of the page, in the browser that opened the link.
func (p *Page) authorize(r *http.Request) error {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return errors.New("only the page itself may ask for this")
	}
	if !p.hasCookie(r) {
		return errors.New("this browser has not opened the link of the page: run `stowage ui` again, and open its link")
	}
	return nil
}

// contentTypes are those of the files by their extension: what a host's own table of types says of
// scripts could keep a browser from running them.
var contentTypes = map[string]string{
	"": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// static serves the files of the page, which are no secret.
func static(files fs.FS) http.Handler {
	server := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if contentType, ok := contentTypes[path.Ext(r.URL.Path)]; ok {
			w.Header().Set("Content-Type", contentType)
		}
		server.ServeHTTP(w, r)
	})
}

func refuse(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, map[string]string{"error": err.Error()})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // a browser that has gone needs no answer
}

// writeList answers with a list, or with the error of the agent or server. One that has no such list,
// because it is older or no server, has none of the items.
func writeList[T any](w http.ResponseWriter, all []T, err error) {
	switch {
	case errors.Is(err, errors.NotSupported), errors.Is(err, errors.NotImplemented), errors.Is(err, errors.NotFound):
	case err != nil:
		refuse(w, http.StatusBadGateway, err)
		return
	}
	if all == nil {
		all = []T{}
	}
	writeJSON(w, http.StatusOK, all)
}

func list[T any](read func(context.Context) ([]T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		all, err := read(r.Context())
		writeList(w, all, err)
	}
}

// event is an event with its description.
type event struct {
	user.StorageEvent
	Description string `json:"description"`
}

// events serves the events of the storage in the query, or of all.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	args := user.EventsArgs{Names: query["name"]}
	if text := query.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 {
			refuse(w, http.StatusBadRequest, errors.Errorf("limit %q: write a number from 1", text))
			return
		}
		args.Limit = limit
	}
	happened, err := p.config.Reader.Events(r.Context(), args)
	all := make([]event, len(happened))
	for i, e := range happened {
		all[i] = event{e, table.Event(e)}
	}
	writeList(w, all, err)
}
