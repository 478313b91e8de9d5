package providertest

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// bench is the environment in which one rule is checked for one kind of storage: a source and
// what was made in it. Methods whose names begin with try check only the form of the results,
// the others also that all items have succeeded.
type bench struct {
	testing.TB
	*suite
	kind   kind
	source source
	ctx    envcontext.ProviderCallContext

	mountDir string
	made     []*entity
	// snapshots contains the IDs of the snapshots that were made.
	snapshots []string
	// old contains what was left behind before this rule began.
	old []string
}

func (s *suite) newBench(t testing.TB, k kind) *bench {
	t.Helper()
	b := &bench{TB: t, suite: s, kind: k, ctx: envcontext.New(t.Context()), mountDir: s.MountDir}
	if b.mountDir == "" {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		b.mountDir = dir
	}
	b.old = b.Leaks()
	b.source = b.openSource(s.Provider)
	return b
}

func (b *bench) openSource(p storage.Provider) source {
	b.Helper()
	s, err := b.kind.open(p, b.SourceConfig, b.Patience)
	if err != nil {
		b.Fatalf("opening a source of %ss: %v", b.kind.noun, err)
	}
	return s
}

// restart replaces the source by a new one, as in a new process.
func (b *bench) restart() {
	b.Helper()
	b.source = b.openSource(b.Restart())
}

// entity returns a new volume or filesystem that does not exist yet.
func (b *bench) entity() *entity {
	b.Helper()
	id := b.nextID()
	e := &entity{
		path: filepath.Join(b.mountDir, strings.ReplaceAll(id, "/", "-")),
		host: storage.AttachmentParams{
			Provider: b.SourceConfig.Provider(), Machine: b.Machine, InstanceId: b.InstanceId,
		},
	}
	// Callers pass the attributes of the pool, except the one that they use themselves.
	attributes := make(map[string]any)
	maps.Copy(attributes, b.SourceConfig.Attrs())
	delete(attributes, storage.ConfigStorageDir)
	tags := ownerTags()
	if b.kind.kind == storage.StorageKindBlock {
		e.volume = storage.VolumeParams{
			Tag: names.NewVolumeTag(id), Size: b.Size, Provider: b.SourceConfig.Provider(),
			Attributes: attributes, ResourceTags: tags,
		}
		if b.CompleteVolume != nil {
			b.CompleteVolume(b.TB, &e.volume)
		}
		e.tag = e.volume.Tag
	} else {
		e.filesystem = storage.FilesystemParams{
			Tag: names.NewFilesystemTag(id), Size: b.Size, Provider: b.SourceConfig.Provider(),
			Attributes: attributes, ResourceTags: tags,
		}
		if b.CompleteFilesystem != nil {
			b.CompleteFilesystem(b.TB, &e.filesystem)
		}
		e.tag = e.filesystem.Tag
	}
	return e
}

func (b *bench) entities(n int) []*entity {
	b.Helper()
	all := make([]*entity, n)
	for i := range all {
		all[i] = b.entity()
	}
	return all
}

// answers checks the form of the results of a bulk call: the call as a whole has no error, and
// there is a result for each argument.
func answers[R any](b *bench, doing string, want int, results []R, err error) []R {
	b.Helper()
	if err != nil {
		b.Fatalf("%s %d %ss: the call failed as a whole: %v", doing, want, b.kind.noun, err)
	}
	if len(results) != want {
		b.Fatalf("%s %d %ss: %d results", doing, want, b.kind.noun, len(results))
	}
	return results
}

// successes fails the rule at the first error.
func (b *bench) successes(doing string, errs []error) {
	b.Helper()
	for i, err := range errs {
		if err != nil {
			b.Fatalf("%s, item %d of %d: %v", doing, i+1, len(errs), err)
		}
	}
}

func (b *bench) tryCreate(entities ...*entity) []created {
	b.Helper()
	results, err := b.source.create(b.ctx, entities)
	b.keep(entities, results)
	answers(b, "creating", len(entities), results, err)
	for i, r := range results {
		if r.made == (r.err != nil) {
			b.Fatalf("creating %s: there must be a result or an error, got result %+v and error %v", entities[i].tag, r.info, r.err)
		}
	}
	return results
}

