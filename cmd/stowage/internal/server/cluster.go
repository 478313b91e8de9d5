package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/member"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/etcdkv"
)

// Servers can keep the state together: each then runs a member of an etcd cluster. The first one
// begins the cluster, and the others join it.

// The files of a server that keeps the state together with others.
const (
	// databaseDir is the directory of the member's database, and newDatabaseDir of one that is not
	// complete.
	databaseDir    = "database"
	newDatabaseDir = "database.new"
	// clusterFile has the clusterRecord. Until it exists, the server has not begun.
	clusterFile     = "cluster.json"
	certificateFile = "member.pem"
)

// membersAuthority are the files of the authority of the members.
var membersAuthority = authorityFiles{key: "members-ca.key", certificate: "members-ca.crt"}

// clusterPrefix is the beginning of the state's keys in the cluster.
const clusterPrefix = "/stowage/"

// clusterRecord is what a server keeps of the cluster for ever.
type clusterRecord struct {
	// Address is the host and port at which the other servers reach this one.
	Address string `json:"address"`
	// Cluster has the members that the server has joined. Empty: it has begun the cluster.
	Cluster string `json:"cluster,omitempty"`
	// Started says that the server has been a member: with another database it would break what it has
	// confirmed.
	Started bool `json:"started"`
	// Directory is the data directory. In a copy of it, a second server would take itself for the
	// same member.
	Directory state.Fingerprint `json:"directory"`
}

// cluster is the cluster as a server that starts sees it.
type cluster struct {
	dir    datadir.Dir
	config Config
	name   string

	record clusterRecord
	ca     *trust.CA
}

// path returns the path of a file of the server.
func (c *cluster) path(name string) string { return filepath.Join(c.dir.Server(), name) }

// prepare does what a new server needs to run a member, and reads what an earlier one has.
func (c *cluster) prepare(ctx context.Context) error {
	err := c.readRecord()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = c.begin(ctx)
	case err == nil:
		err = c.check()
	}
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.retireFile())
}

// readRecord reads the record of an earlier server. The error satisfies errors.Is(err,
// fs.ErrNotExist) if there was none.
func (c *cluster) readRecord() error {
	content, err := os.ReadFile(c.path(clusterFile))
	if err != nil {
		return errors.Annotate(err, "reading the server's place among the others")
	}
	return errors.Annotatef(json.Unmarshal(content, &c.record), "reading %s", c.path(clusterFile))
}

// check checks that the record is that of this server, and reads the authority. No error satisfies
// errors.Is(err, fs.ErrNotExist).
func (c *cluster) check() (err error) {
	if c.ca, err = readAuthority(c.dir.Server(), membersAuthority); errors.Is(err, fs.ErrNotExist) {
		return errMissing(c.path(membersAuthority.certificate))
	} else if err != nil {
		return errors.Trace(err)
	}
	if want := c.config.PeerAddress; want != "" && want != c.record.Address {
		return errors.Errorf("the other servers reach this one at %s, and not at %s: start it with --peer-address %[1]s, or remove it with `stowage server remove` on another one and join again with an empty --data-dir", c.record.Address, want)
	}
	now, err := c.dir.Fingerprint()
	if err != nil {
		return errors.Trace(err)
	}
	switch difference := datadir.Difference(c.record.Directory, now); {
	case difference != "":
		return errors.New(fmt.Sprintf("%s is not the directory in which the server joined the others (different %s). "+
			"If it was moved here, run `stowage adopt-dir --moved`; a copy cannot be used: join the others with an empty --data-dir", c.dir, difference))
	case c.record.Directory != now: // after a restart of the machine
		c.record.Directory = now
		return errors.Trace(c.write())
	}
	return nil
}

func (c *cluster) write() error {
	content, err := json.MarshalIndent(c.record, "", "\t")
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Annotate(datadir.WriteFile(c.path(clusterFile), append(content, '\n')), "recording the server's place among the others")
}

// begin begins a cluster, or joins one.
func (c *cluster) begin(ctx context.Context) (err error) {
	if c.record.Address, err = c.config.peerAddress(); err != nil {
		return errors.Trace(err)
	}
	if err := c.removeUnfinished(); err != nil {
		return errors.Trace(err)
	}
	switch {
	case len(c.config.Join) > 0:
		err = c.join(ctx)
	case c.config.ClusterInit:
		err = c.found(ctx)
	default:
		err = errors.Errorf("the server in %s was interrupted before it had joined the others: start it with --join and a token, or with --cluster-init if it is the first one", c.dir)
	}
	if err == nil {
		c.record.Directory, err = c.dir.Fingerprint()
	}
	if err == nil {
		err = c.dir.SetPlace(datadir.PlaceCluster)
	}
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(c.write())
}

