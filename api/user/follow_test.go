package user_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
)

// answers is a server that gives one answer after the other, and then fails.
type answers struct {
	t    *testing.T
	all  []func(http.ResponseWriter)
	from []string // the positions that were asked for
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var args user.WatchArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil || !slices.Equal(args.Names, []string{"data"}) {
		a.t.Errorf("request %+v, %v", args, err)
	}
	a.from = append(a.from, args.From)
	if len(a.all) == 0 {
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte(`{"detail": "the end"}`))
		return
	}
	a.all[0](w)
	a.all = a.all[1:]
}

// stream answers with lines, and then loses the connection.
func stream(lines ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { _, _ = w.Write([]byte(strings.Join(lines, "\n"))) }
}

func problem(status int, code string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(user.Problem{Status: status, Detail: "no", Code: code})
	}
}

// A client that follows storage goes on after its connection is lost, and misses nothing.
func TestFollow(t *testing.T) {
	const twoRows = `{"storage": [{"name": "data/0"}, {"name": "data/1"}], "position": "a-1"}`
	for _, test := range []struct {
		name         string
		answers      []func(http.ResponseWriter)
		events, from []string
	}{
		{"goes on", []func(http.ResponseWriter){
			stream(twoRows, `{"storage": [{"name": "data/2"}], "position": "a-2"}`),
			stream(`{"gone": ["data/0"], "position": "a-7"}`),
		}, []string{"data/0 data/1", "data/2", "-data/0"}, []string{"", "a-2", "a-7"}},
		{"from the beginning", []func(http.ResponseWriter){
			stream(twoRows), problem(http.StatusGone, "gone"),
			stream(`{"storage": [{"name": "data/1"}, {"name": "data/5"}], "position": "b-1"}`, `{"gone": ["data/1"], "position": "b-2"}`),
			problem(http.StatusGone, "gone"), stream(`{}`),
		}, []string{"data/0 data/1", "data/1 data/5 -data/0", "-data/1", "-data/5"}, []string{"", "a-1", "", "b-2", "", ""}},
		{"an older server", []func(http.ResponseWriter){
			stream(twoRows), problem(http.StatusUnprocessableEntity, ""), stream(`{"storage": [{"name": "data/1"}]}`), stream(`{}`),
		}, []string{"data/0 data/1", "data/1 -data/0", "-data/1"}, []string{"", "a-1", "", "", ""}},
		{"a server that starts", []func(http.ResponseWriter){
			stream(twoRows), problem(http.StatusServiceUnavailable, "try again"), stream(), stream(`{"position": "a-1"}`),
		}, []string{"data/0 data/1", ""}, []string{"", "a-1", "a-1", "a-1", "a-1"}},
		{"no first answer", []func(http.ResponseWriter){stream()}, nil, []string{""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := &answers{t: t, all: test.answers}
			agent := httptest.NewServer(server)
			defer agent.Close()
			client, err := user.NewClient(user.Config{URL: agent.URL, Transport: new(http.Transport)})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			var events []string
			err = client.Follow(t.Context(), []string{"data"}, func(e user.Event) error {
				var line []string
				for _, s := range e.Storage {
					line = append(line, s.Name)
				}
				for _, name := range e.Gone {
					line = append(line, "-"+name)
				}
				events = append(events, strings.Join(line, " "))
				return nil
			})
			want := "the end"
			if test.events == nil {
				want = fmt.Sprintf("the agent at %s has stopped", agent.URL)
			}
			if err == nil || err.Error() != want {
				t.Errorf("ended with %v, want %s", err, want)
			}
			if !slices.Equal(events, test.events) || !slices.Equal(server.from, test.from) {
				t.Errorf("events %q, want %q; positions %q, want %q", events, test.events, server.from, test.from)
			}
		})
	}
}

// A client gives up when a server does not come back.
func TestFollowGivesUp(t *testing.T) {
	agent := httptest.NewServer(&answers{t: t, all: []func(http.ResponseWriter){stream(`{}`)}})
	client, err := user.NewClient(user.Config{URL: agent.URL, Transport: &http.Transport{DisableKeepAlives: true}, ReconnectTimeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	err = client.Follow(t.Context(), []string{"data"}, func(user.Event) error {
		agent.Listener.Close()
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), agent.URL) || errors.Is(err, errors.NotValid) {
		t.Errorf("ended with %v", err)
	}
	agent.Close()
}
