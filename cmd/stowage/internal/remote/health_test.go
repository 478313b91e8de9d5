package remote_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
)

// metricsOf returns the metrics of a process, and checks that the page in the documents has them.
func metricsOf(t *testing.T, p *process.Process) string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	page := answer.Body.String()
	problems, err := testutil.GatherAndLint(p.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	reference, err := os.ReadFile("../../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`(?m)^# TYPE (stowage_\w+) (\w+)$`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(string(reference), "| `"+match[1]+"` | "+match[2]+" |") {
			t.Errorf("docs/reference/metrics.md has no %s %s", match[2], match[1])
		}
	}
	return page
}

// health returns the answer to a request about the health of a process.
func health(p *process.Process, path string) string {
	mux := http.NewServeMux()
	p.HealthRoutes(mux, true)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return fmt.Sprint(answer.Code, " ", strings.TrimSpace(answer.Body.String()))
}

// A server and its agents say how they are.
func TestHealthAndMetrics(t *testing.T) {
	s := newSite(t)
	web, err := s.agent("web", "web", s.token())
	s.must(err)
	want := func(what, page string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains(page, "\n"+line+"\n") {
				t.Errorf("the metrics of %s lack %q:\n%s", what, line, page)
			}
		}
	}
	want("the server", metricsOf(t, s.server.Process), `stowage_server_machines{status="up"} 1`, `stowage_server_machines{status="fenced"} 0`, "stowage_server_provisions_environment 1")
	want("the agent", metricsOf(t, web.Process), "stowage_agent_connected 1", "stowage_host_thin_promised_bytes 0")
	for _, p := range []*process.Process{s.server.Process, web.Process} {
		if expiry := regexp.MustCompile(`(?m)^stowage_certificate_expiry_timestamp_seconds (\S+)$`).FindString(metricsOf(t, p)); !strings.Contains(expiry, "e+09") {
			t.Errorf("the expiry of a certificate is %q", expiry)
		}
		for _, path := range []string{"/livez", "/healthz", "/readyz"} {
			if got := health(p, path); got != "200 ok" {
				t.Errorf("%s: %s", path, got)
			}
		}
	}

	// The port of the server needs no certificate for that.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	get := func(path string) string {
		response, err := (&http.Client{Transport: transport}).Get("https://" + s.address + path)
		s.must(err)
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		s.must(err)
		return fmt.Sprint(response.StatusCode, " ", strings.TrimSpace(string(body)))
	}
	for _, path := range []string{"/livez", "/healthz", "/readyz"} {
		if got := get(path); got != "200 ok" {
			t.Errorf("%s at the port: %s", path, got)
		}
	}
	if other := get("/v1/storage"); !strings.HasPrefix(other, "403") {
		t.Errorf("a request of a user without a certificate: %s", other)
	}

	s.stop()
	deadline := time.Now().Add(patience)
	for !strings.HasPrefix(health(web.Process, "/readyz"), "503 not ready: there is no connection to https://"+s.address) {
		if time.Now().After(deadline) {
			t.Fatalf("the agent without a server: %s", health(web.Process, "/readyz"))
		}
		<-time.After(time.Millisecond)
	}
	if got := health(web.Process, "/healthz"); got != "200 ok" {
		t.Errorf("the agent without a server, which a restart does not help: /healthz: %s", got)
	}
	want("the agent without a server", metricsOf(t, web.Process), "stowage_agent_connected 0")
	if ready := health(s.server.Process, "/readyz"); ready != "503 not ready: the process is stopping" {
		t.Errorf("the server that was stopped: %s", ready)
	}
}
