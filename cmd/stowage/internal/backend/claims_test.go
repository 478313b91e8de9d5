package backend_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
)

// declare adds block storage with labels.
func (s *server) declare(name, directive string, labels map[string]string) {
	s.t.Helper()
	s.must(s.Declare(s.t.Context(), user.Condition{Name: name}, user.Declaration{Directive: directive, Kind: "block", Machine: "0", Labels: labels}))
}

// claimed returns a claim.
func (s *server) claimed(name string) user.Claim {
	s.t.Helper()
	claims, err := s.Claims(s.t.Context(), []string{name})
	s.must(err)
	return claims[0]
}

func request(change func(*user.ClaimRequest)) user.ClaimRequest {
	r := user.ClaimRequest{Selector: "tier=fast", SizeMiB: 10, Kind: "block", Machine: "0"}
	if change != nil {
		change(&r)
	}
	return r
}

var fast = map[string]string{"tier": "fast"}

// A claim is made once: the same request again returns it, and another one says what differs.
func TestClaimIsIdempotent(t *testing.T) {
	s, _ := newServers(t)
	s.declare("large", "loop,30M", fast)
	s.declare("small", "loop,20M", fast)
	for range 2 {
		s.must(s.Claim(t.Context(), "db", request(nil)))
	}
	s.must(s.Claim(t.Context(), "db", request(func(r *user.ClaimRequest) { r.AccessMode, r.ReclaimPolicy = "ReadWriteOnce", "retain" })))
	c := s.claimed("db")
	want := user.ClaimRequest{Selector: "tier=fast", SizeMiB: 10, Kind: "block", AccessMode: "ReadWriteOnce", Machine: "0", ReclaimPolicy: "retain"}
	if c.Status != user.ClaimBound || c.StorageName != "small" || c.Storage == nil || c.Storage.Name != "small" || c.Storage.Claim != "db" || c.Request != want {
		t.Errorf("claim %+v", c)
	}
	if got := s.one("large").Claim; got != "" {
		t.Errorf("large belongs to claim %q, too", got)
	}
	err := s.Claim(t.Context(), "db", request(func(r *user.ClaimRequest) { r.SizeMiB, r.Pool, r.ReclaimPolicy = 11, "loop", "delete" }))
	wantError(t, err, "claim db was made with another request: it has pool \"\", not \"loop\", size-mib \"10\", not \"11\", reclaim-policy \"retain\", not \"delete\": "+
		"delete it first with `stowage unclaim db`, or choose another name")
	if !errors.Is(err, errors.AlreadyExists) {
		t.Errorf("error %v", err)
	}
	all, err := s.Claims(t.Context(), nil)
	if err != nil || len(all) != 1 {
		t.Errorf("claims %+v, %v", all, err)
	}
	if _, err := s.Claims(t.Context(), []string{"none"}); !errors.Is(err, errors.NotFound) {
		t.Errorf("a claim that there is not: %v", err)
	}
}

