package storageprovisioner

import (
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// kindReader reads one kind of storage, and the attachments of it, from the
// state. Each method completes the given facts with one or two bulk calls; an
// error is that of a whole call.
type kindReader interface {
	// infos tells which volumes or filesystems are recorded, their ids and sizes,
	// and what it takes to grow them where they are wanted larger.
	infos([]*plan.Fact) error
	// creations tells what it takes to create them.
	creations([]*plan.Fact) error
	// removals tells what it takes to remove them.
	removals([]*plan.Fact) error
	// providers tells by which source they are provided.
	providers([]*plan.Fact) error
	// attachments tells which attachments are recorded.
	attachments([]*plan.Fact) error
	// attaching tells what it takes to attach and detach.
	attaching([]*plan.Fact) error
}

// factReader reads entities of all kinds. It runs on the clerk's goroutine.
type factReader struct {
	config  setup
	environ *environ
	// filesystems are the recorded filesystems that were read on the way.
	filesystems []storage.Filesystem
	// newVolumes are the volumes of filesystems that are to be made which are new.
	newVolumes []string
	// hosts are the tags that were parsed on the way, and classes what has been found
	// out about providers.
	hosts   map[string]names.Tag
	classes map[string]classification
}

// classification is what the worker may do about a provider's storage, and by which sources, or
// why that is not known.
type classification struct {
	class  plan.Class
	byPool bool
	err    error
}

func newFactReader(config setup, environ *environ) *factReader {
	return &factReader{
		config: config, environ: environ, hosts: make(map[string]names.Tag), classes: make(map[string]classification),
	}
}

// read returns the given entities as the state has them, in the empty buffer if its
// capacity suffices.
func (r *factReader) read(subjects []plan.Subject, buffer []plan.Fact) ([]plan.Fact, error) {
	all := slices.Grow(buffer, len(subjects))[:len(subjects)]
	byKind := make(map[plan.Kind][]*plan.Fact)
	for i, s := range subjects {
		all[i].Subject = s
		byKind[s.Key.Kind] = append(byKind[s.Key.Kind], &all[i])
	}
	volumes, filesystems := volumeReader{r}, filesystemReader{r}
	for _, step := range []func() error{
		func() error { return r.readStorage(volumes, byKind[plan.Volume]) },
		func() error { return r.readStorage(filesystems, byKind[plan.Filesystem]) },
		func() error { return r.readAttachments(volumes, byKind[plan.VolumeAttachment]) },
		func() error { return r.readAttachments(filesystems, byKind[plan.FilesystemAttachment]) },
		func() error { return r.readPlans(byKind[plan.Plan]) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (r *factReader) readStorage(kind kindReader, facts []*plan.Fact) error {
	tags := make([]names.Tag, len(facts))
	for i, f := range facts {
		tags[i] = f.Tag
	}
	results, err := callAccessor(r.config.shelter, "reading lives", r.config.Life.Life, tags)
	if err != nil {
		return err
	}
	setLives(facts, results)
	if err := kind.infos(selectFacts(facts, present)); err != nil {
		return err
	}
	if err := r.readAttempts(facts); err != nil {
		return err
	}
	if err := kind.creations(selectFacts(facts, func(f *plan.Fact) bool {
		return !f.Recorded && (f.Attempted || f.Life == plan.Alive || f.Life == plan.Dead)
	})); err != nil {
		return err
	}
	if err := kind.removals(selectFacts(facts, func(f *plan.Fact) bool {
		return f.Life == plan.Dead && f.Recorded
	})); err != nil {
		return err
	}
	if err := kind.providers(selectFacts(facts, func(f *plan.Fact) bool {
		return f.Unattributed && f.Recorded && f.Source == plan.Source{}
	})); err != nil {
		return err
	}
	return r.readOwners(selectFacts(facts, func(f *plan.Fact) bool {
		return f.Recorded && f.Life == plan.Dead || grows(f)
	}))
}

func (r *factReader) readAttachments(kind kindReader, facts []*plan.Fact) error {
	ids := attachmentIds(facts)
	results, err := callAccessor(r.config.shelter, "reading attachment lives", r.config.Life.AttachmentLife, ids)
	if err != nil {
		return err
	}
	setLives(facts, results)
	if err := kind.attachments(selectFacts(facts, present)); err != nil {
		return err
	}
	if err := r.readAttempts(facts); err != nil {
		return err
	}
	if err := kind.attaching(selectFacts(facts, func(f *plan.Fact) bool { return present(f) && !settled(f) })); err != nil {
		return err
	}
	return r.readOwners(selectFacts(facts, func(f *plan.Fact) bool { return present(f) && f.Args != nil }))
}

// readOwners completes the facts of what may be attached, detached, removed or grown with
// whose it is, where that is to be checked.
func (r *factReader) readOwners(facts []*plan.Fact) error {
	accessor, ok := r.config.owners()
	if !ok {
		return nil
	}
	tags := make([]names.Tag, len(facts))
	for i, f := range facts {
		tags[i] = f.Tag
	}
	results, err := callAccessor(r.config.shelter, "reading owners", accessor.Owners, tags)
	complete(facts, results, func(f *plan.Fact, result params.OwnerResult) error {
		if result.Error != nil {
			return result.Error
		}
		if result.Check {
			f.Owner = &storage.Owner{ModelUUID: result.ModelUUID, EntityUUID: result.EntityUUID}
		}
		return nil
	})
	return err
}

// readAttempts completes the facts of what is not recorded with whether it may have been
// made all the same.
func (r *factReader) readAttempts(facts []*plan.Fact) error {
	accessor, ok := r.config.attempts()
	if !ok {
		return nil
	}
	unrecorded := selectFacts(facts, func(f *plan.Fact) bool { return present(f) && !f.Recorded })
	results, err := callAccessor(r.config.shelter, "reading attempts", accessor.Attempts, attachmentIds(unrecorded))
	complete(unrecorded, results, func(f *plan.Fact, result params.AttemptResult) error {
		f.Attempted = result.Attempted
		if result.Error != nil {
			return result.Error
		}
		return nil
	})
	return err
}

// neverProvisioned reports whether an entity is to be removed without ever having been
// provisioned. It is asked only whose it is, and goes even if that is not known.
func neverProvisioned(f *plan.Fact) bool {
	return !f.Recorded && !f.Attempted && (f.Life == plan.Dead || f.Life == plan.Dying)
}

// selectFacts returns the facts that could be read so far and that are wanted.
func selectFacts(facts []*plan.Fact, wanted func(*plan.Fact) bool) []*plan.Fact {
	left := func(f *plan.Fact) bool { return f.Err != nil || !wanted(f) }
	if !slices.ContainsFunc(facts, left) {
		return facts
	}
	return slices.DeleteFunc(slices.Clone(facts), left)
}

func present(f *plan.Fact) bool { return f.Life != plan.Gone }

// settled reports whether nothing is to be done about an attachment, nor to be read for that:
// at a resync it is most of what there is.
func settled(f *plan.Fact) bool { return f.Settled && f.Recorded && f.Life == plan.Alive }

// complete completes facts with the results of a call. An error of a result
// concerns that entity alone.
func complete[R any](facts []*plan.Fact, results []R, each func(*plan.Fact, R) error) {
	for i, result := range results {
		setError(facts[i], each(facts[i], result))
	}
}

// setError completes a fact with the error of reading the entity, if there is one.
func setError(f *plan.Fact, err error) {
	if params.IsCodeNotFound(err) {
		f.Life = plan.Gone
		return
	}
	f.Err = sanitizeError(err)
}

// paramsError returns the error of reading an entity's parameters, which could not be
// read.
func paramsError(f *plan.Fact, err *params.Error) error {
	if neverProvisioned(f) {
		return nil
	}
	return err
}

// checkSubject returns an error if a result names another entity than it was asked for. One
// that names none is taken to be about that.
func checkSubject(f *plan.Fact, tag, host string) error {
	if tag != "" && !isTag(f, tag) {
		return errors.Errorf("the state answered with %q", tag)
	}
	if host != "" && host != f.Key.Host {
		return errors.Errorf("the state answered with one on %q", host)
	}
	return nil
}

// checkAttachmentParams returns an error if the attachment that creation parameters have is of another
// volume or filesystem, or of another provider. What is empty is taken to be the same.
func checkAttachmentParams(f *plan.Fact, tag, attachment, provider string) error {
	if tag != "" && !isTag(f, tag) {
		return errors.Errorf("the state answered with an attachment of %q", tag)
	}
	if attachment != "" && attachment != provider {
		return errors.Errorf("the state answered with provider %q, and an attachment by %q", provider, attachment)
	}
	return nil
}

// isTag reports whether a tag is that of the volume or filesystem of a fact. Most often
// that can be seen without making the other.
func isTag(f *plan.Fact, tag string) bool {
	kind, id, _ := strings.Cut(tag, "-")
	return kind == f.Key.Kind.Storage().String() && id == f.Key.ID || tag == f.Tag.String()
}

func setLives(facts []*plan.Fact, results []params.LifeResult) {
	complete(facts, results, func(f *plan.Fact, result params.LifeResult) error {
		if result.Error != nil {
			return result.Error
		}
		return setLife(f, result.Life)
	})
}

func setLife(f *plan.Fact, value life.Value) error {
	switch value {
	case life.Alive:
		f.Life = plan.Alive
	case life.Dying:
		f.Life = plan.Dying
	case life.Dead:
		f.Life = plan.Dead
	default:
		return errors.NotValidf("life %q of %s", value, f.Key)
	}
	return nil
}

// setRecorded completes a fact with whether the entity is recorded, by the error
// of reading its info.
func setRecorded(f *plan.Fact, err *params.Error) error {
	switch {
	case err == nil:
		f.Recorded = true
	case !params.IsCodeNotProvisioned(err):
		return err
	}
	return nil
}

// readWanted completes the facts of what is to stay with the sizes that it is wanted
// with, and returns those of what is to grow.
func readWanted[T any](
	shelter *shelter, doing string, accessor func([]T) ([]params.SizeResult, error), tags func([]*plan.Fact) []T, facts []*plan.Fact,
) ([]*plan.Fact, error) {
	staying := selectFacts(facts, func(f *plan.Fact) bool { return f.Life == plan.Alive })
	results, err := callAccessor(shelter, doing, accessor, tags(staying))
	complete(staying, results, func(f *plan.Fact, result params.SizeResult) error {
		f.Wanted = result.Result
		if result.Error != nil && !params.IsCodeNotProvisioned(result.Error) {
			return result.Error
		}
		return nil
	})
	return selectFacts(staying, grows), err
}

// grows reports whether the fact is that of what is wanted larger than it is.
func grows(f *plan.Fact) bool {
	return f.Err == nil && f.Life == plan.Alive && f.Recorded && f.Wanted > f.Size
}

// setProvider completes a fact with who provides the entity.
func (r *factReader) setProvider(f *plan.Fact, providerType string, pool *params.Pool) error {
	f.Source = plan.Source{Kind: f.Key.Kind.Storage(), Provider: providerType}
	c, ok := r.classes[providerType]
	if !ok {
		c = r.environ.classify(storage.ProviderType(providerType))
		r.classes[providerType] = c
	}
	f.Class = c.class
	if pool != nil && c.byPool {
		f.Source.Pool = pool.Name
		r.config.pools.set(providerType, pool)
	}
	if c.err != nil && !neverProvisioned(f) {
		return c.err
	}
	return nil
}

// setRemoval completes a fact with what it takes to remove the entity.
func (r *factReader) setRemoval(f *plan.Fact, providerType string, pool *params.Pool, id string, destroy bool) error {
	f.ID = id
	f.Release = !destroy
	return r.setProvider(f, providerType, pool)
}

// setAttachment completes a fact with the host of an attachment, and returns what
// every attachment's parameters have, without what is known only when they are
// used: the ids of instance and storage. It reports whether to go on: nothing is
// made for or attached to a host that is no machine, but what is there is taken
// away from any.
func (r *factReader) setAttachment(f *plan.Fact, provider, host, instance string, readOnly bool) (storage.AttachmentParams, bool, error) {
	tag, ok := r.hosts[host]
	if !ok {
		var err error
		if tag, err = names.ParseTag(host); err != nil {
			return storage.AttachmentParams{}, false, errors.Annotatef(err, "host of %s", f.Key)
		}
		r.hosts[host] = tag
	}
	if f.Key.Kind.Attachment() {
		if err := checkSubject(f, "", host); err != nil {
			return storage.AttachmentParams{}, false, err
		}
	}
	_, machine := tag.(names.MachineTag)
	if machine {
		f.Host = host
		f.Instance = instance
	}
	return storage.AttachmentParams{
		Provider: storage.ProviderType(provider),
		Machine:  tag,
		ReadOnly: readOnly,
	}, machine || f.Life != plan.Alive, nil
}
