package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/juju/errors"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/member"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
	"github.com/stowage-io/stowage/state/kv/etcdkv"
	"github.com/stowage-io/stowage/state/statefile"
)

// Etcd says where the state is, if it is in etcd. Then several servers can have it.
type Etcd struct {
	// Endpoints are the addresses of etcd's members. Empty: the state is in a file of its own.
	Endpoints []string
	// Prefix is the beginning of the keys. It ends in a slash.
	Prefix string
	// CAFile has the certificate of the authority of etcd's members, CertFile and KeyFile are those
	// of this client, all in PEM. Empty: the machine's authorities, and no client certificate.
	CAFile, CertFile, KeyFile string
}

func (e Etcd) validate() error {
	switch {
	case len(e.Endpoints) == 0:
		return nil
	case !strings.HasSuffix(e.Prefix, "/"):
		return errors.NewNotValid(nil, "the prefix of the keys in etcd has to end in a slash")
	case (e.CertFile == "") != (e.KeyFile == ""):
		return errors.NewNotValid(nil, "a certificate for etcd needs its key")
	}
	return nil
}

// tlsConfig returns nil if no certificates are configured: the addresses decide then.
func (e Etcd) tlsConfig() (*tls.Config, error) {
	if e.CAFile == "" && e.CertFile == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CAFile != "" {
		ca, err := os.ReadFile(e.CAFile)
		if err != nil {
			return nil, errors.Annotate(err, "certificates for etcd")
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.Errorf("certificates for etcd: %s has no certificate in PEM", e.CAFile)
		}
	}
	if e.CertFile != "" {
		own, err := tls.LoadX509KeyPair(e.CertFile, e.KeyFile)
		if err != nil {
			return nil, errors.Annotate(err, "certificates for etcd")
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// place is where a server has its state: in a file, or in etcd.
type place interface {
	kv.Store
	// open opens the state.
	open(state.Config) (*state.State, error)
	// backup writes a copy of the state to a new file.
	backup(ctx context.Context, path string, now time.Time) (statefile.Meta, error)
	// isFatal reports whether an error is one of a store that has failed for good.
	isFatal(error) bool
}

// inFile is a state in the data directory.
type inFile struct {
	*boltkv.Store
	dir datadir.Dir
}

func (p *inFile) open(config state.Config) (*state.State, error) {
	st, err := p.dir.OpenState(p.Store, config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := p.dir.CheckFingerprint(st); err != nil {
		return nil, process.FirstError(errors.Trace(err), st.Close())
	}
	return st, nil
}

func (p *inFile) backup(ctx context.Context, path string, now time.Time) (statefile.Meta, error) {
	return statefile.Backup(ctx, p.Store, path, datadir.Identify, now)
}

func (p *inFile) isFatal(err error) bool { return process.IsStateFatal(err) }

// inEtcd is a state in etcd. The data directory has the server's own files, and is locked.
type inEtcd struct {
	*etcdkv.Store
	dir  datadir.Dir
	what string // the state, in errors
	lock *os.File
	name string // of the server, for ever

	// client is the connection to an etcd that others run. Otherwise, the server runs the member of
	// the cluster.
	client  *clientv3.Client
	cluster *cluster
	member  *member.Member
}

// The files of a server whose state is in etcd.
const (
	lockFile = "lock"
	nameFile = "name"
	// backupDir is the beginning of the name of a directory with a backup that is not complete.
	backupDir = "backup-"
)

// openPlace opens the place of the state, and locks the directory.
func openPlace(ctx context.Context, dir datadir.Dir, config Config) (place, error) {
	known, err := dir.Place()
	if err != nil {
		return nil, errors.Trace(err)
	}
	etcd := config.Etcd
	isMember := len(etcd.Endpoints) == 0 && (known == datadir.PlaceCluster || config.ClusterInit || len(config.Join) > 0)
	switch {
	case isMember && config.ClusterInit && known == "":
		return openCluster(ctx, dir, config) // if the state is in the directory, it moves
	case isMember:
		err = dir.CheckPlace(datadir.PlaceCluster)
	default:
		err = dir.CheckPlace(etcd.prefix())
	}
	switch {
	case err != nil:
		return nil, errors.Trace(err)
	case isMember:
		return openCluster(ctx, dir, config)
	case len(etcd.Endpoints) > 0:
		return openEtcd(ctx, dir, etcd)
	}
	store, err := dir.OpenStore()
	return &inFile{store, dir}, errors.Trace(err)
}

// prefix returns that of the keys, or nothing if the state is in a file.
func (e Etcd) prefix() string {
	if len(e.Endpoints) == 0 {
		return ""
	}
	return e.Prefix
}

// openEtcd opens a state in an etcd that others run.
func openEtcd(ctx context.Context, dir datadir.Dir, etcd Etcd) (place, error) {
	p := &inEtcd{dir: dir, what: etcd.Prefix + " in etcd"}
	err := p.begin()
	if err == nil {
		err = p.connect(ctx, etcd)
	}
	if err != nil {
		_ = p.Close()
		return nil, errors.Trace(err)
	}
	return p, nil
}

// begin locks the directory, removes what a backup that was interrupted has left, and names the
// server.
func (p *inEtcd) begin() (err error) {
	if p.lock, err = lock(filepath.Join(p.dir.Server(), lockFile)); err != nil {
		return errors.Annotate(err, "locking the data directory")
	}
	left, err := filepath.Glob(filepath.Join(p.dir.Server(), backupDir+"*"))
	if err != nil {
		return errors.Trace(err)
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			return errors.Trace(err)
		}
	}
	p.name, err = serverName(filepath.Join(p.dir.Server(), nameFile))
	return errors.Trace(err)
}

func (p *inEtcd) connect(ctx context.Context, etcd Etcd) error {
	config, err := etcd.tlsConfig()
	if err != nil {
		return errors.Trace(err)
	}
	if p.client, err = etcdkv.Dial(etcd.Endpoints, config); err != nil {
		return errors.Trace(err)
	}
	p.Store, err = etcdkv.Open(ctx, etcdkv.Config{Client: p.client, Prefix: etcd.Prefix, Name: p.name})
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(p.dir.SetPlace(etcd.Prefix))
}

// lock locks a file for this process, until it is closed.
func lock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.New("another server uses it: stop it, or choose another --data-dir")
		}
		return nil, errors.Trace(err)
	}
	return file, nil
}

