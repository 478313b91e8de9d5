package agent_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/cmd/stowage/internal/agent"
	"github.com/stowage-io/stowage/core/status"
)

// listening is a logger that hears where metrics are served.
type listening struct {
	logger
	url chan string
}

func (l listening) Infof(format string, args ...any) {
	l.logger.Infof(format, args...)
	if _, url, ok := strings.Cut(fmt.Sprintf(format, args...), "serving metrics on "); ok {
		l.url <- url
	}
}

func TestMetricsTellWhatHasBeenDone(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	l := listening{logger{t}, make(chan string, 1)}
	c.Logger, c.MetricsAddress = l, "localhost:0"
	a, stop := start(t, c)
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(2, status.Attached))
	url := <-l.url
	page := get(t, url)
	for _, want := range []string{
		`stowage_provisioner_operations_total{kind="create-filesystem",outcome="success",scope="machine-0",source="memory"} 2`,
		`stowage_provisioner_operations_total{kind="attach-filesystem",outcome="success",scope="machine-0",source="memory"} 2`,
		`process_start_time_seconds`,
		`stowage_host_size_bytes `,
		`stowage_host_free_bytes `,
		`stowage_host_thin_promised_bytes 0`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
	stop()
	if r, err := http.Get(url); err == nil {
		r.Body.Close()
		t.Error("metrics are served after the end")
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", r.Status, err)
	}
	return string(page)
}

func TestAgentEndsWhereMetricsCannotBeServed(t *testing.T) {
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := config(t, t.TempDir(), &memory{})
	c.MetricsAddress = listener.Addr().String()
	a, err := agent.New(c)
	if err == nil {
		err = a.Wait()
	}
	if err == nil || !strings.Contains(err.Error(), "serving metrics: listen tcp "+c.MetricsAddress) {
		t.Errorf("got %v", err)
	}
}
