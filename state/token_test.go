package state_test

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
)

// token creates a token that is valid for an hour.
func (w *world) token(as role.Value, machine string, uses int) string {
	w.t.Helper()
	_, text, err := w.CreateToken(state.TokenParams{Role: as, Machine: machine, Lifetime: time.Hour, Uses: uses})
	w.must(err)
	return text
}

func (w *world) wantUnauthorized(what string, err error) {
	w.t.Helper()
	if !errors.Is(err, errors.Unauthorized) {
		w.t.Errorf("%s: %v", what, err)
	}
}

// A token enrols as many new machines as it has uses.
func TestTokenEnrols(t *testing.T) {
	w := newWorld(t)
	token := w.token(role.Machine, "", 2)
	for _, name := range []string{"web", "db"} {
		e, err := w.Enrol(token, name, nil)
		w.must(err)
		tag, err := w.MachineNamed(name)
		w.must(err)
		if want := (state.Enrolment{Machine: tag, Number: 1}); e != want {
			t.Errorf("machine %s is enrolled as %+v, want %+v", name, e, want)
		}
		w.must(w.CheckEnrolment(e))
	}
	_, err := w.Enrol(token, "more", nil)
	w.wantUnauthorized("a token that was used up", err)
	if left, err := w.Tokens(); err != nil || len(left) > 0 {
		t.Errorf("tokens %+v, %v", left, err)
	}
	w.check()
}

// Promise S22.
func TestTokenThatIsNotValid(t *testing.T) {
	w := newWorld(t)
	token, admin := w.token(role.Machine, "", 1), w.token(role.Admin, "", 1)
	id, _, _ := strings.Cut(token, ".")
	for what, text := range map[string]string{
		"no token": "", "an ID alone": id, "an empty secret": id + ".", "a wrong secret": token + "A", "an unknown ID": "x" + token,
		"the token of another role": admin,
	} {
		_, err := w.Enrol(text, "web", nil)
		w.wantUnauthorized(what, err)
	}
	if _, err := w.Enrol(token, "no name", nil); !errors.Is(err, errors.NotValid) {
		t.Errorf("a wrong name: %v", err)
	}
	w.clock.Advance(time.Hour)
	_, err := w.Enrol(token, "web", nil)
	w.wantUnauthorized("a token that has expired", err)
	if got := w.describe(); got != "0=0 1=1" {
		t.Errorf("machines %s", got)
	}
	w.must(w.RemoveExpiredTokens())
	for key := range w.dump() {
		if strings.HasPrefix(key, "token/") {
			t.Errorf("%s is left", key)
		}
	}
	w.check()
}

// Only a token for the machine itself replaces its agent. The former agent is not admitted any
// more, and its session ends.
// Promise S22.
func TestTokenReplacesAgent(t *testing.T) {
	w := newWorld(t)
	first, err := w.Enrol(w.token(role.Machine, "", 1), "web", nil)
	w.must(err)
	session, err := w.OpenSession(first.Machine, nil, "boot-1")
	w.must(err)
	w.must(w.ConfirmSession(session))

	other := w.token(role.Machine, "", 1)
	if _, err := w.Enrol(other, "web", nil); !errors.Is(err, errors.AlreadyExists) {
		t.Errorf("enrolling a machine that exists: %v", err)
	}
	_, err = w.Enrol(w.token(role.Machine, "db", 1), "web", nil)
	w.wantUnauthorized("a token for another machine", err)
	w.must(w.CheckEnrolment(first))
	if _, err := w.Enrol(other, "db", nil); err != nil {
		t.Errorf("a token that was refused for a name: %v", err)
	}

	second, err := w.Enrol(w.token(role.Machine, "web", 1), "web", nil)
	w.must(err)
	if second.Machine != first.Machine {
		t.Errorf("the machine was %s, and is %s", first.Machine, second.Machine)
	}
	w.wantUnauthorized("the agent that was replaced", w.CheckEnrolment(first))
	if _, err := w.ForSession(session).Life([]names.Tag{names.NewVolumeTag("0")}); !errors.Is(err, state.ErrSessionEnded) {
		t.Errorf("a call of the agent that was replaced: %v", err)
	}
	next, err := w.OpenSession(second.Machine, nil, "boot-1")
	w.must(err)
	if next.Number <= session.Number {
		t.Errorf("session %d after %d", next.Number, session.Number)
	}
	w.must(w.RemoveMachine(second.Machine))
	w.wantUnauthorized("an agent whose machine was removed", w.CheckEnrolment(second))
	w.check()
}

