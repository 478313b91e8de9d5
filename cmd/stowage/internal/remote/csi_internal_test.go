package remote

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/agentapi"
	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// A server that is older than the agent has no volumes for it, and the agent says what to do.
func TestVolumesOfOlderServer(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	st, err := state.Open(state.Config{Store: kvtest.NewMemory(), Clock: clock.WallClock, Registry: storage.StaticProviderRegistry{}})
	must(err)
	defer func() { must(st.Close()) }()
	machine := names.NewMachineTag("0")
	must(st.EnsureMachine(machine))
	logger := loggo.GetLogger("test")
	handler, err := agentapi.New(agentapi.Config{
		Authenticate: func(*http.Request) (storageprovisioner.Accessors, error) { return st.ForMachine(machine), nil }, Logger: logger,
	})
	must(err)
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	defer func() {
		handler.Kill()
		must(handler.Wait())
	}()
	trusted := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com"}
	trusted.RootCAs.AddCert(server.Certificate())
	client, err := api.Dial(t.Context(), api.Config{URLs: []string{server.URL}, TLS: trusted, Logger: logger})
	must(err)
	defer func() { must(client.Close()) }()

	v := &volumes{remote: client.Asked(), server: client.Server, tag: machine, machine: "web"}
	_, reading := v.Volume("a")
	_, waiting := v.Await(t.Context(), "a", func(*asked.Volume) (bool, error) { return true, nil })
	_, inspecting := v.Inspect("a")
	for doing, err := range map[string]error{
		"reading": reading, "waiting": waiting, "inspecting": inspecting,
		"attaching": v.Attach(t.Context(), "a", "web"), "detaching": v.Detach(t.Context(), "a"), "growing": v.Resize(t.Context(), "a", 1),
	} {
		if !errors.Is(err, asked.ErrUnreachable) || !strings.Contains(err.Error(), "is older than this agent, and does not let it use volumes: install the version of the agent there") {
			t.Errorf("%s: %v", doing, err)
		}
	}
	if err := v.Attach(t.Context(), "a", "db"); !errors.Is(err, asked.ErrElsewhere) {
		t.Errorf("attaching to another machine: %v", err)
	}
}