// serverName returns the name of the server with the file, which is made once: that of the machine,
// and something that distinguishes servers on it.
func serverName(path string) (string, error) {
	known, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(known)), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", errors.Annotate(err, "reading the name of the server")
	}
	host, err := os.Hostname()
	if err != nil {
		return "", errors.Annotate(err, "naming the server")
	}
	host, _, _ = strings.Cut(host, ".")
	name := notInNames.ReplaceAllString(strings.ToLower(host), "-") + "-" + strings.ToLower(rand.Text()[:6])
	return name, errors.Annotate(datadir.WriteFile(path, []byte(name+"\n")), "naming the server")
}

var notInNames = regexp.MustCompile(`[^a-z0-9-]+`)

func (p *inEtcd) Close() error {
	var err error
	if p.Store != nil {
		err = p.Store.Close()
	}
	if p.client != nil {
		_ = p.client.Close() // the store has ended its calls
	}
	if p.member != nil {
		p.member.Close()
	}
	if p.lock != nil {
		_ = p.lock.Close()
	}
	return errors.Trace(err)
}

func (p *inEtcd) open(config state.Config) (*state.State, error) {
	config.Store, config.KeepSchema = p.Store, true
	config.BeforeMigrate = func(schema int) error {
		servers, err := p.servers(context.Background())
		if err != nil {
			return errors.Trace(err)
		}
		return checkAlone(schema, p.name, servers)
	}
	st, err := state.Open(config)
	return st, errors.Annotate(err, p.what)
}

// checkAlone returns an error if the state of an older schema cannot be migrated, since other servers are
// running that may not know the new one.
func checkAlone(schema int, own string, servers []running) error {
	var others []string
	for _, s := range servers {
		if s.name != own { // its own lease may be held since a crash
			others = append(others, cmp.Or(s.name, s.id))
		}
	}
	if len(others) == 0 {
		return nil
	}
	return errors.Errorf("it has schema %d, which this version brings up to date, and other servers use it, which may be older: %s: "+
		"stop all servers of the older version, and then start this one", schema, strings.Join(others, ", "))
}

// backup writes a file like that of a server with a state of its own.
func (p *inEtcd) backup(ctx context.Context, path string, now time.Time) (meta statefile.Meta, err error) {
	dir, err := os.MkdirTemp(p.dir.Server(), backupDir)
	if err != nil {
		return meta, errors.Trace(err)
	}
	defer func() {
		if removed := os.RemoveAll(dir); err == nil {
			err = removed
		}
	}()
	file, err := boltkv.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return meta, errors.Trace(err)
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	err = copyState(ctx, p.Store, file)
	if err != nil {
		return meta, errors.Trace(err)
	}
	return statefile.Backup(ctx, file, path, datadir.Identify, now)
}

// isFatal implements place. What this process has read and committed may be gone, or the member has
// ended.
func (p *inEtcd) isFatal(err error) bool {
	return errors.Is(err, etcdkv.ErrRestored) || errors.Is(err, errMemberEnded)
}

// stateStore is a store that can be copied.
type stateStore interface {
	View(context.Context, func(kv.Snapshot) error) error
}

// Bounds of a transaction that copies.
const (
	copiedKeys  = 8192
	copiedBytes = 4 << 20
)

// copyState copies all keys to a store without other keys, in bounded transactions. The last one makes the
// copy valid: see [state.SchemaKey].
func copyState(ctx context.Context, from stateStore, to kv.Store) error {
	type entry struct {
		key   string
		value []byte
	}
	var batch []entry
	var last entry
	size := 0
	flush := func() error {
		err := to.Update(ctx, func(tx kv.Tx) error {
			for _, e := range batch {
				if err := tx.Put(e.key, e.value); err != nil {
					return errors.Trace(err)
				}
			}
			return nil
		})
		batch, size = nil, 0
		return errors.Trace(err)
	}
	return from.View(ctx, func(snapshot kv.Snapshot) error {
		err := snapshot.Scan("", func(key string, value []byte) error {
			if key == state.SchemaKey {
				last = entry{key, bytes.Clone(value)}
				return nil
			}
			batch = append(batch, entry{key, bytes.Clone(value)})
			if size += len(key) + len(value); len(batch) < copiedKeys && size < copiedBytes {
				return nil
			}
			return flush()
		})
		if err == nil {
			err = flush()
		}
		if err == nil && last.key != "" {
			batch = []entry{last}
			err = flush()
		}
		return errors.Trace(err)
	})
}
