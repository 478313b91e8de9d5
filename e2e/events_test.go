package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stowage-io/stowage/api/user"
)

// What happened to storage can be read from its events alone, across a crash of the agent and after the
// storage was removed.
func TestEventsTellWhatHappened(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}]\n")
	m.start()
	m.apply()
	m.kill()
	m.start()
	m.must("detach", "data", "--wait")
	m.must("remove", "data", "--wait")

	var events []user.StorageEvent
	if r := m.must("events", "data", "-o", "json"); json.Unmarshal([]byte(r.Stdout), &events) != nil {
		t.Fatalf("events -o json:\n%s", r.Stdout)
	}
	var told []string
	for n, e := range events {
		if e.Storage != "data" || e.Number != uint64(n+1) || n > 0 && e.Time.Before(events[n-1].Time) {
			t.Errorf("event %d is %+v", n, e)
		}
		entity, _, _ := strings.Cut(e.Entity, " ")
		line := strings.TrimSpace(entity + " " + e.Type)
		if e.By != "" {
			line += " by " + e.By
		}
		if e.Type != "status" { // an attempt may be repeated
			told = append(told, line)
		}
	}
	by := fmt.Sprintf(" by uid %d", os.Getuid())
	want := []string{
		"added" + by, "volume made", "volume attached", "filesystem made", "filesystem attached",
		"detach-wanted" + by, "filesystem detached", "volume detached",
		"remove-wanted" + by, "filesystem destroyed", "volume destroyed", "removed",
	}
	if got := strings.Join(told, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the events are\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	m.stop()
}

// The log says what happened to storage, each event once, as text or as an object a line.
func TestAuditLog(t *testing.T) {
	m := newMachine(t)
	m.writeSpec("storage: [{name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data}]\n")
	m.start("--log-format", "json")
	m.apply()
	m.must("detach", "data", "--wait")
	var events []user.StorageEvent
	if r := m.must("events", "data", "-o", "json"); json.Unmarshal([]byte(r.Stdout), &events) != nil {
		t.Fatalf("events -o json:\n%s", r.Stdout)
	}
	m.stop()
	log, err := os.ReadFile(m.log)
	if err != nil {
		t.Fatal(err)
	}
	var logged []user.StorageEvent
	for line := range strings.Lines(string(log)) {
		var message struct {
			Time                   time.Time
			Level, Logger, Message string
			Event                  *user.StorageEvent
		}
		if err := json.Unmarshal([]byte(line), &message); err != nil || message.Time.IsZero() || message.Level == "" || message.Logger == "" || message.Message == "" {
			t.Errorf("%v: %s", err, line)
		}
		if message.Event != nil {
			logged = append(logged, *message.Event)
		}
	}
	slices.SortFunc(logged, func(a, b user.StorageEvent) int { return cmp.Compare(a.Number, b.Number) }) // those of one moment
	if len(events) == 0 || !reflect.DeepEqual(logged, events) {
		t.Errorf("the log has\n%+v\nthe events are\n%+v", logged, events)
	}

	m.start()
	m.must("remove", "data", "--wait")
	m.stop()
	log, err = os.ReadFile(m.log)
	if want := fmt.Sprintf(" INFO stowage.audit storage data: to be removed, requested by uid %d\n", os.Getuid()); err != nil || !strings.Contains(string(log), want) {
		t.Errorf("%v, want %q:\n%s", err, want, log)
	}
}
