// Package datadir is the data directory of an agent: its layout, how it is made private, and
// whether it is still the one in which the state was made. It reads the directory and makes no
// provider calls. One agent, or one command on a stopped agent, uses a directory at a time;
// the lock on the state file guarantees that.
package datadir

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/owner"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Dir is the absolute path of a data directory.
type Dir string

// The names of the entries of a data directory.
const (
	stateFile  = "state.db"
	markFile   = "state.mark"
	storageDir = "storage"
	serverDir  = "server"
	agentDir   = "agent"

	// newState is what an interrupted first start leaves of the state file.
	newState = stateFile + ".new"
)

// StateFile returns the path of the state file.
func (d Dir) StateFile() string { return filepath.Join(string(d), stateFile) }

// MarkFile returns the path of the state's mark, by which a restored state is detected.
func (d Dir) MarkFile() string { return filepath.Join(string(d), markFile) }

// Storage returns the directory in which each provider has a directory.
func (d Dir) Storage() string { return filepath.Join(string(d), storageDir) }

// Server returns the directory of a server's own files, such as the key of its authority.
func (d Dir) Server() string { return filepath.Join(string(d), serverDir) }

// Agent returns the directory of the files of a server's agent, such as its certificate.
func (d Dir) Agent() string { return filepath.Join(string(d), agentDir) }

// Use is what a data directory is used for. A directory has one use for ever.
type Use string

const (
	// UseRun is an agent with a state of its own, "stowage run".
	UseRun Use = "run"
	// UseServer is a server, and UseAgent an agent of a server.
	UseServer Use = "server"
	UseAgent  Use = "agent"
)

// CheckUse returns an error if the directory has another use.
func (d Dir) CheckUse(want Use) error {
	use, err := d.Use()
	if err == nil && use != "" && use != want {
		err = errors.Errorf("%s is the data directory of `stowage %s`: choose another --data-dir", d, use)
	}
	return errors.Trace(err)
}

// Use returns what the directory is used for, or an empty Use for a new directory.
func (d Dir) Use() (Use, error) {
	for _, sign := range []struct {
		path string
		use  Use
	}{{d.Server(), UseServer}, {d.Agent(), UseAgent}, {d.StateFile(), UseRun}} {
		_, err := os.Lstat(sign.path)
		if err == nil {
			return sign.use, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", errors.Annotate(err, "finding out what the data directory is used for")
		}
	}
	return "", nil
}

// PlaceCluster is the place of a state that several servers keep together. Other places are empty,
// for a state in the directory, or the beginning of the state's keys in an etcd that others run.
const PlaceCluster = "cluster"

// CheckPlace returns an error unless the state of the server is where it was before, or the server is
// new.
func (d Dir) CheckPlace(place string) error {
	known, err := d.Place()
	switch {
	case err != nil:
		return errors.Trace(err)
	case known == place:
		return nil
	case known == PlaceCluster:
		return errors.Errorf("the server in %s keeps the state together with others: start it without --etcd-endpoints, or choose another --data-dir", d)
	case known != "" && place == "":
		return errors.Errorf("the state of the server in %s is in etcd, below %s: start it with --etcd-endpoints", d, known)
	case known != "":
		return errors.Errorf("the state of the server in %s is below %s in etcd: start it with --etcd-endpoints and --etcd-prefix %[2]s, or choose another --data-dir", d, known)
	}
	hasFile, err := d.HasStateFile()
	if hasFile {
		err = errors.Errorf("the state of the server in %s is in that directory, and not in etcd: choose another --data-dir", d)
	}
	return errors.Trace(err)
}

