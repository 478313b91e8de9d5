// Package member runs a member of an etcd cluster in the process of a server. Several servers then
// keep their state together, and each has all of it.
//
// The process is the only client of its member, without a connection. The members speak with each
// other over TLS, with certificates of an authority of their own, so that neither an agent's nor a
// user's certificate admits anybody.
package member

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/state/kv/etcdkv"
)

// Logger receives messages for the operator.
type Logger interface {
	Debugf(format string, args ...any)
	Infof(format string, args ...any)
	Warningf(format string, args ...any)
}

// Config is the configuration of a [Member].
type Config struct {
	// Dir is the directory of the member's database, which it makes.
	Dir string
	// CertificateFile is the file of the member's certificate and key, which it writes.
	CertificateFile string
	// Name and Address are those of the member. The address is the host and port at which the other
	// members reach it. A member keeps both.
	Name, Address string
	// CA is the authority of the members, and CAFile a file with its certificate in PEM.
	CA     *trust.CA
	CAFile string
	// Cluster is what [Member.Add] has returned for this member. Empty: a new member is the first of
	// a cluster.
	Cluster string
	// Alone makes the member forget all others, whose data is then lost.
	Alone bool
	// Quota bounds the size of the database in bytes. Zero: 8 GiB.
	Quota  int64
	Clock  clock.Clock
	Logger Logger
}

const (
	defaultQuota = 8 << 30

	// compactAfter is how long etcd keeps the history of keys. A store that lost its connection for
	// longer reads everything again.
	compactAfter = "1h"

	// maxJoining is the number of members that can join at the same time.
	maxJoining = 3
)

// Validate returns an error that names the field that is not valid.
func (c Config) Validate() error {
	switch {
	case c.Dir == "" || c.CertificateFile == "" || c.CAFile == "":
		return errors.NotValidf("empty Dir, CertificateFile or CAFile")
	case !nameForm.MatchString(c.Name):
		return errors.NotValidf("Name %q", c.Name)
	case c.CA == nil || c.Clock == nil || c.Logger == nil:
		return errors.NotValidf("nil CA, Clock or Logger")
	}
	return CheckAddress(c.Address)
}

// CheckAddress returns an error unless other machines can have the address of a member: a host and
// a port.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return errors.NewNotValid(nil, "the address for other servers: "+err.Error())
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		return errors.NewNotValid(nil, fmt.Sprintf("the address for other servers, %s, has to name this machine: write its host name or IP address", address))
	}
	if net.ParseIP(host) == nil && !nameForm.MatchString(host) {
		return errors.NewNotValid(nil, fmt.Sprintf("the address for other servers, %q, has neither a host name nor an IP address", address))
	}
	if number, err := strconv.Atoi(port); err != nil || number < 1 || number > 65535 {
		return errors.NewNotValid(nil, fmt.Sprintf("the address for other servers, %s, needs a port from 1 to 65535, which stays the same", address))
	}
	return nil
}

// nameForm is the form of the names of members and hosts.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?$`)

