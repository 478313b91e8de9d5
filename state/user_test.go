package state_test

import (
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/role"
)

// Promise S29.
func TestUserIsEnrolled(t *testing.T) {
	w := newWorld(t)
	for _, as := range []role.Value{role.Admin, role.Viewer} {
		token := w.token(as, "", 1)
		enrolled, err := w.EnrolUser(token, "ann-"+string(as), []byte("key"))
		w.must(err)
		if enrolled.Role != as || enrolled.Number == 0 || !enrolled.Enrolled.Equal(start) {
			t.Errorf("enrolled as %+v", enrolled)
		}
		if found, err := w.User(enrolled.Name, enrolled.Number); err != nil || found.Role != as {
			t.Errorf("found %+v, %v", found, err)
		}
		again, err := w.EnrolUser(token, enrolled.Name, []byte("key"))
		if err != nil || again.Number != enrolled.Number {
			t.Errorf("repeated: %+v, %v", again, err)
		}
		_, err = w.EnrolUser(token, enrolled.Name, []byte("another key"))
		w.wantUnauthorized("another user with the same token", err)
		_, err = w.EnrolUser(token, "eve", []byte("key"))
		w.wantUnauthorized("another name with the same token", err)
	}
	if all, err := w.Users(); err != nil || len(all) != 2 || all[0].Name != "ann-admin" || all[1].Name != "ann-viewer" {
		t.Errorf("users %+v, %v", all, err)
	}
	w.check()
}

func TestUserThatIsRefused(t *testing.T) {
	w := newWorld(t)
	for _, as := range []role.Value{role.Machine, role.Server} {
		_, err := w.EnrolUser(w.token(as, "", 1), "ann", nil)
		w.wantUnauthorized("a token of role "+string(as), err)
	}
	_, err := w.EnrolUser("", "ann", nil)
	w.wantUnauthorized("no token", err)
	token := w.token(role.Viewer, "", 1)
	for _, name := range []string{"", "Ann", "../ann", "a b"} {
		if _, err := w.EnrolUser(token, name, nil); !errors.Is(err, errors.NotValid) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	_, err = w.EnrolUser(w.token(role.Admin, "", 1), "ann", []byte("a key"))
	w.must(err)
	if _, err := w.EnrolUser(token, "ann", nil); !errors.Is(err, errors.AlreadyExists) {
		t.Errorf("the name of another user: %v", err)
	}
	if _, err := w.EnrolUser(token, "bob", nil); err != nil {
		t.Errorf("the token that was refused for a name: %v", err)
	}
	w.check()
}

// Who gets the name of a user who was removed is another user.
// Promise S29.
func TestUserIsRemoved(t *testing.T) {
	w := newWorld(t)
	first, err := w.EnrolUser(w.token(role.Admin, "", 1), "ann", []byte("key"))
	w.must(err)
	if err := w.RemoveUsers("ann", "bob"); !errors.Is(err, errors.NotFound) {
		t.Errorf("removing a user who does not exist: %v", err)
	}
	_, err = w.User("ann", first.Number)
	w.must(err)
	w.must(w.RemoveUsers("ann"))
	_, err = w.User("ann", first.Number)
	w.wantUnauthorized("a user who was removed", err)
	second, err := w.EnrolUser(w.token(role.Viewer, "", 1), "ann", []byte("key"))
	w.must(err)
	_, err = w.User("ann", first.Number)
	w.wantUnauthorized("the user before", err)
	if found, err := w.User("ann", second.Number); err != nil || found != second {
		t.Errorf("found %+v, %v", found, err)
	}
	w.check()
}

// A user who has just been enrolled at another server is not refused.
func TestUserAtAnotherServer(t *testing.T) {
	store := &laggingStore{Store: newStore(t)}
	w := openWorld(t, store)
	enrolled, err := w.EnrolUser(w.token(role.Viewer, "", 1), "ann", []byte("key"))
	w.must(err)
	store.former = newStore(t)
	_, err = w.User("ann", enrolled.Number)
	w.must(err)
}
