package record

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"sort"
	"strings"

	"github.com/juju/errors"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/storage/provider/internal/crash"
	"github.com/stowage-io/stowage/storage/provider/internal/safepath"
)

const (
	suffix     = ".json"
	tempPrefix = ".tmp-"

	// maxIDLength leaves space for prefix and suffix within the 255 bytes of a file name.
	maxIDLength = 200

	// maxSize limits the size of a record file that is read, in bytes. Records of this package
	// are below 4 KiB; a file near this limit was not written by it.
	maxSize = 1 << 20

	// format is the format of new records. Records without a number have format 1, which does
	// not name the owner of an object.
	format = 2
)

// validID matches IDs that may become file names. It accepts every tag of a volume or a
// filesystem and every UUID, and nothing that could lead out of the directory.
var validID = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// ValidateID returns an error that satisfies errors.IsNotValid unless id may name a record:
// groups of lower-case letters and digits, joined by single hyphens, 200 bytes at most.
func ValidateID(id string) error {
	if len(id) > maxIDLength || !validID.MatchString(id) {
		return errors.NotValidf("record id %q", id)
	}
	return nil
}

// Store is an open directory of records. Any number of stores may be open for one directory.
type Store struct {
	dir *safepath.Dir
}

// Open opens the store in dir, an absolute and clean path. It makes the directory and its
// missing parents, and makes the directory private to its owner (0700). It fails if dir is a
// symbolic link or belongs to another user. The caller must close the store.
func Open(dir string) (*Store, error) {
	opened, err := safepath.Make(dir)
	if err != nil {
		return nil, errors.Annotate(err, "opening record directory")
	}
	return &Store{dir: opened}, nil
}

// Close closes the directory.
func (s *Store) Close() {
	s.dir.Close()
}

// Dir returns the path of the directory.
func (s *Store) Dir() string {
	return s.dir.Path()
}

// Path returns the path of the record of a valid ID, whether there is one or not.
func (s *Store) Path(id string) string { return s.dir.Entry(id + suffix) }

// Validator is a record that can check its own content.
type Validator interface {
	Validate() error
}

// Load reads the record of id into v. The error satisfies errors.IsNotFound if there is no
// record, and errors.IsNotValid if the record cannot be parsed, or if v is a [Validator] and
// rejects it. If the kernel cannot read the record, which may still be intact, the error is
// the kernel's.
func (s *Store) Load(id string, v any) error {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	f, err := s.dir.OpenFile(id+suffix, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		return errors.NotFoundf("record %s in %s", id, s.Dir())
	} else if err != nil {
		return errors.Annotatef(err, "loading record %s", id)
	}
	defer f.Close()
	data, err := read(f)
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errors.Annotatef(err, "loading record %s", id)
	}
	if err == nil {
		if versions := decodeSlots(data); versions.newest() >= 0 {
			data = versions[versions.newest()].text
		}
		err = parse(data, v)
	}
	var newer *newerError
	if errors.As(err, &newer) {
		return errors.NewNotValid(nil, fmt.Sprintf("record %s %s", f.Name(), newer))
	} else if err != nil {
		return errors.NewNotValid(err, "record "+f.Name()+" is damaged")
	}
	return nil
}

// newerError is the error of a record whose format is newer than this version.
type newerError struct{ format int }

func (e *newerError) Error() string {
	return fmt.Sprintf("was written by a newer version of stowage: it has format %d, and this version knows those up to %d: use the newer version", e.format, format)
}

func parse(data []byte, v any) error {
	var header struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &header); err == nil && header.Format > format {
		return &newerError{header.Format}
	}
	if err := json.Unmarshal(data, v); err != nil {
		return errors.Trace(err)
	}
	if v, ok := v.(Validator); ok {
		return errors.Trace(v.Validate())
	}
	return nil
}

// Has reports whether there is a record of id, valid or not.
func (s *Store) Has(id string) (bool, error) {
	if err := ValidateID(id); err != nil {
		return false, errors.Trace(err)
	}
	has, err := s.dir.Has(id + suffix)
	return has, errors.Annotatef(err, "looking for record %s", id)
}

func read(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Trace(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.Errorf("not a regular file")
	}
	if info.Size() > maxSize {
		return nil, errors.Errorf("larger than %d bytes", maxSize)
	}
	data := make([]byte, info.Size())
	_, err = io.ReadFull(f, data)
	return data, errors.Trace(err)
}

// Save stores v as the record of id, durably. The caller must hold the lock.
func (s *Store) Save(id string, v any) error {
	return s.save(id, v, true)
}

// Note stores v as the record of id for as long as the machine runs: a power cut may undo it
// and bring back an earlier version. It is for changes that a power cut undoes too, such as a
// mount, and costs almost nothing. The caller must hold the lock.
func (s *Store) Note(id string, v any) error {
	return s.save(id, v, false)
}

func (s *Store) save(id string, v any, lasting bool) (err error) {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	defer errors.DeferredAnnotatef(&err, "saving record %s in %s", id, s.Dir())
	text, err := marshal(v)
	if err != nil {
		return errors.Trace(err)
	}
	if err := s.dir.Settle(); err != nil {
		return errors.Trace(err)
	}
	if done, err := update(s.dir, id+suffix, version{lasting: lasting, text: text}); done || err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(replace(s.dir, id, text))
}