// keep records what a call has made, for cleaning up.
func (b *bench) keep(entities []*entity, results []created) {
	setIDs(entities, results)
	for _, e := range entities {
		same := func(m *entity) bool { return m.tag == e.tag && m.id == e.id }
		if e.id != "" && !slices.ContainsFunc(b.made, same) {
			b.made = append(b.made, e)
		}
	}
}

// setIDs sets the IDs of what was made.
func setIDs(entities []*entity, results []created) {
	if len(results) != len(entities) {
		return // the results cannot be matched with the entities
	}
	for i, r := range results {
		if r.made {
			entities[i].id = r.id
		}
	}
}

func (b *bench) create(entities ...*entity) []created {
	b.Helper()
	results := b.tryCreate(entities...)
	b.successes("creating", mapSlice(results, func(r created) error { return r.err }))
	return results
}

// one returns a new volume or filesystem that exists.
func (b *bench) one() *entity {
	b.Helper()
	return b.some(1)[0]
}

func (b *bench) some(n int) []*entity {
	b.Helper()
	all := b.entities(n)
	b.create(all...)
	return all
}

func (b *bench) tryAttach(entities ...*entity) []attached {
	b.Helper()
	results, err := b.source.attach(b.ctx, entities)
	answers(b, "attaching", len(entities), results, err)
	for i, r := range results {
		if (r.attachment != nil) == (r.err != nil) {
			b.Fatalf("attaching %s: there must be a result or an error, got result %+v and error %v", entities[i].tag, r.attachment, r.err)
		}
	}
	return results
}

func (b *bench) attach(entities ...*entity) []attachment {
	b.Helper()
	results := b.tryAttach(entities...)
	b.successes("attaching", mapSlice(results, func(r attached) error { return r.err }))
	return mapSlice(results, func(r attached) attachment { return *r.attachment })
}

func (b *bench) tryDetach(entities ...*entity) []error {
	b.Helper()
	results, err := b.source.detach(b.ctx, entities)
	return answers(b, "detaching", len(entities), results, err)
}

func (b *bench) detach(entities ...*entity) {
	b.Helper()
	b.successes("detaching", b.tryDetach(entities...))
}

func (b *bench) tryDestroy(entities ...*entity) []error {
	b.Helper()
	results, err := b.source.destroy(b.ctx, mapSlice(entities, identify))
	return answers(b, "destroying", len(entities), results, err)
}

func (b *bench) destroy(entities ...*entity) {
	b.Helper()
	b.successes("destroying", b.tryDestroy(entities...))
}

func (b *bench) tryRelease(entities ...*entity) []error {
	b.Helper()
	results, err := b.source.release(b.ctx, mapSlice(entities, identify))
	return answers(b, "releasing", len(entities), results, err)
}

// remove detaches and destroys volumes or filesystems. It always detaches because some
// providers attach what they create.
func (b *bench) remove(entities ...*entity) {
	b.Helper()
	b.detach(entities...)
	b.destroy(entities...)
}

// destroyed returns a volume or filesystem that no longer exists.
func (b *bench) destroyed() *entity {
	b.Helper()
	e := b.one()
	b.remove(e)
	return e
}

func identify(e *entity) string { return e.id }

// list returns the IDs of this rule's volumes that the source lists.
func (b *bench) list() []string {
	b.Helper()
	listed, err := b.source.(*volumes).ListVolumes(b.ctx)
	if err != nil {
		b.Fatalf("listing volumes: %v", err)
	}
	return b.ours(listed)
}

// ours returns, sorted, the IDs that belong to what this rule has made. The source may already
// contain volumes of others.
func (b *bench) ours(ids []string) []string {
	made := mapSlice(b.made, identify)
	ours := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !slices.Contains(made, id) })
	slices.Sort(ours)
	return ours
}

// seesData reports whether the rule can access the data.
func (b *bench) seesData(a attachment) bool {
	if b.kind.kind == storage.StorageKindFilesystem {
		return b.OpenFilesystem != nil || b.Provider.Scope() == storage.ScopeMachine
	}
	// If an attachment has a plan, the volume has no device, because the suite does not carry
	// plans out.
	return b.OpenVolume != nil || b.Provider.Scope() == storage.ScopeMachine && a.volume.PlanInfo == nil
}

