package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
)

// The command prints the link to a page that shows the pools of the agent, and ends without an error when it
// is interrupted, even while a browser follows what changes.
func TestUI(t *testing.T) {
	m := newMachine(t, &backend{})
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out, stdout := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		defer stdout.Close()
		code <- cli.Main(ctx, []string{"ui", "--data-dir", m.dir}, cli.Env{Stdout: stdout, Stderr: &stderr, Getenv: func(string) string { return "" }})
	}()
	text, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err, stderr.String())
	}
	link, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Jar: jar, Transport: transport}
	get := func(link string) *http.Response {
		t.Helper()
		answer, err := client.Get(link)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s is answered with %s", link, answer.Status)
		}
		return answer
	}
	page, err := io.ReadAll(get(link.String()).Body)
	if err != nil || !strings.Contains(string(page), "<title>stowage</title>") {
		t.Errorf("the link leads to %q, %v", page, err)
	}
	root := link.Scheme + "://" + link.Host + path.Dir(link.Path)
	var pools []user.Pool
	if err := json.NewDecoder(get(root + "/api/pools").Body).Decode(&pools); err != nil || len(pools) != 2 || pools[0].Name != "fast" {
		t.Errorf("the page has the pools %v, %v", pools, err)
	}
	get(root + "/api/watch")
	interrupt()
	if got := <-code; got != 0 {
		t.Errorf("exit status %d: %s", got, stderr.String())
	}
	if _, err := client.Get(root + "/"); err == nil {
		t.Error("the page is still there")
	}
}

// A page that other hosts could reach is refused, and so is one without an agent.
//
// Promise S31.
func TestUIIsRefused(t *testing.T) {
	m := newMachine(t, &backend{})
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--listen", "0.0.0.0:7118"}, 2, "other hosts can reach"},
		{[]string{"--listen", "10.0.0.1:7118"}, 2, "other hosts can reach"},
		{[]string{"--listen", "[::]:7118"}, 2, "other hosts can reach"},
		{[]string{"--listen", ":7118"}, 2, "write an address with a port"},
		{[]string{"--listen", "localhost:7118"}, 2, "write an address with a port"},
		{[]string{"--listen", "127.0.0.1"}, 2, "write an address with a port"},
		{[]string{"data"}, 2, "the page shows all storage"},
		{[]string{"--socket", m.dir + "/none.sock"}, 1, "cannot reach the agent"},
	} {
		if r := m.run(t.Context(), append([]string{"ui"}, test.args...)...); r.code != test.code || !strings.Contains(r.stderr, test.want) || r.stdout != "" {
			t.Errorf("%v: exit status %d, %s%s", test.args, r.code, r.stdout, r.stderr)
		}
	}
}