// Deleting a claim does with its storage what the claim says.
func TestReclaimPolicies(t *testing.T) {
	s, _ := newServers(t)
	pool := func(policy user.ReclaimPolicy) user.ClaimRequest {
		return request(func(r *user.ClaimRequest) { r.Pool, r.ReclaimPolicy = "loop", policy })
	}
	s.must(s.Claim(t.Context(), "kept", pool("retain")))
	if got := s.one("kept"); got.Claim != "kept" || got.Labels["tier"] != "fast" || got.WantedMiB != 10 {
		t.Errorf("made %+v", got)
	}
	wantError(t, s.Remove(t.Context(), user.RemoveArgs{Names: []string{"kept"}}), "it belongs to claim \"kept\": delete the claim")
	s.must(s.Unclaim(t.Context(), "kept"))
	if got := s.one("kept"); got.Claim != "kept" || !got.Retained || got.Life != life.Alive {
		t.Errorf("retained %+v", got)
	}
	wantError(t, s.Claim(t.Context(), "other", request(nil)), "no storage with the labels tier=fast fits (1 retained from another claim)")
	wantError(t, s.Claim(t.Context(), "kept", pool("retain")), "there is storage of that name")
	s.must(s.Offer(t.Context(), []string{"kept"}))
	s.must(s.Claim(t.Context(), "other", request(func(r *user.ClaimRequest) { r.ReclaimPolicy = "delete" })))
	if got := s.claimed("other").StorageName; got != "kept" {
		t.Errorf("got %q, want that which was offered", got)
	}
	s.must(s.Unclaim(t.Context(), "other"))
	if got := s.one("kept"); got.Life == life.Alive {
		t.Errorf("deleted: %+v", got)
	}
	if err := s.Claim(t.Context(), "kept", pool("retain")); !errors.Is(err, errors.NotYetAvailable) {
		t.Errorf("a claim while its storage is removed: %v", err)
	}
	wantError(t, s.Unclaim(t.Context(), "other"), `claim "other" not found`)
}

func TestClaimIsLostWithItsStorage(t *testing.T) {
	s, _ := newServers(t)
	s.must(s.Claim(t.Context(), "db", request(func(r *user.ClaimRequest) { r.Pool = "loop" })))
	s.must(s.state.RemoveMachine(machine, "db"))
	if c := s.claimed("db"); c.Status != user.ClaimLost || c.Storage != nil || c.StorageName != "db" {
		t.Errorf("claim %+v", c)
	}
	s.must(s.Unclaim(t.Context(), "db"))
}

// Every field of a request that is not valid is named, and nothing is changed.
func TestClaimRequestsThatAreNotValid(t *testing.T) {
	s, _ := newServers(t)
	s.declare("data", "loop,20M", fast)
	for _, test := range []struct {
		name   string
		change func(*user.ClaimRequest)
		kind   error
		want   string
	}{
		{"db", func(r *user.ClaimRequest) { r.Selector = "" }, errors.NotValid, "claim db: neither pool nor selector: name the pool in which storage is made, or the labels of storage that exists, or both"},
		{"db", func(r *user.ClaimRequest) { r.Selector = "tier" }, errors.NotValid, `claim db: selector: label "tier": write KEY=VALUE`},
		{"db", func(r *user.ClaimRequest) { r.SizeMiB = 0 }, errors.NotValid, "claim db: size-mib: missing: write the least size in MiB, such as 1024"},
		{"db", func(r *user.ClaimRequest) { r.Kind = "" }, errors.NotValid, "claim db: kind: missing: write block or filesystem"},
		{"db", func(r *user.ClaimRequest) { r.Kind = "disk" }, errors.NotValid, `claim db: kind: "disk" is not a kind: write block or filesystem`},
		{"db", func(r *user.ClaimRequest) { r.AccessMode = "ReadWriteMany" }, errors.NotSupported, `claim db: access-mode: "ReadWriteMany": storage is on one machine at a time: write ReadWriteOnce, or leave it out`},
		{"db", func(r *user.ClaimRequest) { r.ReclaimPolicy = "recycle" }, errors.NotValid, `claim db: reclaim-policy: "recycle": write retain or delete`},
		{"db", func(r *user.ClaimRequest) { r.Machine = "web_1" }, errors.NotValid, `claim db: machine: "web_1" is neither the name nor the number of a machine`},
		{"db", func(r *user.ClaimRequest) { r.MachineLabels = "zone=a" }, errors.NotValid, "claim db: machine-labels: they choose a machine: write machine: any, or leave them out"},
		{"db", func(r *user.ClaimRequest) { r.Mount = "/srv/db" }, errors.NotValid, "claim db: mount: storage that exists has its mount point: leave it out, or name a pool to make storage in"},
		{"db", func(r *user.ClaimRequest) { r.Kind, r.Pool = "filesystem", "loop" }, errors.NotValid, "claim db: mount: missing: write the directory to mount the filesystem on"},
		{"db", func(r *user.ClaimRequest) { r.Pool, r.Mount = "loop", "/srv/db" }, errors.NotValid, "claim db: mount: a block device is not mounted: leave it out, or write kind: filesystem"},
		{"Db", nil, errors.NotValid, `claim Db: "Db" is not a name: a lower-case letter`},
		{"db/0", nil, errors.NotValid, `claim db/0: "db/0" is not a name: a lower-case letter`},
	} {
		if err := s.Claim(t.Context(), test.name, request(test.change)); err == nil || !strings.HasPrefix(err.Error(), test.want) || !errors.Is(err, test.kind) {
			t.Errorf("\ngot  %v\nwant %s", err, test.want)
		}
	}
	if claims, err := s.Claims(t.Context(), nil); err != nil || len(claims) > 0 {
		t.Errorf("claims %+v, %v", claims, err)
	}
	if got := s.one("data").Claim; got != "" {
		t.Errorf("data belongs to claim %q", got)
	}
}

