package cli_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// claims returns a claim of each status.
func claims() []user.Claim {
	data := row("data", status.Attached, "", "/srv/data")
	request := user.ClaimRequest{Selector: "tier=fast", SizeMiB: 64, Kind: "filesystem", ReclaimPolicy: "retain"}
	return []user.Claim{
		{Name: "db", Status: user.ClaimBound, StorageName: "data", Storage: &data, Request: request},
		{Name: "old", Status: user.ClaimLost, StorageName: "gone", Request: request},
	}
}

func TestClaims(t *testing.T) {
	m := newMachine(t, &backend{claims: claims()})
	want := `NAME  CLAIM  KIND        LEAST SIZE  STORAGE  STATUS    LOCATION
db    bound  filesystem  64M         data     attached  /srv/data
old   lost   filesystem  64M         gone     -         -
`
	if got := m.run(t.Context(), "claims"); got.code != 0 || got.stdout != want {
		t.Errorf("exit status %d, %s, stdout\n%s\nwant\n%s", got.code, got.stderr, got.stdout, want)
	}
	got := m.run(t.Context(), "claims", "-o", "json")
	var listed []user.Claim
	if err := json.Unmarshal([]byte(got.stdout), &listed); err != nil || len(listed) != 2 || listed[0].Storage.Name != "data" || listed[1].Storage != nil {
		t.Errorf("%v: %+v", err, got)
	}
}

func TestClaim(t *testing.T) {
	b := &backend{claims: claims()[:1], events: []user.Event{event(row("data", status.Attached, "", "/srv/data"))}}
	m := newMachine(t, b)
	got := m.run(t.Context(), "claim", "db", "-l", "tier=fast", "--pool", "loop", "--size", "1G", "--kind", "filesystem", "--mount", "/srv/db", "--wait")
	if got.code != 0 || !strings.Contains(got.stdout, "/srv/data") {
		t.Errorf("%+v", got)
	}
	want := []string{
		"claim db {Selector:tier=fast Pool:loop SizeMiB:1024 Kind:filesystem AccessMode:ReadWriteOnce Machine:any MachineLabels: Mount:/srv/db ReclaimPolicy:retain}",
		`claims ["db"]`, `watch ["data"]`,
	}
	if calls := b.recordedCalls(); !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"claim", "db", "--kind", "block"}, `required flag(s) "size" not set`},
		{[]string{"claim", "db", "--kind", "block", "--size", "+1G"}, `--size: "+1G" is not a size: write one such as 512M`},
		{[]string{"claim", "--kind", "block", "--size", "1G"}, "accepts 1 arg(s), received 0"},
		{[]string{"unclaim"}, "accepts 1 arg(s), received 0"},
	} {
		if got := m.run(t.Context(), test.args...); got.code != 2 || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%q: %+v, want %s", test.args, got, test.want)
		}
	}
	b.err = errors.NewAlreadyExists(nil, "claim db was made with another request")
	if got := m.run(t.Context(), "claim", "db", "--kind", "block", "--size", "1G", "--pool", "loop"); got.code != 1 || !strings.Contains(got.stderr, "another request") {
		t.Errorf("%+v", got)
	}
}

func TestUnclaimAndOffer(t *testing.T) {
	retained := row("data", status.Attached, "", "/srv/data")
	destroyed := retained
	destroyed.Life = life.Dying
	for _, test := range []struct {
		left  user.Storage
		calls []string
	}{
		{retained, []string{`claims ["db"]`, "unclaim db", `storage ["data"]`}},
		{destroyed, []string{`claims ["db"]`, "unclaim db", `storage ["data"]`, `watch ["data"]`}},
	} {
		b := &backend{claims: claims()[:1], storage: []user.Storage{test.left}, events: []user.Event{{}}}
		if got := newMachine(t, b).run(t.Context(), "unclaim", "db", "--wait"); got.code != 0 {
			t.Errorf("%+v", got)
		}
		if calls := b.recordedCalls(); !slices.Equal(calls, test.calls) {
			t.Errorf("calls %q, want %q", calls, test.calls)
		}
	}
	b := &backend{}
	if got := newMachine(t, b).run(t.Context(), "offer", "data", "raw"); got.code != 0 || !slices.Equal(b.recordedCalls(), []string{`offer ["data" "raw"]`}) {
		t.Errorf("%+v, calls %q", got, b.recordedCalls())
	}
}