// Member is a member that runs.
type Member struct {
	config Config
	etcd   *embed.Etcd
	client *clientv3.Client
	http   *http.Client

	// renewAt is when the member's certificate is renewed, and spaceAt when space may be made again.
	renewAt, spaceAt time.Time

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Start starts a member, and waits until it can be used: until more than half of the members run,
// and a new member has all data. The context bounds the wait.
func Start(ctx context.Context, config Config) (*Member, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.Quota == 0 {
		config.Quota = defaultQuota
	}
	m := &Member{config: config}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	err := m.writeCredentials()
	if err == nil {
		err = m.start(ctx)
	}
	if err != nil {
		m.Close()
		return nil, errors.Annotatef(err, "starting etcd as %s at %s", config.Name, config.Address)
	}
	m.running.Go(m.tend)
	return m, nil
}

func (m *Member) start(ctx context.Context) (err error) {
	info := m.tls()
	config, err := info.ClientConfig()
	if err != nil {
		return errors.Trace(err)
	}
	m.http = &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	if m.etcd, err = embed.StartEtcd(m.embedded(info)); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(m.awaitReady(ctx))
}

// embedded returns etcd's configuration.
func (m *Member) embedded(info transport.TLSInfo) *embed.Config {
	c := embed.NewConfig()
	own := url.URL{Scheme: "https", Host: m.config.Address}
	c.Name, c.Dir = m.config.Name, m.config.Dir
	c.AdvertisePeerUrls, c.ListenPeerUrls = []url.URL{own}, []url.URL{listenURL(own)}
	c.PeerTLSInfo, c.TlsMinVersion = info, "TLS1.3"
	c.ListenClientUrls, c.AdvertiseClientUrls, c.EnableGRPCGateway = nil, nil, false
	c.InitialCluster = m.config.Cluster
	c.ClusterState = embed.ClusterStateFlagExisting
	if m.config.Cluster == "" {
		c.InitialCluster = m.config.Name + "=" + own.String()
		c.ClusterState = embed.ClusterStateFlagNew
		c.InitialClusterToken = rand.Text() // so that members of two clusters never mix
	}
	c.ForceNewCluster = m.config.Alone
	c.MaxLearners = maxJoining
	c.MaxTxnOps = etcdkv.MaxTxnOps
	c.MaxRequestBytes = etcdkv.MaxRequestBytes + 1<<20 // what etcd adds to a transaction
	c.QuotaBackendBytes = m.config.Quota
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, compactAfter
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(logCore{m.config.Logger}))
	return c
}

// listenURL returns where to listen as the address says. etcd listens at IP addresses only.
func listenURL(own url.URL) url.URL {
	if net.ParseIP(own.Hostname()) == nil {
		own.Host = net.JoinHostPort("", own.Port())
	}
	return own
}

const (
	// readyInterval is how often a new member looks whether it counts.
	readyInterval = 100 * time.Millisecond

	// quietStart is how long a start may take before the operator is told what it waits for.
	quietStart = 5 * time.Second
)

// awaitReady waits until the member takes part in decisions.
func (m *Member) awaitReady(ctx context.Context) error {
	late := time.AfterFunc(quietStart, func() {
		if others := m.others(); len(others) > 0 {
			m.config.Logger.Infof("waiting for the other servers (%s): more than half of them have to run", strings.Join(others, ", "))
		}
	})
	defer late.Stop()
	select {
	case <-m.etcd.Server.ReadyNotify():
	case <-m.etcd.Server.StopNotify():
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	ticker := time.NewTicker(readyInterval)
	defer ticker.Stop()
	for m.etcd.Server.IsLearner() {
		select {
		case <-ticker.C:
		case <-m.etcd.Server.StopNotify():
			return ErrEnded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.client = v3client.New(m.etcd.Server)
	return nil
}

// others returns the addresses of the other members.
func (m *Member) others() []string {
	var others []string
	for _, other := range m.etcd.Server.Cluster().Members() {
		if other.ID != m.etcd.Server.MemberID() {
			others = append(others, addressOf(other.PeerURLs))
		}
	}
	slices.Sort(others)
	return others
}

// ErrEnded is the error of a member whose etcd has ended by itself. etcd does not say why.
const ErrEnded = errors.ConstError("etcd has ended: this server was removed from the others, or etcd has failed")

// Client returns the client of the member. The member closes it.
func (m *Member) Client() *clientv3.Client { return m.client }

// Done is closed when etcd has ended by itself, which is [ErrEnded], or the member was closed.
func (m *Member) Done() <-chan struct{} { return m.etcd.Server.StopNotify() }

// Close stops the member. Those that use the client have to end first.
func (m *Member) Close() {
	m.cancel()
	m.running.Wait()
	if m.client != nil {
		_ = m.client.Close()
	}
	if m.etcd != nil {
		m.etcd.Close()
	}
	if m.http != nil {
		m.http.CloseIdleConnections()
	}
}
