package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/api/user"
)

// BenchmarkFailover measures what users see of failures of servers and machines: for how long nothing
// can be changed when the server that leads etcd is killed; how long it takes to detach and attach a
// volume when the server that provisions the environment's storage was just killed; and how long it takes
// until the storage of a machine that is fenced is attached to another one.
func BenchmarkFailover(b *testing.B) {
	var gaps, takeovers, moves time.Duration
	for b.Loop() {
		s := newSeveral(b, stowage, "web", "db")
		s.writeSpec(`storage: [{name: data, directive: "shared,16M", kind: filesystem, mount: MNT/data, machine: web}]` + "\n")
		s.apply()
		s.write("data", "precious")
		gaps += s.measureWriteGap()
		takeovers += s.measureTakeover()
		moves += s.measureFencedMove()
		s.must("remove", "data", "--wait")
		s.stopAll("db")
	}
	for unit, total := range map[string]time.Duration{"write-gap-ms": gaps, "takeover-ms": takeovers, "fenced-move-ms": moves} {
		b.ReportMetric(float64(total.Milliseconds())/float64(b.N), unit)
	}
	b.ReportMetric(0, "ns/op") // hidden: it includes setup
}

// measureWriteGap kills the leader of etcd while changes are made at another server, and returns the
// longest time between two that succeed. The server is started again.
func (s *several) measureWriteGap() time.Duration {
	s.Helper()
	var all []user.Server
	if err := json.Unmarshal([]byte(s.must("servers", "-o", "json").Stdout), &all); err != nil {
		s.Fatal(err)
	}
	leader := slices.IndexFunc(all, func(m user.Server) bool { return m.Leader })
	if leader < 0 {
		s.Fatalf("no server leads: %+v", all)
	}
	killed := s.nameOf(all[leader].Name)
	other := s.servers[(slices.Index(s.servers, killed)+1)%len(s.servers)]
	socket := filepath.Join(s.dataOf(other), "stowage.sock")
	client := &http.Client{
		Timeout: time.Minute,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}
	defer client.CloseIdleConnections()
	var gap time.Duration
	begun := time.Now()
	last := begun
	for n := 0; time.Since(begun) < 15*time.Second; n++ {
		if n == 50 {
			s.running[killed].kill()
		}
		body, err := json.Marshal(user.LabelMachineArgs{Machine: "web", Set: map[string]string{"n": fmt.Sprint(n)}})
		if err != nil {
			s.Fatal(err)
		}
		answer, err := client.Post("http://stowage/v1/label-machine", "application/json", bytes.NewReader(body))
		if err != nil {
			s.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode < 300 {
			gap = max(gap, time.Since(last))
			last = time.Now()
		}
	}
	s.startServerOf(killed)
	return gap
}

// nameOf returns the name of the test's server that calls itself so: its directory has the name.
func (s *several) nameOf(own string) string {
	s.Helper()
	for _, name := range s.servers {
		content, err := os.ReadFile(filepath.Join(s.dataOf(name), "server", "name"))
		if err == nil && strings.TrimSpace(string(content)) == own {
			return name
		}
	}
	s.Fatalf("no server is called %s", own)
	return ""
}

// measureTakeover kills the server that provisions the environment's storage, and returns how long it
// takes to detach and attach a volume then. The server is started again.
func (s *several) measureTakeover() time.Duration {
	s.Helper()
	provisions := ""
	s.poll("no server provisions the environment's storage", func() bool {
		provisions = s.provisioner()
		return provisions != ""
	})
	s.running[provisions].kill()
	begun := time.Now()
	other := s.servers[(slices.Index(s.servers, provisions)+1)%len(s.servers)]
	for _, args := range [][]string{{"detach", "data"}, {"attach", "data", "--machine", "web"}} {
		if r := s.at(other, append(args, "--wait")...); r.Code != 0 {
			s.Fatalf("%s: %s", args, r.All())
		}
	}
	taken := time.Since(begun)
	s.startServerOf(provisions)
	return taken
}

// provisioner returns the server that was the last one to begin to provision the environment's storage, as
// the logs of those that run say.
func (s *several) provisioner() (name string) {
	s.Helper()
	var latest time.Time
	for _, server := range s.servers {
		log, err := os.ReadFile(s.running[server].log)
		if err != nil {
			s.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			at, message, _ := strings.Cut(line, " ")
			when, err := time.Parse(time.RFC3339Nano, at)
			if err == nil && strings.Contains(message, "provisioning the environment's storage") && when.After(latest) {
				name, latest = server, when
			}
		}
	}
	return name
}

// measureFencedMove ends a machine, and returns how long it takes from the fence until its storage is
// attached to another one.
func (s *several) measureFencedMove() time.Duration {
	s.Helper()
	s.running["web"].kill()
	unmountAndDetach(s, s.mount("data"))
	volumes, err := filepath.Glob(filepath.Join(s.shared, "volumes", "*"))
	if err != nil || len(volumes) != 1 {
		s.Fatalf("the volumes are %q, %v", volumes, err)
	}
	unmountAndDetach(s, volumes[0])
	s.poll("web cannot be fenced", func() bool { return s.run("machine", "fence", "web", "--confirmed").Code == 0 })
	begun := time.Now()
	s.must("move", "data", "--to", "db", "--wait")
	taken := time.Since(begun)
	if got := s.read("data"); got != "precious" {
		s.Errorf("the storage has %q", got)
	}
	return taken
}
