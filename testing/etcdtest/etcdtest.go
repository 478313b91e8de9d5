// Package etcdtest runs etcd for tests: one member within the process, or the cluster that
// $ETCD_ENDPOINTS names.
package etcdtest

import (
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/stowage-io/stowage/state/kv/etcdkv"
)

// Start starts a member with the limits that a store needs, which syncs nothing to disk, and
// stops it at the end of the test. It returns the addresses for clients. If $ETCD_ENDPOINTS has
// addresses, separated by commas, it starts nothing and returns those.
func Start(t testing.TB) (addresses []string) {
	t.Helper()
	if endpoints := os.Getenv("ETCD_ENDPOINTS"); endpoints != "" {
		return strings.Split(endpoints, ",")
	}
	return StartWith(t, func(config *embed.Config) {
		config.MaxTxnOps, config.MaxRequestBytes = etcdkv.MaxTxnOps, etcdkv.MaxRequestBytes
	})
}

// StartWith is Start with a configuration that the function has changed. It always starts a
// member.
func StartWith(t testing.TB, change func(*embed.Config)) (addresses []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync = dir, true
	config.LogLevel, config.LogOutputs = "fatal", []string{os.DevNull}
	config.TickMs, config.ElectionMs = 20, 200
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls = anyPort, anyPort
	config.ListenPeerUrls, config.AdvertisePeerUrls = anyPort, anyPort
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	change(config)
	member, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(member.Close)
	select {
	case <-member.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd is not ready after a minute")
	}
	return []string{member.Clients[0].Addr().String()}
}

// Dial returns a client of the etcd at the addresses, which is closed at the end of the test.
func Dial(t testing.TB, addresses ...string) *clientv3.Client {
	t.Helper()
	client, err := etcdkv.Dial(addresses, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}
