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

	// maxIDLength leaves room for prefix and suffix within the 255 bytes that
	// file systems give a name.
	maxIDLength = 200

	// maxSize bounds what is read of a record. Ours are below 4 KiB; anything
	// near this was not written by us.
	maxSize = 1 << 20

	// format is that of the records. Those without a number have format 1: they do
	// not say whose an object is.
	format = 2
)

// validID is what may become a file name. It admits every tag of a volume or a
// filesystem and every UUID, and nothing that could leave the directory.
var validID = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// ValidateID returns an error satisfying errors.IsNotValid unless id may name a
// record: lower-case letters and digits in groups joined by single hyphens, 200
// bytes at most.
func ValidateID(id string) error {
	if len(id) > maxIDLength || !validID.MatchString(id) {
		return errors.NotValidf("record id %q", id)
	}
	return nil
}

// Store is a directory of records. It holds no descriptor between calls, so it
// needs no closing, and any number of stores may be opened for one directory.
type Store struct {
	dir string
}

// Open returns the store in dir, an absolute and clean path. The directory is
// made, with its missing parents, and is private to its owner (0700). A symbolic
// link in its place is an error, as is a directory that belongs to another user.
func Open(dir string) (*Store, error) {
	made, err := safepath.Make(dir)
	if err != nil {
		return nil, errors.Annotate(err, "opening record directory")
	}
	made.Close()
	return &Store{dir: dir}, nil
}

// Dir returns the directory of the store.
func (s *Store) Dir() string {
	return s.dir
}

// Validator is a record that can tell whether it says what a record may.
type Validator interface {
	Validate() error
}

// Load reads the record of id into v. The error satisfies errors.IsNotFound if there
// is no record, and errors.IsNotValid if the record cannot be understood, or v, as a
// [Validator], refuses it. If the kernel cannot read the record, which may still be
// intact, the error is the kernel's.
func (s *Store) Load(id string, v any) error {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	dir, err := safepath.Open(s.dir)
	if err != nil {
		return errors.Annotatef(err, "loading record %s", id)
	}
	defer dir.Close()
	f, err := dir.OpenFile(id+suffix, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		return errors.NotFoundf("record %s in %s", id, s.dir)
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

// newerError is the error of a record of a format that is not known yet.
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

// Save makes v the record of id, durably. The caller holds the lock.
func (s *Store) Save(id string, v any) error {
	return s.save(id, v, true)
}

// Note makes v the record of id for as long as the machine runs: a power cut may
// take it back to what was saved or noted before. It is for what a power cut takes
// away too, such as a mount, and costs next to nothing. The caller holds the lock.
func (s *Store) Note(id string, v any) error {
	return s.save(id, v, false)
}

func (s *Store) save(id string, v any, lasting bool) (err error) {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	defer errors.DeferredAnnotatef(&err, "saving record %s in %s", id, s.dir)
	text, err := marshal(v)
	if err != nil {
		return errors.Trace(err)
	}
	dir, err := safepath.Open(s.dir)
	if err != nil {
		return errors.Trace(err)
	}
	defer dir.Close()
	if err := dir.Settle(); err != nil {
		return errors.Trace(err)
	}
	if done, err := update(dir, id+suffix, version{lasting: lasting, text: text}); done || err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(replace(dir, id, text))
}

// marshal returns the text of a record, which begins with its format.
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

// update writes a version into one of the slots of a file. It is not done where
// there is no such file, or it has no slots, or the version is too large for them.
// After an error the record is as it was.
func update(dir *safepath.Dir, name string, v version) (done bool, err error) {
	f, err := dir.OpenFile(name, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		// Replacing it tells what is wrong, if anything.
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

// replace writes a record to a new file, and renames that to the name of the record.
func replace(dir *safepath.Dir, id string, text []byte) error {
	name, temp := id+suffix, tempPrefix+id+suffix
	data := append(text, '\n')
	if slot := (version{seq: 1, lasting: true, text: text}).encode(); slot != nil {
		// Both slots are written, so that neither needs space later on.
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

// writeNew makes a file with the given content and syncs it. After an error the
// file is not there.
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

// Remove forgets the record of id, durably. Removing a record that is not there
// is a success. The caller holds the lock.
func (s *Store) Remove(id string) error {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	dir, err := safepath.Open(s.dir)
	if err != nil {
		return errors.Annotatef(err, "removing record %s", id)
	}
	defer dir.Close()
	if err := dir.Settle(); err != nil {
		return errors.Annotatef(err, "removing record %s", id)
	}
	if err := dir.Unlink(id + suffix); err != nil {
		return errors.Annotatef(err, "removing record %s", id)
	}
	crash.At("record unlinked")
	return errors.Annotatef(dir.Sync(), "removing record %s", id)
}

// Move moves the record of id to another directory of the same filesystem, as a file of a
// name that nothing has there, durably. A record that is not there is a success. The
// caller holds the lock.
func (s *Store) Move(id string, to *safepath.Dir, name string) error {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	dir, err := safepath.Open(s.dir)
	if err != nil {
		return errors.Annotatef(err, "moving record %s", id)
	}
	defer dir.Close()
	if err := dir.Settle(); err != nil {
		return errors.Annotatef(err, "moving record %s", id)
	}
	if err := dir.Move(id+suffix, to, name); err != nil && !errors.Is(err, unix.ENOENT) {
		return errors.Annotatef(err, "moving record %s", id)
	}
	crash.At("record moved")
	return errors.Annotatef(safepath.SyncAll(to, dir), "moving record %s", id)
}

// List returns the ids of all records, sorted. Files that are not records are
// passed over.
func (s *Store) List() ([]string, error) {
	dir, err := safepath.Open(s.dir)
	if err != nil {
		return nil, errors.Annotate(err, "listing records")
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return nil, errors.Annotatef(err, "listing records in %s", s.dir)
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

// Sweep unlinks what a crash in the middle of Save has left behind of a record. What is in
// the directory then is durable. The caller has the record to itself.
func (s *Store) Sweep(id string) error {
	if err := ValidateID(id); err != nil {
		return errors.Trace(err)
	}
	dir, err := safepath.Open(s.dir)
	if err != nil {
		return errors.Annotatef(err, "removing leftovers of record %s", id)
	}
	defer dir.Close()
	if err := dir.Settle(); err != nil {
		return errors.Annotatef(err, "removing leftovers of record %s", id)
	}
	return errors.Annotatef(dir.Unlink(tempPrefix+id+suffix), "removing leftovers of record %s", id)
}

// sweep unlinks what a crash in the middle of Save has left behind.
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
