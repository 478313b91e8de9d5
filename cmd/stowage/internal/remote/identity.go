package remote

import (
	"cmp"
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/api"
	"github.com/stowage-io/stowage/apiserver/trust"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/core/role"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage/provider"
)

// The files of an agent's identity. The certificate is written last when the agent is enrolled.
const (
	nameFile        = "machine"
	keyFile         = "agent.key"
	caFile          = "ca.crt"
	certificateFile = "agent.crt"
	sessionFile     = "session"
	fingerprintFile = "fingerprint"
	lockFile        = "lock"
)

// identity is the agent's name, key and certificate, in its directory. It implements
// [api.Secrets], too.
type identity struct {
	dir string
	// name is that of the machine.
	name string
	key  crypto.Signer
	lock *os.File

	mu      sync.Mutex // guards current
	current trust.Credentials
}

// openIdentity locks the directory, and reads the identity, or makes a new one. It is not enrolled
// then.
func openIdentity(dir, name string) (*identity, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, errors.Annotate(err, "making the directory of the agent's identity")
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, errors.Annotate(err, "locking the data directory")
	}
	i := &identity{dir: dir, lock: lock}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.Errorf("another agent runs in %s: stop it, or choose another --data-dir", filepath.Dir(dir))
		}
		_ = lock.Close()
		return nil, errors.Annotate(err, "locking the data directory")
	}
	if err := i.read(name); err != nil {
		_ = lock.Close()
		return nil, errors.Trace(err)
	}
	return i, nil
}

// close releases the lock.
func (i *identity) close() error { return i.lock.Close() }

func (i *identity) path(file string) string { return filepath.Join(i.dir, file) }

// readFile returns the content of a file, or nothing if it does not exist.
func (i *identity) readFile(file string) ([]byte, error) {
	content, err := os.ReadFile(i.path(file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, errors.Trace(err)
}

func (i *identity) writeFile(file string, content []byte) error {
	return errors.Trace(datadir.WriteFile(i.path(file), content))
}

// read reads the identity. name is what the user wants the machine to be called, or empty.
func (i *identity) read(name string) error {
	var err error
	if i.current.Certificate, err = i.readFile(certificateFile); err != nil {
		return err
	}
	known, err := i.readFile(nameFile)
	if err != nil {
		return err
	}
	i.name = strings.TrimSpace(string(known))
	switch {
	case i.isEnrolled() && name != "" && name != i.name:
		return errors.Errorf("%s is that of machine %q, not of %q: choose another --data-dir", filepath.Dir(i.dir), i.name, name)
	case !i.isEnrolled():
		if i.name = cmp.Or(name, i.name, hostName()); i.name == "" {
			return errors.New("the host name cannot be the name of the machine: choose one with --machine")
		}
		if err := i.writeFile(nameFile, []byte(i.name+"\n")); err != nil {
			return err
		}
	}
	key, err := i.readFile(keyFile)
	if err != nil {
		return err
	}
	if len(key) == 0 {
		if i.key, key, err = trust.NewKey(); err != nil {
			return errors.Trace(err)
		}
		if err := i.writeFile(keyFile, key); err != nil {
			return err
		}
	} else if i.key, err = trust.ParseKey(key); err != nil {
		return errors.Annotate(err, i.path(keyFile))
	}
	i.current.Key = key
	i.current.CA, err = i.readFile(caFile)
	return err
}

// hostName returns the host name, or nothing if it cannot be the name of a machine.
func hostName() string {
	name, err := os.Hostname()
	name = strings.ToLower(name)
	if err != nil || !coremachine.IsName(name) {
		return ""
	}
	return name
}

// isEnrolled reports whether the agent has a certificate.
func (i *identity) isEnrolled() bool { return len(i.credentials().Certificate) > 0 }

func (i *identity) credentials() trust.Credentials {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.current
}

// enrol gets a certificate with a token, and stores it.
func (i *identity) enrol(ctx context.Context, config api.Config, token trust.Token) error {
	certificate, ca, err := api.Enrol(ctx, config, token, i.name, i.key.Public())
	if err != nil {
		return errors.Trace(err)
	}
	if err := i.writeFile(caFile, ca); err != nil {
		return errors.Trace(err)
	}
	i.mu.Lock()
	i.current.CA = ca
	i.mu.Unlock()
	return i.replaceCertificate(certificate)
}

func (i *identity) replaceCertificate(certificate []byte) error {
	if err := i.writeFile(certificateFile, certificate); err != nil {
		return errors.Annotate(err, "storing the agent's certificate")
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.current.Certificate = certificate
	return nil
}

// machine returns the machine of the agent, as the certificate says.
func (i *identity) machine() (names.MachineTag, error) {
	leaf, err := i.credentials().Leaf()
	if err != nil {
		return names.MachineTag{}, errors.Annotate(err, i.path(certificateFile))
	}
	owner, err := trust.IdentityOf(leaf)
	if err != nil || owner.Role != role.Machine || !names.IsValidMachine(owner.ID) {
		return names.MachineTag{}, errors.New(fmt.Sprintf("%s is not the certificate of a machine", i.path(certificateFile)))
	}
	return names.NewMachineTag(owner.ID), nil
}

// checkFingerprint returns an error unless the data directory is the one in which the identity was
// made: no provider may be called otherwise, since the records may describe storage that another
// agent uses. It stores the fingerprint of a new identity.
func (i *identity) checkFingerprint(dir datadir.Dir) error {
	now, err := dir.Fingerprint()
	if err != nil {
		return errors.Trace(err)
	}
	content, err := i.readFile(fingerprintFile)
	if err != nil {
		return errors.Trace(err)
	}
	var made state.Fingerprint
	if len(content) > 0 {
		if err := json.Unmarshal(content, &made); err != nil {
			return errors.Annotate(err, i.path(fingerprintFile))
		}
		if difference := datadir.Difference(made, now); difference != "" {
			return errors.New(fmt.Sprintf("%s is not the directory in which its agent was enrolled (different %s). "+
				"Nothing was attached or changed. If it was moved here, run `stowage adopt-dir --moved`; "+
				"if it is a copy, delete it, and start an agent in an empty directory with a token of its own", dir, difference))
		}
	}
	if made == now {
		return nil
	}
	return i.storeFingerprint(now)
}

func (i *identity) storeFingerprint(now state.Fingerprint) error {
	content, err := json.Marshal(now)
	if err != nil {
		return errors.Trace(err)
	}
	return i.writeFile(fingerprintFile, append(content, '\n'))
}

// AdoptMoved makes a directory that was moved the directory of its agent, which does not run. It
// updates the identities of files and directories; it returns an error if one is not what its
// record says. It can be called again.
func AdoptMoved(ctx context.Context, dir datadir.Dir) error {
	own, err := openIdentity(dir.Agent(), "")
	if err != nil {
		return errors.Trace(err)
	}
	defer func() { _ = own.close() }()
	for _, directory := range dir.StorageDirectories() {
		if err := directory.Reidentify(ctx, provider.Moved); err != nil {
			return errors.Trace(err)
		}
	}
	now, err := dir.Fingerprint()
	if err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(own.storeFingerprint(now))
}

// Load implements api.Secrets.
func (i *identity) Load() (string, error) {
	secret, err := i.readFile(sessionFile)
	return strings.TrimSpace(string(secret)), errors.Trace(err)
}

// Store implements api.Secrets.
func (i *identity) Store(secret string) error {
	return i.writeFile(sessionFile, []byte(secret+"\n"))
}
