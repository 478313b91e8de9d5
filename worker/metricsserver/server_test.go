package metricsserver_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/juju/errors"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-io/stowage/internal/leaktest"
	"github.com/stowage-io/stowage/worker/metricsserver"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "volumes_total", Help: "Volumes."})
	counter.Add(7)
	registry.MustRegister(counter)
	return registry
}

// Behaviour O8.
func TestMetricsAtAddressAndPath(t *testing.T) {
	for _, path := range []string{"", "/storage/metrics"} {
		s, err := metricsserver.New(metricsserver.Config{
			Address: "127.0.0.1:0", Path: path, Gatherer: newRegistry(),
			Routes: func(mux *http.ServeMux) {
				mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "alive") })
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var client http.Client
		get := func(path string) (int, string) {
			t.Helper()
			response, err := client.Get("http://" + s.Address().String() + path)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			return response.StatusCode, string(body)
		}
		at, other := metricsserver.DefaultPath, "/storage/metrics"
		if path != "" {
			at, other = path, metricsserver.DefaultPath
		}
		if code, body := get(at); code != http.StatusOK || !strings.Contains(body, "\nvolumes_total 7\n") {
			t.Errorf("%s: status %d, %s", at, code, body)
		}
		if code, _ := get(other); code != http.StatusNotFound {
			t.Errorf("%s: status %d", other, code)
		}
		if code, body := get("/livez"); code != http.StatusOK || body != "alive" {
			t.Errorf("/livez: status %d, %s", code, body)
		}
		client.CloseIdleConnections()
		s.Kill()
		if err := s.Wait(); err != nil {
			t.Error(err)
		}
		if _, err := client.Get("http://" + s.Address().String() + at); err == nil {
			t.Error("it still listens")
		}
	}
}

func TestErrors(t *testing.T) {
	for field, spoil := range map[string]func(*metricsserver.Config){
		"Address":      func(c *metricsserver.Config) { c.Address = "localhost" },
		"nil Gatherer": func(c *metricsserver.Config) { c.Gatherer = nil },
		`Path "x"`:     func(c *metricsserver.Config) { c.Path = "x" },
		`Path "/{`:     func(c *metricsserver.Config) { c.Path = "/{a" },
	} {
		config := metricsserver.Config{Address: "127.0.0.1:0", Gatherer: newRegistry()}
		spoil(&config)
		if _, err := metricsserver.New(config); !errors.Is(err, errors.NotValid) || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	s, err := metricsserver.New(metricsserver.Config{Address: "127.0.0.1:0", Gatherer: newRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = metricsserver.New(metricsserver.Config{Address: s.Address().String(), Gatherer: newRegistry()})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("an address that is in use: %v", err)
	}
	s.Kill()
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}