// HasStateFile reports whether there is a state file in the directory.
func (d Dir) HasStateFile() (bool, error) {
	_, err := os.Lstat(d.StateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, errors.Trace(err)
}

// Place returns where the state is, as [PlaceCluster] says.
func (d Dir) Place() (string, error) {
	content, err := os.ReadFile(d.placeFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(content)), errors.Annotate(err, "finding out where the state is")
}

// SetPlace records where the state is.
func (d Dir) SetPlace(place string) error {
	return errors.Annotate(WriteFile(d.placeFile(), []byte(place+"\n")), "recording where the state is")
}

// placeFile is the path of the file that says where the state is, unless it is in the directory.
func (d Dir) placeFile() string { return filepath.Join(d.Server(), "etcd") }

// StorageDirectories returns the directories in which local providers keep storage, whether or
// not they exist.
func (d Dir) StorageDirectories() []provider.StorageDirectory {
	var all []provider.StorageDirectory
	for _, t := range []storage.ProviderType{
		provider.LoopProviderType, provider.TmpfsProviderType, provider.RootfsProviderType, provider.ManagedSourceType,
	} {
		all = append(all, provider.StorageDirectory{Provider: t, Path: filepath.Join(d.Storage(), string(t))})
	}
	return all
}

// Prepare makes the directory and makes it private. It returns an error for a directory that
// contains other things, or that others can write to, because its contents may be theirs.
func (d Dir) Prepare() error {
	// Check the existing part of the path first: nothing is made where others can write.
	if err := d.checkOwner(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Trace(err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return errors.Annotate(err, "making the data directory")
	}
	if err := d.checkOwner(); err != nil {
		return errors.Trace(err)
	}
	if err := d.checkEntries(); err != nil {
		return errors.Trace(err)
	}
	return errors.Annotate(os.Chmod(string(d), 0o700), "making the data directory private")
}

// checkEntries returns an error if the directory is neither empty nor an agent's.
func (d Dir) checkEntries() error {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return errors.Annotate(err, "reading the data directory")
	}
	foreign := false
	for _, entry := range entries {
		switch entry.Name() {
		case stateFile, markFile, storageDir, serverDir, agentDir:
			return nil
		case newState, "lost+found": // lost+found is in the root of a filesystem
		default:
			foreign = true
		}
	}
	if foreign {
		return errors.Errorf("%s contains files that are not an agent's: choose an empty or new --data-dir", d)
	}
	return nil
}

func (d Dir) checkOwner() error {
	at, err := owner.Check(string(d))
	switch {
	case err != nil:
		return errors.Annotate(err, "checking the data directory")
	case at == string(d):
		return errors.Errorf("others than root can write to %s: choose another --data-dir, or check what it contains, then chown it to root and chmod it to 0700", d)
	case at != "":
		return errors.Errorf("others than root can write to %s, and so can replace %s: choose another --data-dir", at, d)
	}
	return nil
}

// CheckState returns an error if the state file is missing or empty although storage was made
// in the directory: a new state would take that storage for its own, or never find it.
func (d Dir) CheckState() error {
	info, err := os.Lstat(d.StateFile())
	var what string
	switch {
	case errors.Is(err, fs.ErrNotExist):
		what = "is missing"
	case err != nil:
		return errors.Annotate(err, "checking the state file")
	case info.Size() == 0:
		what = "is empty"
	default:
		return nil
	}
	evidence, err := d.findEvidence()
	if err != nil {
		return errors.Annotatef(err, "%s %s: looking for evidence that it was in use", d.StateFile(), what)
	}
	if evidence == "" {
		return nil
	}
	return errors.Errorf("%s %s, but %s shows that it was in use: put the file back, or run `stowage restore FILE` with a backup, or `stowage recover` without one",
		d.StateFile(), what, evidence)
}

// findEvidence returns the path of something that a state has left outside its file, or an
// empty path if there is nothing.
func (d Dir) findEvidence() (string, error) {
	if _, err := os.Lstat(d.MarkFile()); err == nil {
		return d.MarkFile(), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", errors.Trace(err)
	}
	for _, directory := range d.StorageDirectories() {
		records := filepath.Join(directory.Path, "records")
		entries, err := os.ReadDir(records)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", errors.Trace(err)
		}
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), ".json") {
				return filepath.Join(records, entry.Name()), nil
			}
		}
	}
	return d.DriverRecord(), nil
}

// DriverRecord returns the path of a record of storage that a CSI driver has made for a provider, other than
// those given; empty if it has made nothing else. The data of such storage is not in the directory.
func (d Dir) DriverRecord(except ...storage.ProviderType) string {
	const nested = 4 // as many parts as the name of a provider may reasonably have
	for parts := 1; parts <= nested; parts++ {
		for _, kind := range []string{"volumes", "filesystems", "volumes/snapshots", "filesystems/snapshots"} {
			pattern := strings.Repeat("*/", parts) + kind + "/records/*.json"
			// The pattern is valid, and what cannot be read is not found.
			found, _ := fs.Glob(os.DirFS(d.Storage()), pattern)
			for _, record := range found {
				name, _, _ := strings.Cut(record, "/"+kind+"/records/")
				if !slices.Contains(except, storage.ProviderType(name)) {
					return filepath.Join(d.Storage(), record)
				}
			}
		}
	}
	return ""
}

// PrepareStorage makes the directory that providers use.
func (d Dir) PrepareStorage() error {
	if err := os.Mkdir(d.Storage(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return errors.Annotate(err, "making the storage directory")
	}
	return errors.Annotate(os.Chmod(d.Storage(), 0o700), "making the storage directory private")
}
