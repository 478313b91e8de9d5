package statefile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/internal/fsync"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/boltkv"
)

// A trailer has three lines, with spaces before the third: the title, [Meta] as JSON, and the
// SHA-256 of everything before it in the file.
const (
	trailerSize  = 4096
	trailerTitle = "stowage state copy 1\n"
	sumSize      = 2*sha256.Size + 1
)

// ErrDamaged is the error for a damaged copy.
const ErrDamaged = errors.ConstError("copy is damaged")

// Backup writes a copy of the open store to path. If something exists there, the error
// satisfies errors.Is(err, fs.ErrExist). The copy gets its name only when it is complete, on
// disk, and has been read back. Only its owner can read it.
func Backup(ctx context.Context, store *boltkv.Store, path string, identify Identify, now time.Time) (Meta, error) {
	if _, err := os.Lstat(path); err == nil {
		return Meta{}, errors.Annotatef(fs.ErrExist, "writing %s", path)
	}
	temporary, meta, err := newCopy(ctx, store, path, identify, now)
	if err != nil {
		return Meta{}, err
	}
	if err := renameNoReplace(temporary, path); err != nil {
		_ = os.Remove(temporary)
		return Meta{}, errors.Annotatef(err, "writing %s", path)
	}
	return meta, errors.Trace(fsync.Dir(filepath.Dir(path)))
}

// newCopy writes a copy to a temporary file beside path, and reads it back. It returns the
// file's name.
func newCopy(ctx context.Context, store *boltkv.Store, path string, identify Identify, now time.Time) (string, Meta, error) {
	file, err := createTemp(path)
	if err != nil {
		return "", Meta{}, err
	}
	defer file.Close()
	meta, err := write(ctx, file, store, identify, now)
	if err == nil {
		err = fsync.File(file)
	}
	if err == nil {
		// Make sure that the copy is read back from the disk.
		dropCache(file)
		meta, err = verify(file, identify, meta)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return "", Meta{}, errors.Annotatef(explainNoSpace(err, filepath.Dir(path)), "writing %s", path)
	}
	return file.Name(), meta, nil
}

// explainNoSpace adds the free disk space of the directory, and the remedy, to an error for
// lack of space.
func explainNoSpace(err error, dir string) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	left, statErr := available(dir)
	if statErr != nil {
		return err
	}
	return errors.Annotatef(err, "%d MiB are left in %s: remove something from its filesystem", left>>20, dir)
}

// write writes a copy, and returns the contents of its trailer.
func write(ctx context.Context, file *os.File, store *boltkv.Store, identify Identify, now time.Time) (Meta, error) {
	meta := Meta{Time: now.UTC().Truncate(time.Second)}
	sum := sha256.New()
	err := store.Copy(io.MultiWriter(contextWriter{ctx, file}, sum), func(snapshot kv.Snapshot) (err error) {
		meta.Identity, err = identify(snapshot)
		return err
	})
	if err != nil {
		return Meta{}, errors.Trace(err)
	}
	if meta.Size, meta.Version, err = boltkv.Extent(file); err != nil {
		return Meta{}, errors.Trace(err)
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return Meta{}, errors.Trace(err)
	}
	trailer := append([]byte(trailerTitle), text...)
	if len(trailer)+1+sumSize > trailerSize {
		return Meta{}, errors.NotValidf("identity of %d bytes", len(text))
	}
	trailer = append(trailer, bytes.Repeat([]byte(" "), trailerSize-sumSize-len(trailer)-1)...)
	trailer = append(trailer, '\n')
	sum.Write(trailer)
	trailer = append(hex.AppendEncode(trailer, sum.Sum(nil)), '\n')
	_, err = file.Write(trailer)
	return meta, errors.Trace(err)
}

// verify verifies a copy that was written to the file, and returns an error unless its Meta is
// the wanted one.
func verify(file *os.File, identify Identify, wanted Meta) (Meta, error) {
	meta, err := Verify(file.Name(), identify)
	wanted.Kind = KindCopy
	if err == nil && meta != wanted {
		err = errors.WithType(errors.Errorf("%s reads back as %+v, not %+v", file.Name(), meta, wanted), ErrDamaged)
	}
	return meta, err
}

// Verify reads a copy or state file, and returns an error unless it is intact. The error for a
// damaged copy satisfies errors.Is(err, [ErrDamaged]), and that for a damaged state file
// errors.Is(err, [boltkv.ErrDamaged]). If an agent has the file open, the error satisfies
// errors.Is(err, errors.Timeout).
func Verify(path string, identify Identify) (Meta, error) {
	file, err := os.Open(path)
	if err != nil {
		return Meta{}, errors.Annotate(err, "verifying")
	}
	defer file.Close()
	trailer, err := readTrailer(file)
	if err != nil {
		return Meta{}, errors.Annotatef(err, "verifying %s", path)
	}
	found, err := inspect(path, file, identify)
	if err != nil {
		return Meta{}, errors.Annotatef(err, "verifying %s", path)
	}
	if trailer == nil {
		return found, nil
	}
	found.Kind, found.Time = KindCopy, trailer.Time
	if trailer.Kind = KindCopy; found != *trailer {
		return Meta{}, errors.WithType(errors.Errorf("%s is damaged: it has %+v, and its trailer says %+v", path, found, *trailer), ErrDamaged)
	}
	return found, nil
}

// inspect returns the Meta of a file, without regard to its trailer.
func inspect(path string, file *os.File, identify Identify) (Meta, error) {
	store, err := boltkv.OpenReadOnly(path)
	if err != nil {
		return Meta{}, err
	}
	defer store.Close()
	meta := Meta{Kind: KindState}
	err = store.View(context.Background(), func(snapshot kv.Snapshot) error {
		meta.Identity, err = identify(snapshot)
		return err
	})
	if err != nil {
		return Meta{}, err
	}
	if meta.Size, meta.Version, err = boltkv.Extent(file); err != nil {
		return Meta{}, err
	}
	info, err := file.Stat()
	if err != nil {
		return Meta{}, err
	}
	meta.Time = info.ModTime()
	return meta, nil
}

// readTrailer returns the contents of the trailer, or nil for a file without one. It verifies
// the checksum.
func readTrailer(file *os.File) (*Meta, error) {
	info, err := file.Stat()
	if err != nil || info.Size() < trailerSize {
		return nil, errors.Trace(err)
	}
	trailer := make([]byte, trailerSize)
	if _, err := file.ReadAt(trailer, info.Size()-trailerSize); err != nil {
		return nil, errors.Trace(err)
	}
	text, ok := bytes.CutPrefix(trailer, []byte(trailerTitle))
	if !ok {
		return nil, nil
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, info.Size()-sumSize)); err != nil {
		return nil, errors.Trace(err)
	}
	if want := append(hex.AppendEncode(nil, sum.Sum(nil)), '\n'); !bytes.Equal(trailer[trailerSize-sumSize:], want) {
		return nil, errors.WithType(errors.New("the copy is damaged: checksum mismatch"), ErrDamaged)
	}
	var meta Meta
	if err := json.Unmarshal(text[:len(text)-sumSize], &meta); err != nil {
		return nil, errors.WithType(errors.Annotate(err, "the copy is damaged: decoding its trailer"), ErrDamaged)
	}
	return &meta, nil
}

// contextWriter writes to the file until its context is done.
type contextWriter struct {
	ctx  context.Context
	file *os.File
}

func (w contextWriter) Write(data []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, errors.Trace(err)
	}
	return w.file.Write(data)
}
