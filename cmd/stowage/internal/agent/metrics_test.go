package agent_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stowage-io/stowage/cmd/stowage/internal/agent"
	"github.com/stowage-io/stowage/core/status"
)

// metricsURLLogger is a logger that sends the URL of the metrics to a channel.
type metricsURLLogger struct {
	logger
	url chan string
}

func (l metricsURLLogger) Infof(format string, args ...any) {
	l.logger.Infof(format, args...)
	if _, url, ok := strings.Cut(fmt.Sprintf(format, args...), "serving metrics on "); ok {
		l.url <- url
	}
}

// metricName matches the name and type of a metric of our own on the page.
var metricName = regexp.MustCompile(`(?m)^# TYPE (stowage_\w+) (\w+)$`)

func TestMetricsCountOperations(t *testing.T) {
	c := config(t, t.TempDir(), &memory{})
	l := metricsURLLogger{logger{t}, make(chan string, 1)}
	c.Logger, c.MetricsAddress = l, "localhost:0"
	a, stop := start(t, c)
	if err := apply(t, a, two); err != nil {
		t.Fatal(err)
	}
	until(t, a, all(2, status.Attached))
	url := <-l.url
	// The metrics of the state follow it.
	const attached = `stowage_storage_instances{kind="filesystem",pool="fast",status="attached"} 2`
	page := get(t, url)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(page, attached) && time.Now().Before(deadline); {
		page = get(t, url)
	}
	problems, err := testutil.GatherAndLint(a.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, want := range []string{
		`stowage_provisioner_operations_total{kind="create-filesystem",outcome="success",scope="machine-0",source="memory"} 2`,
		`stowage_provisioner_operations_total{kind="attach-filesystem",outcome="success",scope="machine-0",source="memory"} 2`,
		`process_start_time_seconds`,
		`stowage_host_size_bytes `,
		`stowage_host_free_bytes `,
		`stowage_host_thin_promised_bytes 0`,
		attached,
		`stowage_provisioner_last_success_timestamp_seconds{scope="machine-0",source="memory"} `,
		`stowage_build_info{goversion="go`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the metrics lack %s:\n%s", want, page)
		}
	}
	reference, err := os.ReadFile("../../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range metricName.FindAllStringSubmatch(page, -1) {
		if name := match[1]; !strings.Contains(string(reference), "| `"+name+"` | "+match[2]+" |") {
			t.Errorf("docs/reference/metrics.md has no %s %s", match[2], name)
		}
	}
	stop()
	if r, err := http.Get(url); err == nil {
		r.Body.Close()
		t.Error("metrics are served after the agent has ended")
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

func TestAgentEndsIfMetricsAddressInUse(t *testing.T) {
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
