package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// claims returns the storage of each claim.
func (s *site) claims() map[string]string {
	s.Helper()
	var all []struct {
		Name        string `json:"name"`
		StorageName string `json:"storage-name"`
	}
	if err := json.Unmarshal([]byte(s.must("claims", "-o", "json").Stdout), &all); err != nil {
		s.Fatal(err)
	}
	of := make(map[string]string)
	for _, c := range all {
		of[c.Name] = c.StorageName
	}
	return of
}

// Claims get storage on the machines that they may have, made or found, and keep it across a crash of the
// server and a restart of an agent. Claims that are made at the same time never share storage.
func TestClaimsOnSeveralMachines(t *testing.T) {
	s := newSite(t)
	server := s.startServer()
	agents := map[string]*process{}
	for _, name := range []string{"web", "db"} {
		agents[name] = s.startAgent(name, s.token())
		s.must("machine", "label", name, "zone="+name)
	}
	s.must("claim", "orders", "--pool", "loop", "--size", "16M", "--kind", "filesystem", "--mount", s.mount("orders"),
		"--machine-labels", "zone=db", "--reclaim-policy", "delete", "--wait")
	s.write("orders", "precious")
	if at := s.status()["orders"].Attachments; len(at) != 1 || at[0].Machine != "db" {
		t.Errorf("the claim for zone db is on %+v", at)
	}

	s.writeSpec(`storage:
- {name: disk, directive: "loop,16M,3", kind: block, machine: web, labels: {tier: fast}}
- {name: other, directive: "loop,16M", kind: block, machine: db, labels: {tier: fast}}
`)
	s.apply()
	fast := []string{"--selector", "tier=fast", "--size", "16M", "--kind", "block", "--machine-labels", "zone=web"}
	var mu sync.Mutex
	var bound []string
	var claiming sync.WaitGroup
	for i := range 6 {
		claiming.Go(func() {
			name := fmt.Sprint("cache-", i)
			r, err := s.stowage().Run(t.Context(), append([]string{"claim", name}, fast...)...)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if r.Code == 0 {
				bound = append(bound, name)
			}
		})
	}
	claiming.Wait()
	check := func(when string) {
		t.Helper()
		of := s.claims()
		var disks []string
		for _, name := range bound {
			disks = append(disks, of[name])
		}
		slices.Sort(disks)
		if want := []string{"disk/0", "disk/1", "disk/2"}; !slices.Equal(disks, want) || len(of) != 4 || of["orders"] != "orders" {
			t.Errorf("%s, the claims are %v; want %v", when, of, want)
		}
	}
	check("at first")

	server.kill()
	agents["db"].stop()
	s.startServer()
	agents["db"] = s.startAgent("db", "")
	check("after a crash of the server")
	if got := s.read("orders"); got != "precious" {
		t.Errorf("the storage of the claim has %q", got)
	}
	if r := s.run("remove", "disk/0"); r.Code == 0 || !strings.Contains(r.Stderr, "it belongs to claim") {
		t.Errorf("claimed storage is removed:\n%s", r.All())
	}

	for _, name := range append(bound, "orders") {
		s.must("unclaim", name, "--wait")
	}
	if all := s.status(); all["orders"].Name != "" || all["disk/0"].Name == "" {
		t.Errorf("after the claims were deleted, there is %v", all)
	}
	if r := s.run(append([]string{"claim", "again"}, fast...)...); r.Code == 0 {
		t.Errorf("a claim gets storage of another one, which has data:\n%s", r.All())
	}
	s.must("offer", "disk/1")
	s.must(append([]string{"claim", "again", "--wait"}, fast...)...)
	if of := s.claims(); of["again"] != "disk/1" {
		t.Errorf("the offered storage is not claimed: %v", of)
	}
	s.must("unclaim", "again")
	s.must("remove", "disk/0", "disk/1", "disk/2", "other", "--wait")
	for _, p := range []*process{agents["web"], agents["db"]} {
		p.stop()
	}
	s.wantNoStorageIn("web", "db")
}