// A claim that another server overtakes is planned again.
func TestClaimIsPlannedAgain(t *testing.T) {
	for what, overtake := range map[string]func(b *server) error{
		"claimed":  func(b *server) error { return b.Claim(b.t.Context(), "first", request(nil)) },
		"removed":  func(b *server) error { return b.Remove(b.t.Context(), user.RemoveArgs{Names: []string{"small"}}) },
		"labelled": func(b *server) error { b.declare("small", "loop,20M", map[string]string{"tier": "slow"}); return nil },
	} {
		a, b := newServers(t)
		a.declare("large", "loop,30M", fast)
		a.declare("small", "loop,20M", fast)
		a.store.before = func() { b.must(overtake(b)) }
		a.must(a.Claim(t.Context(), "db", request(nil)))
		if got := a.claimed("db").StorageName; got != "large" {
			t.Errorf("%s: the claim got %q", what, got)
		}
	}
	a, b := newServers(t)
	a.declare("data", "loop,30M", fast)
	a.store.before = func() { b.must(b.Claim(t.Context(), "db", request(nil))) }
	a.must(a.Claim(t.Context(), "db", request(nil)))
	if got := a.claimed("db").StorageName; got != "data" {
		t.Errorf("the claim got %q", got)
	}
}

// Claims that are made at the same time at two servers never get the same storage.
func TestConcurrentClaims(t *testing.T) {
	const existing, claims = 8, 20
	a, b := newServers(t)
	for n := range existing {
		a.declare(fmt.Sprintf("data%d", n), fmt.Sprintf("loop,%dM", 20+n), fast)
	}
	var group sync.WaitGroup
	errs := make([]error, claims)
	for n := range claims {
		group.Go(func() {
			s := []*server{a, b}[n%2]
			for { // another may always be faster
				errs[n] = s.Claim(t.Context(), fmt.Sprintf("c%d", n), request(func(r *user.ClaimRequest) { r.Pool = "loop" }))
				if !errors.Is(errs[n], errors.NotYetAvailable) {
					return
				}
			}
		})
	}
	group.Wait()
	for n, err := range errs {
		if err != nil {
			t.Errorf("claim %d: %v", n, err)
		}
	}
	all, err := a.Claims(t.Context(), nil)
	if err != nil || len(all) != claims {
		t.Fatalf("%d claims, %v", len(all), err)
	}
	has, made := map[string]bool{}, 0
	for _, c := range all {
		if has[c.StorageName] || c.Storage == nil || c.Storage.Claim != c.Name {
			t.Errorf("claim %+v has the storage of another", c)
		}
		has[c.StorageName] = true
		if c.StorageName == c.Name {
			made++
		}
	}
	if made != claims-existing {
		t.Errorf("%d claims have new storage, want %d", made, claims-existing)
	}
}
