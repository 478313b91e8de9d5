package translate

import (
	"slices"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/plans"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/guard"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// kindReader reads one kind of storage, and its attachments, from the state. Each method
// completes the given facts with one or two bulk calls; its error is that of a whole call.
type kindReader interface {
	// infos reads which volumes or filesystems are recorded, their IDs and sizes, and the
	// parameters for growing those that are wanted larger.
	infos([]*plan.Fact) error
	// creations reads the parameters for creating them.
	creations([]*plan.Fact) error
	// removals reads the parameters for removing them.
	removals([]*plan.Fact) error
	// providers reads which source provides them.
	providers([]*plan.Fact) error
	// attachments reads which attachments are recorded.
	attachments([]*plan.Fact) error
	// attaching reads the parameters for attaching and detaching.
	attaching([]*plan.Fact) error
}

// Reader reads facts about entities of all kinds. It must be used by one goroutine only.
type Reader struct {
	state  State
	config ReaderConfig
	// Filesystems are the recorded filesystems among what was read.
	Filesystems []storage.Filesystem
	// NewVolumes are the IDs of new volumes on which filesystems are to be made.
	NewVolumes []string
	// hosts caches parsed tags of hosts; classes caches classifications of providers, by type.
	hosts   map[string]names.Tag
	classes map[string]Classification
}

// ReaderConfig configures a [Reader].
type ReaderConfig struct {
	// Scope is the machine or environment of the worker.
	Scope names.Tag
	// StorageDir is where filesystems without a mount point are mounted; it may be empty.
	StorageDir string
	// Plans returns the plan of a device type.
	Plans func(storage.DeviceType) (plans.Plan, error)
	// Classify returns what the worker may do about a provider's storage.
	Classify func(storage.ProviderType) Classification
	// UnattachedVolumes says that volumes are created without attachment parameters.
	UnattachedVolumes bool
	// Log receives warnings.
	Log guard.Logger
	// SetPool receives the pool of storage whose provider has a source for each pool.
	SetPool func(provider string, pool *params.Pool)
}

// Classification says what the worker may do about the storage of a provider.
type Classification struct {
	Class plan.Class
	// ByPool says that the provider has a source for each pool.
	ByPool bool
	// Err says why the class is not known.
	Err error
}

// NewReader returns a reader for one job of the clerk.
func NewReader(state State, config ReaderConfig) *Reader {
	return &Reader{state: state, config: config, hosts: make(map[string]names.Tag), classes: make(map[string]Classification)}
}

// Read returns the facts of the given entities. It uses buffer, which must be empty, if the
// capacity suffices.
func (r *Reader) Read(subjects []plan.Subject, buffer []plan.Fact) ([]plan.Fact, error) {
	all := slices.Grow(buffer, len(subjects))[:len(subjects)]
	n := make(map[plan.Kind]int)
	for _, s := range subjects {
		n[s.Kind()]++
	}
	byKind := make(map[plan.Kind][]*plan.Fact)
	for kind, n := range n {
		byKind[kind] = make([]*plan.Fact, 0, n)
	}
	for i, s := range subjects {
		all[i].Subject = s
		byKind[s.Kind()] = append(byKind[s.Kind()], &all[i])
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

func (r *Reader) readStorage(kind kindReader, facts []*plan.Fact) error {
	tags := make([]names.Tag, len(facts))
	for i, f := range facts {
		tags[i] = f.Tag()
	}
	results, err := CallAccessor(r.state.Guard, "reading lives", r.state.Life.Life, tags)
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

func (r *Reader) readAttachments(kind kindReader, facts []*plan.Fact) error {
	ids := attachmentIDs(facts)
	results, err := CallAccessor(r.state.Guard, "reading attachment lives", r.state.Life.AttachmentLife, ids)
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

// readOwners adds the owners to the facts of storage that may be attached, detached, removed
// or grown, if the owners must be checked.
func (r *Reader) readOwners(facts []*plan.Fact) error {
	accessor, ok := r.state.Life.(owners)
	if !ok {
		return nil
	}
	tags := make([]names.Tag, len(facts))
	for i, f := range facts {
		tags[i] = f.Tag()
	}
	results, err := CallAccessor(r.state.Guard, "reading owners", accessor.Owners, tags)
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

// readAttempts adds to the facts of entities that are not recorded whether they may have been
// made nevertheless.
func (r *Reader) readAttempts(facts []*plan.Fact) error {
	accessor, ok := r.state.Life.(attempts)
	if !ok {
		return nil
	}
	unrecorded := selectFacts(facts, func(f *plan.Fact) bool { return present(f) && !f.Recorded })
	results, err := CallAccessor(r.state.Guard, "reading attempts", accessor.Attempts, attachmentIDs(unrecorded))
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
// provisioned. Only its class matters, and it is removed even if that is not known.
func neverProvisioned(f *plan.Fact) bool {
	return !f.Recorded && !f.Attempted && (f.Life == plan.Dead || f.Life == plan.Dying)
}

// selectFacts returns the wanted facts, among those without a reading error so far.
func selectFacts(facts []*plan.Fact, wanted func(*plan.Fact) bool) []*plan.Fact {
	left := func(f *plan.Fact) bool { return f.Err != nil || !wanted(f) }
	if !slices.ContainsFunc(facts, left) {
		return facts
	}
	return slices.DeleteFunc(slices.Clone(facts), left)
}

func present(f *plan.Fact) bool { return f.Life != plan.Gone }

// settled reports whether nothing needs to be done about an attachment, so that its parameters
// need not be read. At a resync most attachments are settled.
func settled(f *plan.Fact) bool { return f.Settled && f.Recorded && f.Life == plan.Alive }

// complete completes facts with the results of a call. The error of a result concerns that
// entity alone.
func complete[R any](facts []*plan.Fact, results []R, each func(*plan.Fact, R) error) {
	for i, result := range results {
		setError(facts[i], each(facts[i], result))
	}
}

// setError notes the error of reading an entity in its fact. Not found means that the entity
// is gone.
func setError(f *plan.Fact, err error) {
	if params.IsCodeNotFound(err) {
		f.Life = plan.Gone
		return
	}
	f.Err = guard.SanitizeError(err)
}

// paramsError returns the error of reading an entity's parameters, or nil if the entity can be
// removed without them.
func paramsError(f *plan.Fact, err *params.Error) error {
	if neverProvisioned(f) {
		return nil
	}
	return err
}

// checkSubject returns an error if a result names another entity than the one asked for. An
// empty tag or host is accepted.
func checkSubject(f *plan.Fact, tag, host string) error {
	if tag != "" && tag != f.TagText() {
		return errors.Errorf("the state returned the data of %q", tag)
	}
	if host != "" && host != f.Key().Host {
		return errors.Errorf("the state returned the data of an attachment on %q", host)
	}
	return nil
}

// checkAttachmentParams returns an error if the attachment in creation parameters is of
// another volume or filesystem, or of another provider. An empty tag or provider is accepted.
func checkAttachmentParams(f *plan.Fact, tag, attachment, provider string) error {
	if tag != "" && tag != f.TagText() {
		return errors.Errorf("the state returned creation parameters with an attachment of %q", tag)
	}
	if attachment != "" && attachment != provider {
		return errors.Errorf("the state returned creation parameters with provider %q, but with provider %q for the attachment", provider, attachment)
	}
	return nil
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
		return errors.NotValidf("life %q of %s", value, f.Key())
	}
	return nil
}

// setRecorded notes in a fact whether the entity is recorded, given the error of reading its
// info.
func setRecorded(f *plan.Fact, err *params.Error) error {
	switch {
	case err == nil:
		f.Recorded = true
	case !params.IsCodeNotProvisioned(err):
		return err
	}
	return nil
}

// readWanted adds the wanted sizes to the facts of storage that stays, and returns the facts
// of the storage that must grow.
func readWanted[T any](
	g *guard.Guard, doing string, accessor func([]T) ([]params.SizeResult, error), tags func([]*plan.Fact) []T, facts []*plan.Fact,
) ([]*plan.Fact, error) {
	staying := selectFacts(facts, func(f *plan.Fact) bool { return f.Life == plan.Alive })
	results, err := CallAccessor(g, doing, accessor, tags(staying))
	complete(staying, results, func(f *plan.Fact, result params.SizeResult) error {
		f.Wanted = result.Result
		if result.Error != nil && !params.IsCodeNotProvisioned(result.Error) {
			return result.Error
		}
		return nil
	})
	return selectFacts(staying, grows), err
}

// grows reports whether the entity of a fact is wanted larger than it is.
func grows(f *plan.Fact) bool {
	return f.Err == nil && f.Life == plan.Alive && f.Recorded && f.Wanted > f.Size
}

// setProvider adds the source and the class of an entity to its fact.
func (r *Reader) setProvider(f *plan.Fact, providerType string, pool *params.Pool) error {
	f.Source = plan.Source{Kind: f.Kind().Storage(), Provider: providerType}
	c, ok := r.classes[providerType]
	if !ok {
		c = r.config.Classify(storage.ProviderType(providerType))
		r.classes[providerType] = c
	}
	f.Class = c.Class
	if pool != nil && c.ByPool {
		f.Source.Pool = pool.Name
		r.config.SetPool(providerType, pool)
	}
	if c.Err != nil && !neverProvisioned(f) {
		return c.Err
	}
	return nil
}

// setRemoval adds the parameters for removing an entity to its fact.
func (r *Reader) setRemoval(f *plan.Fact, providerType string, pool *params.Pool, id string, destroy bool) error {
	f.ID = id
	f.Release = !destroy
	return r.setProvider(f, providerType, pool)
}

// setAttachment adds the host of an attachment to a fact. It returns the parameters that all
// attachments share, without the IDs of instance and storage, which are added when the
// parameters are used. It also reports whether to go on: storage is made for or attached to
// machines only, but is detached from any host.
func (r *Reader) setAttachment(f *plan.Fact, provider, host, instance string, readOnly bool) (storage.AttachmentParams, bool, error) {
	tag, ok := r.hosts[host]
	if !ok {
		var err error
		if tag, err = names.ParseTag(host); err != nil {
			return storage.AttachmentParams{}, false, errors.Annotatef(err, "host of %s", f.Key())
		}
		r.hosts[host] = tag
	}
	if f.Kind().Attachment() {
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