// removeUnfinished removes what an interrupted start has left. A database without a record is such a
// thing only as long as the state is still in its file.
func (c *cluster) removeUnfinished() error {
	hasFile, err := c.dir.HasStateFile()
	if err != nil {
		return errors.Trace(err)
	}
	if _, err := os.Lstat(c.path(databaseDir)); err == nil && !hasFile {
		return errors.Errorf("%s is missing, and %s has a state: put the file back, or choose another --data-dir", c.path(clusterFile), c.path(databaseDir))
	}
	for _, left := range []string{databaseDir, newDatabaseDir} {
		if err := os.RemoveAll(c.path(left)); err != nil {
			return errors.Annotate(err, "removing what an interrupted start has left")
		}
	}
	return nil
}

// peerAddress returns the address of a new server for others: that which is configured, or the port
// after that for agents.
func (c Config) peerAddress() (string, error) {
	if c.PeerAddress != "" {
		return c.PeerAddress, nil
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", errors.Trace(err)
	}
	number, err := strconv.Atoi(port)
	if ip := net.ParseIP(host); err != nil || number == 0 || host == "" || ip.IsUnspecified() {
		return "", errors.NewNotValid(nil, fmt.Sprintf("other servers cannot reach this one at %s: say where they can with --peer-address HOST:PORT", c.Listen))
	}
	return net.JoinHostPort(host, strconv.Itoa(number+1)), nil
}

// join makes this server a member of the cluster of others.
func (c *cluster) join(ctx context.Context) error {
	joined, err := c.config.join(ctx, c.dir, c.name, c.record.Address)
	if err != nil {
		return errors.Trace(err)
	}
	c.record.Cluster, c.ca = joined.Cluster, joined.MembersCA
	if err := writeAuthority(c.dir.Server(), serversAuthority, joined.CA); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(writeAuthority(c.dir.Server(), membersAuthority, c.ca))
}

// found begins a cluster, with the state in the directory if there is one.
func (c *cluster) found(ctx context.Context) (err error) {
	if c.ca, err = trust.NewCA(c.config.Clock.Now()); err != nil {
		return errors.Trace(err)
	}
	if err := writeAuthority(c.dir.Server(), membersAuthority, c.ca); err != nil {
		return errors.Trace(err)
	}
	hasFile, err := c.dir.HasStateFile()
	if err != nil || !hasFile {
		return errors.Trace(err)
	}
	store, err := c.dir.OpenStore()
	if err != nil {
		return errors.Trace(err)
	}
	file := &inFile{store, c.dir}
	st, err := file.open(state.Config{Clock: c.config.Clock, Registry: c.config.Registry, Marks: c.dir.Marks()})
	if err == nil {
		err = st.Close()
	}
	if err == nil {
		err = c.seed(ctx, store, "")
	}
	return errors.Annotate(process.FirstError(err, store.Close()), "moving the state from the file to the cluster")
}

// retireFile renames the state file, whose state the cluster has.
func (c *cluster) retireFile() error {
	hasFile, err := c.dir.HasStateFile()
	if err != nil || !hasFile {
		return errors.Trace(err)
	}
	retired := c.dir.StateFile() + ".before-cluster"
	if _, err := os.Lstat(retired); !errors.Is(err, fs.ErrNotExist) {
		retired += "-" + c.config.Clock.Now().UTC().Format("20060102T150405Z") // that one stays
	}
	if err := os.Rename(c.dir.StateFile(), retired); err != nil {
		return errors.Trace(err)
	}
	c.config.Logger.Infof("the state is in the cluster now: %s is the file in which it was", retired)
	return errors.Trace(fsync.Dir(string(c.dir)))
}

// start starts the member with a database. Alone, the member forgets all others.
func (c *cluster) start(ctx context.Context, database string, alone bool) (*member.Member, *etcdkv.Store, error) {
	m, err := member.Start(ctx, member.Config{
		Dir:             c.path(database),
		CertificateFile: c.path(certificateFile),
		Name:            c.name,
		Address:         c.record.Address,
		CA:              c.ca,
		CAFile:          c.path(membersAuthority.certificate),
		Cluster:         c.record.Cluster,
		Alone:           alone,
		Clock:           c.config.Clock,
		Logger:          c.config.Logger,
	})
	if err != nil {
		return nil, nil, c.explain(err)
	}
	store, err := etcdkv.Open(ctx, etcdkv.Config{Client: m.Client(), Prefix: clusterPrefix, Name: c.name})
	if err != nil {
		m.Close()
		return nil, nil, errors.Trace(err)
	}
	return m, store, nil
}