// An agent that did not get the answer repeats its enrolment, with the same key. Nobody else can,
// and neither can the agent itself once it has been replaced.
func TestEnrolmentIsRepeatable(t *testing.T) {
	w := newWorld(t)
	token := w.token(role.Machine, "", 1)
	first, err := w.Enrol(token, "web", []byte("key"))
	w.must(err)
	instance, err := w.InstanceId(first.Machine)
	w.must(err)
	session, err := w.OpenSession(first.Machine, nil, "boot-1")
	w.must(err)
	again, err := w.Enrol(token, "web", []byte("key"))
	w.must(err)
	if again != first {
		t.Errorf("enrolled as %+v, and again as %+v", first, again)
	}
	w.must(w.ConfirmSession(session))
	_, err = w.Enrol(token, "web", []byte("another key"))
	w.wantUnauthorized("another agent with the same token", err)
	_, err = w.Enrol(token, "db", []byte("key"))
	w.wantUnauthorized("another name with the same token", err)
	_, err = w.Enrol(w.token(role.Machine, "web", 1), "web", []byte("another key"))
	w.must(err)
	_, err = w.Enrol(token, "web", []byte("key"))
	w.wantUnauthorized("the agent that was replaced", err)
	if now, err := w.InstanceId(first.Machine); err != nil || now != instance || now == "" {
		t.Errorf("the instance was %q, and is %q, %v", instance, now, err)
	}
	w.check()
}

func TestTokensAreListedAndRemoved(t *testing.T) {
	w := newWorld(t)
	made, text, err := w.CreateToken(state.TokenParams{Role: role.Machine, Machine: "web", Lifetime: time.Minute, Uses: 3})
	w.must(err)
	want := state.Token{ID: made.ID, Role: role.Machine, Machine: "web", Expires: start.Add(time.Minute), Uses: 3}
	all, err := w.Tokens()
	w.must(err)
	if len(all) != 1 || !all[0].Expires.Equal(want.Expires) {
		t.Fatalf("tokens %+v", all)
	}
	all[0].Expires = want.Expires
	if !reflect.DeepEqual(all[0], want) {
		t.Errorf("token %+v, want %+v", all[0], want)
	}
	w.must(w.RemoveToken(made.ID))
	_, err = w.Enrol(text, "web", nil)
	w.wantUnauthorized("a token that was removed", err)
	if err := w.RemoveToken(made.ID); !errors.Is(err, errors.NotFound) {
		t.Errorf("removing a token again: %v", err)
	}
}

func TestTokenParams(t *testing.T) {
	w := newWorld(t)
	for what, p := range map[string]state.TokenParams{
		"no role":            {Lifetime: 1, Uses: 1},
		"an unknown role":    {Role: "root", Lifetime: 1, Uses: 1},
		"no lifetime":        {Role: role.Admin, Uses: 1},
		"no uses":            {Role: role.Admin, Lifetime: 1},
		"an admin's machine": {Role: role.Admin, Machine: "web", Lifetime: 1, Uses: 1},
		"a wrong name":       {Role: role.Machine, Machine: "../web", Lifetime: 1, Uses: 1},
	} {
		if _, _, err := w.CreateToken(p); !errors.Is(err, errors.NotValid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A token of another role than that of machines is used up without further effect.
func TestUseToken(t *testing.T) {
	w := newWorld(t)
	_, secret, err := w.CreateToken(state.TokenParams{Role: role.Server, Lifetime: time.Hour, Uses: 1})
	w.must(err)
	if err := w.UseToken(secret, role.Admin); !errors.Is(err, errors.Unauthorized) {
		t.Errorf("a token of another role: %v", err)
	}
	w.must(w.UseToken(secret, role.Server))
	if err := w.UseToken(secret, role.Server); !errors.Is(err, errors.Unauthorized) {
		t.Errorf("a token that was used: %v", err)
	}
}

// A state has one authority for ever.
func TestAuthority(t *testing.T) {
	w := newWorld(t)
	w.must(w.EnsureAuthority("aa"))
	w.must(w.EnsureAuthority("aa"))
	if err := w.EnsureAuthority("bb"); !errors.Is(err, errors.NotValid) {
		t.Errorf("another authority: %v", err)
	}
	w.check()
}

// An agent that has just been enrolled at another server is not refused.
func TestEnrolmentAtAnotherServer(t *testing.T) {
	store := &laggingStore{Store: newStore(t)}
	w := openWorld(t, store)
	enrolled, err := w.Enrol(w.token(role.Machine, "", 1), "web", []byte("key"))
	w.must(err)
	store.former = newStore(t)
	w.must(w.CheckEnrolment(enrolled))
	enrolled.Number++
	w.wantUnauthorized("an agent that was replaced", w.CheckEnrolment(enrolled))
	store.former = nil
}

// laggingStore shows snapshots of a former store, if there is one.
type laggingStore struct {
	kv.Store
	former kv.Store
}

func (s *laggingStore) View(ctx context.Context, fn func(kv.Snapshot) error) error {
	if s.former != nil {
		return s.former.View(ctx, fn)
	}
	return s.Store.View(ctx, fn)
}