func (b *bench) open(a attachment, write bool) (File, error) {
	switch {
	case b.kind.kind == storage.StorageKindFilesystem && b.OpenFilesystem != nil:
		return b.OpenFilesystem(a.filesystem, write)
	case b.kind.kind == storage.StorageKindFilesystem:
		return openInFilesystem(a.filesystem, write)
	case b.OpenVolume != nil:
		return b.OpenVolume(a.volume, write)
	default:
		return openBlockDevice(a.volume, write)
	}
}

// dataOf returns the data that the suite writes to a volume or filesystem.
func dataOf(tag names.Tag) string {
	return fmt.Sprintf("the data of %-40s", tag)
}

func (b *bench) tryWrite(a attachment) error {
	f, err := b.open(a, true)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(dataOf(a.tag)), 0); err != nil {
		return err
	}
	return f.Sync()
}

// write writes data to attached volumes or filesystems, if the rule can access them.
func (b *bench) write(attachments ...attachment) {
	b.Helper()
	for _, a := range attachments {
		if !b.seesData(a) {
			continue
		}
		if err := b.tryWrite(a); err != nil {
			b.Fatalf("writing to %s, attached as %s: %v", a.tag, b.place(a), err)
		}
	}
}

func (b *bench) tryRead(a attachment) (string, error) {
	f, err := b.open(a, false)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data := make([]byte, len(dataOf(a.tag)))
	_, err = f.ReadAt(data, 0)
	return string(data), err
}

// checkData checks that the data that write wrote is there.
func (b *bench) checkData(attachments ...attachment) {
	b.Helper()
	for _, a := range attachments {
		if !b.seesData(a) {
			continue
		}
		got, err := b.tryRead(a)
		if want := dataOf(a.tag); err != nil || got != want {
			b.Errorf("reading from %s, attached as %s: got %q, %v, want %q", a.tag, b.place(a), got, err, want)
		}
	}
}

// checkKept is checkData for what was detached and attached again.
func (b *bench) checkKept(attachments ...attachment) {
	b.Helper()
	if !b.Volatile {
		b.checkData(attachments...)
	}
}

// place describes where a volume or filesystem is attached.
func (b *bench) place(a attachment) string {
	if b.kind.kind == storage.StorageKindFilesystem {
		return fmt.Sprintf("%+v", a.filesystem.FilesystemAttachmentInfo)
	}
	return fmt.Sprintf("%+v", a.volume.VolumeAttachmentInfo)
}

// clean removes everything that the rule has made, and checks that nothing is left.
func (b *bench) clean() {
	b.Helper()
	if len(b.made)+len(b.snapshots) > 0 {
		if s, err := b.kind.open(b.Restart(), b.SourceConfig, b.Patience); err != nil {
			b.Errorf("opening a source of %ss to clean up: %v", b.kind.noun, err)
		} else {
			b.cleanIn(s)
		}
	}
	b.checkLeaks("left behind")
}

// checkLeaks checks that nothing that this rule has made is left.
func (b *bench) checkLeaks(what string) {
	b.Helper()
	for _, leak := range b.Leaks() {
		if !slices.Contains(b.old, leak) {
			b.Errorf("%s: %s", what, leak)
		}
	}
}

func (b *bench) cleanIn(s source) {
	b.Helper()
	check := func(doing string, errs []error, err error) {
		b.Helper()
		for _, err := range append(errs, err) {
			if err != nil {
				b.Errorf("cleaning up: %s: %v", doing, err)
			}
		}
	}
	errs, err := s.detach(b.ctx, b.made)
	check("detaching", errs, err)
	errs, err = s.destroy(b.ctx, mapSlice(b.made, identify))
	check("destroying", errs, err)
	if len(b.snapshots) > 0 {
		errs, err = s.snapshotter().destroy(b.ctx, b.snapshots)
		check("destroying snapshots", errs, err)
	}
	if v, ok := s.(*volumes); ok {
		listed, err := v.ListVolumes(b.ctx)
		check("listing volumes", nil, err)
		for _, id := range b.ours(listed) {
			b.Errorf("cleaning up: volume %s was destroyed and is still listed", id)
		}
	}
}

// cancelled returns a context that is already cancelled.
func (b *bench) cancelled() envcontext.ProviderCallContext {
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	return envcontext.New(ctx)
}

// copyOf returns a copy of e without an ID, for the request of a caller that has restarted.
func copyOf(e *entity) *entity {
	again := *e
	again.id = ""
	return &again
}