// explain adds the remedy to the error of a member that has ended.
func (c *cluster) explain(err error) error {
	if errors.Is(err, member.ErrEnded) {
		err = errors.WithType(errors.Errorf("%v. If `stowage servers` on another one does not list it any more, delete %s, and let it join again with a token", err, c.dir), errMemberEnded)
	}
	return errors.Trace(err)
}

// seed makes a database of a member that is alone, with what is in the store. The database that there
// was is renamed to replaced.
func (c *cluster) seed(ctx context.Context, from stateStore, replaced string) error {
	m, store, err := c.start(ctx, newDatabaseDir, false)
	if err != nil {
		return errors.Trace(err)
	}
	err = process.FirstError(copyState(ctx, from, store), store.Close())
	m.Close()
	if err == nil && replaced != "" {
		if err = os.Rename(c.path(databaseDir), replaced); errors.Is(err, fs.ErrNotExist) {
			err = nil // an earlier call was interrupted here
		}
	}
	if err == nil {
		err = os.Rename(c.path(newDatabaseDir), c.path(databaseDir))
	}
	if err == nil {
		err = fsync.Dir(c.dir.Server())
	}
	return errors.Trace(err)
}

// run starts the member, whose database must not have been lost.
func (c *cluster) run(ctx context.Context) (*member.Member, *etcdkv.Store, error) {
	if err := c.checkDatabase(); err != nil {
		return nil, nil, errors.Trace(err)
	}
	m, store, err := c.start(ctx, databaseDir, false)
	if err != nil || c.record.Started {
		return m, store, errors.Trace(err)
	}
	c.record.Started = true
	return m, store, errors.Trace(c.write())
}

// checkDatabase returns an error if the server had a database, and has none: etcd would begin with an
// empty one.
func (c *cluster) checkDatabase() error {
	_, err := os.Lstat(c.path(databaseDir))
	if c.record.Started && errors.Is(err, fs.ErrNotExist) {
		return errors.Errorf("%s, the database of this server, is missing: remove the server with `stowage server remove` on another one and join again with an empty --data-dir, "+
			"or restore a backup with --cluster-reset --restore FILE if there is no other one", c.path(databaseDir))
	}
	return nil
}

// openCluster opens the state of the cluster.
func openCluster(ctx context.Context, dir datadir.Dir, config Config) (place, error) {
	p := &inEtcd{dir: dir, what: "the state of the servers"}
	err := p.begin()
	if err == nil {
		p.cluster = &cluster{dir: dir, config: config, name: p.name}
		err = p.cluster.prepare(ctx)
	}
	if err == nil {
		p.member, p.Store, err = p.cluster.run(ctx)
	}
	if err != nil {
		_ = p.Close()
		return nil, errors.Trace(err)
	}
	return p, nil
}

// join gets from other servers what a new one needs.
func (c Config) join(ctx context.Context, dir datadir.Dir, name, address string) (api.Joined, error) {
	if c.Token == "" {
		return api.Joined{}, errors.Errorf("the server in %s has not joined the others yet: make a token with `stowage token create --role server` on one of them, and start this one with --token", dir)
	}
	token, err := trust.ParseToken(c.Token)
	if err != nil {
		return api.Joined{}, errors.Trace(err)
	}
	joined, err := api.Join(ctx, api.Config{URLs: c.Join, Clock: c.Clock, Logger: c.Logger}, api.JoinArgs{Token: token, Name: name, Address: address})
	return joined, errors.Trace(err)
}

// AdoptMoved makes a directory that was moved that of its server, which does not run. The server must
// keep the state together with others.
func AdoptMoved(dir datadir.Dir) error {
	p := &inEtcd{dir: dir}
	err := p.begin()
	c := &cluster{dir: dir, name: p.name}
	if err == nil {
		err = c.readRecord()
	}
	if err == nil {
		c.record.Directory, err = dir.Fingerprint()
	}
	if err == nil {
		err = c.write()
	}
	return errors.Trace(process.FirstError(err, p.Close()))
}
