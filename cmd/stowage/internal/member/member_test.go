package member_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/juju/clock"
	"github.com/juju/clock/testclock"
	"github.com/juju/errors"
	"github.com/juju/loggo/v2"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/member"
	"github.com/stowage-io/stowage/core/role"
)

const patience = time.Minute

// newConfig returns the configuration of a new member.
func newConfig(t *testing.T, ca *trust.CA, name string) member.Config {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	caFile := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(caFile, ca.Certificate(), 0o600); err != nil {
		t.Fatal(err)
	}
	return member.Config{
		Dir: filepath.Join(dir, "database"), CertificateFile: filepath.Join(dir, "own.pem"), CA: ca, CAFile: caFile,
		Name: name, Address: listener.Addr().String(), Clock: clock.WallClock, Logger: loggo.GetLogger("test.member"),
	}
}

func newCA(t *testing.T) *trust.CA {
	t.Helper()
	ca, err := trust.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func start(t *testing.T, config member.Config) *member.Member {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m, err := member.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// poll waits until something holds.
func poll(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// A database that has reached its limit accepts changes again, once the history of its keys has been
// given up.
// Fault F40.
func TestMemberMakesSpace(t *testing.T) {
	clock := testclock.NewClock(time.Now())
	config := newConfig(t, newCA(t), "one")
	config.Quota, config.Clock = 8<<20, clock
	m := start(t, config)
	value := strings.Repeat("x", 512<<10)
	put := func() error {
		_, err := m.Client().Put(t.Context(), "key", value)
		return err
	}
	for puts := 0; ; puts++ {
		if puts > 100 {
			t.Fatalf("the database has no limit: %d bytes", m.Size())
		}
		if err := put(); errors.Is(err, rpctypes.ErrNoSpace) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if !m.IsFull() {
		t.Error("the member does not count as full")
	}
	poll(t, "changes are still refused", func() bool {
		clock.Advance(time.Minute)
		return !m.IsFull()
	})
	if err := put(); err != nil {
		t.Error(err)
	}
	if size := m.Size(); size > 4<<20 {
		t.Errorf("the database of 512 KiB still takes %d bytes", size)
	}
}

// Nobody but the members can speak with a member: not an agent or a user, whose certificates are of
// another authority.
// Promise S30.
func TestOnlyMembersAreAdmitted(t *testing.T) {
	ca := newCA(t)
	config := newConfig(t, ca, "one")
	m := start(t, config)
	other := newCA(t)
	dial := func(of *trust.CA) error {
		key, encoded, err := trust.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := of.Issue(key.Public(), trust.Identity{Role: role.Server, ID: "another"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(certificate, encoded)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.Certificate())
		conn, err := tls.Dial("tcp", config.Address, &tls.Config{RootCAs: roots, ServerName: trust.ServerName, Certificates: []tls.Certificate{pair}})
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("GET /version HTTP/1.0\r\n\r\n")); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1)) // the server's alert comes with the first answer
		return err
	}
	if err := dial(ca); err != nil {
		t.Errorf("a member is refused: %v", err)
	}
	if err := dial(other); err == nil || !strings.Contains(err.Error(), "tls:") {
		t.Errorf("a certificate of another authority: %v", err)
	}
	if peers := m.List(t.Context()); len(peers) != 1 || !peers[0].Own || !peers[0].Leads || peers[0].Version == "" {
		t.Errorf("got %+v", peers)
	}
}

// A member has all data before it counts, and its certificate is renewed.
// Fault F40.
func TestMemberJoins(t *testing.T) {
	ca := newCA(t)
	clock := testclock.NewClock(time.Now())
	config := newConfig(t, ca, "one")
	config.Clock = clock
	first := start(t, config)
	if _, err := first.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(config.CertificateFile)
	if err != nil {
		t.Fatal(err)
	}

	joining := newConfig(t, ca, "two")
	if joining.Cluster, err = first.Add(t.Context(), "two", joining.Address); err != nil {
		t.Fatal(err)
	}
	again, err := first.Add(t.Context(), "two", joining.Address)
	if err != nil || again != joining.Cluster {
		t.Errorf("adding a member again: %q, not %q, %v", again, joining.Cluster, err)
	}
	stop := make(chan struct{})
	advancing := make(chan struct{})
	go func() { // the first member promotes the second
		defer close(advancing)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				clock.Advance(time.Second)
			}
		}
	}()
	second := start(t, joining)
	close(stop)
	<-advancing
	got, err := second.Client().Get(t.Context(), "key", clientv3.WithSerializable())
	if err != nil || len(got.Kvs) != 1 {
		t.Errorf("the new member has %v, %v", got, err)
	}
	if _, err := first.Add(t.Context(), "two", "127.0.0.1:1"); !errors.Is(err, errors.AlreadyExists) {
		t.Errorf("a second member with the name: %v", err)
	}
	if _, err := first.Add(t.Context(), "x=https://10.0.0.1:1,y", "127.0.0.1:1"); !errors.Is(err, errors.NotValid) {
		t.Errorf("a member with several names: %v", err)
	}
	if err := second.Remove(t.Context(), "two"); !errors.Is(err, errors.NotValid) {
		t.Errorf("a member removes itself: %v", err)
	}

	clock.Advance(59 * 24 * time.Hour)
	poll(t, "the certificate is not renewed", func() bool {
		clock.Advance(time.Hour)
		now, err := os.ReadFile(config.CertificateFile)
		return err == nil && string(now) != string(before)
	})
}

func TestMemberConfigErrors(t *testing.T) {
	for address, want := range map[string]string{
		"":             "the address for other servers: missing port in address",
		"0.0.0.0:7118": "has to name this machine",
		":7118":        "has to name this machine",
		"[::]:7118":    "has to name this machine",
		"10.0.0.1:0":   "needs a port from 1 to 65535, which stays the same",
		"10.0.0.1:x":   "needs a port from 1 to 65535, which stays the same",
		"a,b=c:7118":   "has neither a host name nor an IP address",
	} {
		if err := member.CheckAddress(address); !errors.Is(err, errors.NotValid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
