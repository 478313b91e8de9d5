package e2e

import (
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/names/v5"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/apiserver/trust"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/environs/config"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/testing/providerfake"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// returnLimit is how long agents may take to connect again: many times as long as they need.
const returnLimit = 10 * time.Minute

// BenchmarkAgents measures a server with n agents, over TLS. The agents are workers in this process, each
// with a connection and a session of its own, whose provider is in memory; the server is a real one.
func BenchmarkAgents(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			all := map[string]float64{}
			for b.Loop() {
				for unit, value := range measureAgents(b, n) {
					all[unit] += value
				}
			}
			for unit, value := range all {
				b.ReportMetric(value/float64(b.N), unit)
			}
			b.ReportMetric(0, "ns/op") // hidden: it includes setup
		})
	}
}

func measureAgents(tb testing.TB, n int) map[string]float64 {
	s := newSite(tb)
	server := s.startServer()
	registry := storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
		"rootfs": providerfake.New(providerfake.Options{Scope: storage.ScopeMachine, Unsupported: []storage.StorageKind{storage.StorageKindBlock}}),
	}}
	text := s.token("--uses", fmt.Sprint(n))
	token, err := trust.ParseToken(text)
	if err != nil {
		tb.Fatal(err)
	}
	crowd := make([]*crowdAgent, n)
	for i := range crowd {
		crowd[i] = &crowdAgent{name: fmt.Sprintf("m%d", i), url: "https://" + s.address, registry: registry, dir: tb.TempDir()}
	}
	figures := map[string]float64{}
	// all calls do for each agent, many at a time, and notes how long that takes.
	all := func(unit string, do func(*crowdAgent) error) {
		tb.Helper()
		begun := time.Now()
		limit := make(chan struct{}, 64)
		failures := make(chan error, n)
		var running sync.WaitGroup
		for _, a := range crowd {
			limit <- struct{}{}
			running.Go(func() {
				defer func() { <-limit }()
				if err := do(a); err != nil {
					failures <- fmt.Errorf("%s: %w", a.name, err)
				}
			})
		}
		running.Wait()
		if len(failures) > 0 {
			tb.Fatalf("%d of %d agents: %s: %v", len(failures), n, unit, <-failures)
		}
		figures[unit] = time.Since(begun).Seconds()
	}
	ctx := tb.Context()
	cpu := func() time.Duration { return cpuOf(tb, server.PID()) }
	before := cpu()
	all("enrol-s", func(a *crowdAgent) error { return a.enrol(ctx, token) })
	figures["enrol-cpu-s"] = (cpu() - before).Seconds()
	before = cpu()
	all("join-s", func(a *crowdAgent) error { return a.start(ctx) })
	figures["join-cpu-s"] = (cpu() - before).Seconds()
	up := func() bool {
		var list []user.Machine
		if err := json.Unmarshal([]byte(s.must("machines", "-o", "json").Stdout), &list); err != nil {
			tb.Fatal(err)
		}
		for _, m := range list {
			if m.Status != user.MachineUp {
				return false
			}
		}
		return len(list) == n
	}
	s.poll("not all agents are connected", up)

	<-time.After(10 * time.Second) // what begins with the connections
	before = cpu()
	<-time.After(30 * time.Second)
	figures["idle-cpu-ms/min"] = 2 * float64((cpu() - before).Milliseconds())
	figures["MB-server"] = float64(residentBytes(tb, server.PID())) / 1e6

	s.writeSpec(fmt.Sprintf("storage: [{name: one, directive: 'rootfs,1M', kind: filesystem, mount: MNT/one, machine: m%d}]\n", n/2))
	before = cpu()
	begun := time.Now()
	s.must("apply", "-f", s.spec, "--wait")
	figures["one-change-ms"] = float64(time.Since(begun).Microseconds()) / 1000
	figures["one-change-cpu-ms"] = float64((cpu() - before).Microseconds()) / 1000
	s.must("remove", "one", "--wait")

	server.kill()
	begun = time.Now()
	server = s.startServer()
	for {
		away := 0
		for _, a := range crowd {
			if !a.client.IsConnected() {
				away++
			}
		}
		if away == 0 {
			break
		}
		if time.Since(begun) > returnLimit {
			tb.Fatalf("%d of %d agents have not connected again within %s", away, n, returnLimit)
		}
		<-time.After(100 * time.Millisecond)
	}
	s.poll("not all agents are connected again", up)
	figures["reconnect-s"] = time.Since(begun).Seconds()
	figures["reconnect-cpu-s"] = cpu().Seconds()
	all("stop-s", (*crowdAgent).stop)
	server.stop()
	return figures
}

// quiet logs nothing.
type quiet struct{}

func (quiet) Infof(string, ...any)    {}
func (quiet) Warningf(string, ...any) {}

// crowdAgent is one of many agents in this process.
type crowdAgent struct {
	name, url   string
	registry    storage.ProviderRegistry
	dir         string
	key         crypto.Signer
	credentials trust.Credentials
	machine     names.MachineTag
	client      *api.Client
	worker      worker.Worker

	mu     sync.Mutex
	secret string
}

// Load implements api.Secrets.
func (a *crowdAgent) Load() (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.secret, nil
}

// Store implements api.Secrets.
func (a *crowdAgent) Store(secret string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.secret = secret
	return nil
}

func (a *crowdAgent) config() api.Config {
	return api.Config{URLs: []string{a.url}, Logger: quiet{}, Secrets: a, BootID: "boot"}
}

func (a *crowdAgent) enrol(ctx context.Context, token trust.Token) (err error) {
	if a.key, a.credentials.Key, err = trust.NewKey(); err != nil {
		return err
	}
	a.credentials.Certificate, a.credentials.CA, err = api.Enrol(ctx, a.config(), token, a.name, a.key.Public())
	return err
}

func (a *crowdAgent) start(ctx context.Context) error {
	leaf, err := a.credentials.Leaf()
	if err != nil {
		return err
	}
	identity, err := trust.IdentityOf(leaf)
	if err != nil {
		return err
	}
	a.machine = names.NewMachineTag(identity.ID)
	config := a.config()
	if config.TLS, err = trust.ClientConfig(func() trust.Credentials { return a.credentials }, nil); err != nil {
		return err
	}
	if a.client, err = api.Dial(ctx, config); err != nil {
		return err
	}
	if err := a.client.SetMachineSpace(map[storage.ProviderType]coremachine.Space{"rootfs": {SizeMiB: 1 << 20, FreeMiB: 1 << 19}}); err != nil {
		return err
	}
	a.worker, err = storageprovisioner.New(a.provisioner())
	return err
}

func (a *crowdAgent) provisioner() storageprovisioner.Config {
	return storageprovisioner.Config{
		Scope: a.machine, StorageDir: a.dir, Clock: clock.WallClock,
		Registry: func(*config.Config) (storage.ProviderRegistry, error) { return a.registry, nil },
	}.WithAccessors(a.client.Accessors())
}

func (a *crowdAgent) stop() error {
	a.worker.Kill()
	if err := a.worker.Wait(); err != nil {
		return err
	}
	return a.client.Close()
}