// marshal returns the text of a record. It begins with the format.
func marshal(v any) ([]byte, error) {
	fields, err := json.Marshal(v)
	if err != nil {
		return nil, errors.Trace(err)
	}
	text := fmt.Appendf(nil, `{"format":%d`, format)
	if len(fields) > len("{}") {
		text = append(text, ',')
	}
	return append(text, fields[1:]...), nil
}

// update writes a version into a slot of an existing file. done is false if there is no such
// file, if it has no slots, or if the version is too large for them. After an error the record
// is unchanged.
func update(dir *safepath.Dir, name string, v version) (done bool, err error) {
	f, err := dir.OpenFile(name, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		// If something is wrong, replacing the file reports it.
		return false, nil
	}
	defer f.Close()
	data, err := read(f)
	if err != nil {
		return false, nil
	}
	versions := decodeSlots(data)
	newest := versions.newest()
	if newest < 0 {
		return false, nil
	}
	v.seq = versions[newest].seq + 1
	slot, at := v.encode(), int64(versions.next()*slotSize)
	if slot == nil {
		return false, nil
	}
	if _, err = f.WriteAt(slot, at); err == nil {
		crash.At("record written")
		if v.lasting {
			err = fsync.Data(f)
		}
	}
	if err != nil {
		_, _ = f.WriteAt(data[at:][:slotSize], at)
		return false, errors.Annotatef(err, "writing %s", f.Name())
	}
	crash.At("record saved")
	return true, nil
}

// replace writes a record to a new file and renames it to the name of the record.
func replace(dir *safepath.Dir, id string, text []byte) error {
	name, temp := id+suffix, tempPrefix+id+suffix
	data := append(text, '\n')
	if slot := (version{seq: 1, lasting: true, text: text}).encode(); slot != nil {
		// Both slots are written now, so that neither needs space later.
		data = append(slot, make([]byte, slotSize)...)
	}
	if err := writeNew(dir, temp, data); err != nil {
		return errors.Trace(err)
	}
	crash.At("record written")
	if err := dir.Rename(temp, name); err != nil {
		_ = dir.Unlink(temp)
		return errors.Trace(err)
	}
	crash.At("record renamed")
	if err := dir.Sync(); err != nil {
		return errors.Trace(err)
	}
	crash.At("record saved")
	return nil
}

// writeNew makes a file with the given content and syncs it. After an error the file does not
// exist.
func writeNew(dir *safepath.Dir, name string, data []byte) error {
	f, err := dir.OpenFile(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return errors.Trace(err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = fsync.File(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = dir.Unlink(name)
	}
	return errors.Trace(err)
}

// Remove removes the record of id, durably. It succeeds if there is no such record. The caller
// must hold the lock.
func (s *Store) Remove(id string) error {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	if err := s.dir.Settle(); err != nil {
		return errors.Annotatef(err, "removing record %s", id)
	}
	if err := s.dir.Unlink(id + suffix); err != nil {
		return errors.Annotatef(err, "removing record %s", id)
	}
	crash.At("record unlinked")
	return errors.Annotatef(s.dir.Sync(), "removing record %s", id)
}

// Move moves the record of id to another directory of the same filesystem, durably. name is
// the new file name, which must not exist there. Move succeeds if there is no such record. The
// caller must hold the lock.
func (s *Store) Move(id string, to *safepath.Dir, name string) error {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	if err := s.dir.Settle(); err != nil {
		return errors.Annotatef(err, "moving record %s", id)
	}
	if err := s.dir.Move(id+suffix, to, name); err != nil && !errors.Is(err, unix.ENOENT) {
		return errors.Annotatef(err, "moving record %s", id)
	}
	crash.At("record moved")
	return errors.Annotatef(safepath.SyncAll(to, s.dir), "moving record %s", id)
}

// List returns the IDs of all records, sorted. It ignores files that are not records.
func (s *Store) List() ([]string, error) {
	names, err := s.dir.Names()
	if err != nil {
		return nil, errors.Annotatef(err, "listing records in %s", s.Dir())
	}
	ids := make([]string, 0, len(names))
	for _, name := range names {
		id, ok := strings.CutSuffix(name, suffix)
		if ok && ValidateID(id) == nil {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	return ids, nil
}

// Sweep removes what a crash during Save has left behind of a record. All records in the
// directory are then durable. The caller must have the record to itself.
func (s *Store) Sweep(id string) error {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	if err := s.dir.Settle(); err != nil {
		return errors.Annotatef(err, "removing leftovers of record %s", id)
	}
	return errors.Annotatef(s.dir.Unlink(tempPrefix+id+suffix), "removing leftovers of record %s", id)
}

// sweep removes what crashes during Save have left behind.
func sweep(dir *safepath.Dir) error {
	names, err := dir.Names()
	if err != nil {
		return errors.Annotatef(err, "reading %s", dir.Path())
	}
	for _, name := range names {
		id := strings.TrimSuffix(strings.TrimPrefix(name, tempPrefix), suffix)
		if name != tempPrefix+id+suffix || ValidateID(id) != nil {
			continue
		}
		if err := dir.Unlink(name); err != nil {
			return errors.Annotate(err, "removing a leftover")
		}
	}
	return nil
}
