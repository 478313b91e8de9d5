package providertest

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// memory is a provider whose volumes and filesystems are entries of a map. Without a flaw
// it keeps the contract.
type memory struct {
	flaw flaw

	// Choices that providers have.
	attachesWhatItMakes bool
	takesItsTime        bool // the first call of each operation returns in progress
	releases            bool
	keepsNoTags         bool // its sources list no owners
	refusesAnothers     bool // does not create what exists for another owner
	kinds               []storage.StorageKind

	mu      sync.Mutex
	objects map[string]*object
	// snapshots are not among the objects.
	snapshots map[string]*object
	last      int // the number of the last ID

	begun map[string]bool // the operations that were started

	// State of some flaws.
	asked  int                  // number of calls of Releasable
	opened int                  // number of opened sources
	busy   bool                 // a call is running
	kept   map[names.Tag][]byte // the data of destroyed objects
	leaked []string
	end    chan struct{} // ends calls that hang
}

func newMemory(f flaw) *memory {
	return &memory{
		flaw:      f,
		kinds:     []storage.StorageKind{storage.StorageKindBlock, storage.StorageKindFilesystem},
		releases:  true,
		objects:   make(map[string]*object),
		snapshots: make(map[string]*object),
		begun:     make(map[string]bool),
		kept:      make(map[names.Tag][]byte),
		end:       make(chan struct{}),
	}
}

// object is a volume or a filesystem.
type object struct {
	kind     storage.StorageKind
	id       string
	tag      names.Tag
	size     uint64
	data     []byte
	tags     map[string]string
	former   map[string]string // the replaced tags
	released bool
	origin   string    // the ID of what it was made from
	taken    time.Time // if it is a snapshot
	// unfinished is what an interrupted creation leaves in a flawed provider.
	unfinished bool

	// attached counts the attachments; a sound provider has one at most.
	attached int
	machine  names.Tag
	path     string
	readOnly bool
}

const memoryType = storage.ProviderType("memory")

// memoryConfig is the suite's configuration for the provider.
func memoryConfig(m *memory) Config {
	pool, err := storage.NewConfig("memory", memoryType, storage.Attrs{"speed": "high"})
	if err != nil {
		panic(err)
	}
	return Config{
		Provider:     m,
		SourceConfig: pool,
		InvalidAttrs: storage.Attrs{"speed": "low", "colour": "green"},
		Size:         4,
		MountDir:     "/memory",
		OpenVolume: func(a storage.VolumeAttachment, write bool) (File, error) {
			return m.open(strings.TrimPrefix(a.DeviceName, "memory-"), write)
		},
		OpenFilesystem: func(a storage.FilesystemAttachment, write bool) (File, error) {
			return m.openAt(a.Path, write)
		},
		Leaks: m.left,
	}
}

func (m *memory) open(id string, write bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[id]
	if o == nil || o.attached == 0 {
		return nil, errors.NotFoundf("device of %s", id)
	}
	if write && o.readOnly && m.flaw != saysReadOnlyOnly {
		return nil, errors.Forbiddenf("writing to %s", id)
	}
	return &file{m, o}, nil
}

func (m *memory) openAt(path string, write bool) (File, error) {
	m.mu.Lock()
	id := ""
	for _, o := range m.objects {
		if o.attached > 0 && o.path == path {
			id = o.id
		}
	}
	m.mu.Unlock()
	return m.open(id, write)
}

// left lists the objects in memory.
func (m *memory) left() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := slices.Clone(m.leaked)
	for _, id := range slices.Sorted(maps.Keys(m.objects)) {
		left = append(left, "object "+id)
	}
	for _, id := range slices.Sorted(maps.Keys(m.snapshots)) {
		left = append(left, "snapshot "+id)
	}
	return left
}

// file is the data of an object.
type file struct {
	memory *memory
	object *object
}

func (f *file) ReadAt(p []byte, at int64) (int, error) {
	f.memory.mu.Lock()
	defer f.memory.mu.Unlock()
	return copy(p, f.object.data[at:]), nil
}

func (f *file) WriteAt(p []byte, at int64) (int, error) {
	f.memory.mu.Lock()
	defer f.memory.mu.Unlock()
	return copy(f.object.data[at:], p), nil
}

func (f *file) Sync() error  { return nil }
func (f *file) Close() error { return nil }

// Supports implements [storage.Provider].
func (m *memory) Supports(kind storage.StorageKind) bool {
	return slices.Contains(m.kinds, kind)
}

// Scope implements [storage.Provider].
func (m *memory) Scope() storage.Scope { return storage.ScopeEnviron }

// Dynamic implements [storage.Provider].
func (m *memory) Dynamic() bool { return true }

// Releasable implements [storage.Provider].
func (m *memory) Releasable() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	return m.releases && m.flaw != releasesAllTheSame && (m.flaw != changesItsMind || m.asked%2 == 0)
}

// DefaultPools implements [storage.Provider].
func (m *memory) DefaultPools() []*storage.Config {
	name, provider, attrs := "memory-fast", memoryType, storage.Attrs{"speed": "high"}
	switch m.flaw {
	case namesPoolsBadly:
		name = "fast!"
	case hasForeignPools:
		provider = "other"
	case hasInvalidPools:
		attrs["speed"] = "low"
	}
	pool, err := storage.NewConfig(name, provider, attrs)
	if err != nil {
		panic(err)
	}
	if m.flaw == hasPoolsTwice {
		return []*storage.Config{pool, pool}
	}
	return []*storage.Config{pool}
}

// ValidateConfig implements [storage.Provider].
func (m *memory) ValidateConfig(config *storage.Config) error {
	for name, value := range config.Attrs() {
		switch {
		case m.flaw == takesAnySettings:
		case name == "speed" && value == "high":
		case m.flaw == namesNoAttribute:
			return errors.NewNotValid(nil, "settings")
		case m.flaw == refusesSettingsOddly:
			return errors.Errorf("attribute %q", name)
		default:
			return errors.NewNotValid(nil, fmt.Sprintf("attribute %q", name))
		}
	}
	return nil
}

// ValidateForK8s implements [storage.Provider].
func (m *memory) ValidateForK8s(attributes map[string]any) error {
	if len(attributes) == 0 {
		return nil
	}
	if m.flaw == refusesKubernetesOddly {
		return errors.New("attributes")
	}
	return errors.NewNotValid(nil, "attributes")
}

func (m *memory) openSource(kind storage.StorageKind, config *storage.Config) (*memorySource, error) {
	if !m.Supports(kind) && m.flaw != opensWhatItDoesNotSupport {
		if m.flaw == refusesKindsOddly {
			return nil, errors.New("no such storage")
		}
		return nil, errors.NotSupportedf("%s storage", kind)
	}
	if m.flaw == doesNotOpenWhatItSupports && kind == storage.StorageKindBlock {
		return nil, errors.NotSupportedf("%s storage", kind)
	}
	if err := m.ValidateConfig(config); err != nil && m.flaw != opensWithAnySettings {
		return nil, errors.Trace(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened++
	return &memorySource{memory: m, kind: kind, number: m.opened, own: make(map[string]bool)}, nil
}

// VolumeSource implements [storage.Provider].
func (m *memory) VolumeSource(config *storage.Config) (storage.VolumeSource, error) {
	s, err := m.openSource(storage.StorageKindBlock, config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if m.keepsNoTags {
		return struct {
			storage.VolumeSource
			storage.VolumeImporter
		}{&memoryVolumes{s}, &memoryVolumes{s}}, nil
	}
	return &memoryVolumes{s}, nil
}

// FilesystemSource implements [storage.Provider].
func (m *memory) FilesystemSource(config *storage.Config) (storage.FilesystemSource, error) {
	s, err := m.openSource(storage.StorageKindFilesystem, config)
	if err != nil {
		return nil, errors.Trace(err)
	}
	if m.keepsNoTags {
		return struct {
			storage.FilesystemSource
			storage.FilesystemImporter
		}{&memoryFilesystems{s}, &memoryFilesystems{s}}, nil
	}
	return &memoryFilesystems{s}, nil
}

// memorySource is the common part of volume and filesystem sources.
type memorySource struct {
	*memory
	kind   storage.StorageKind
	number int
	own    map[string]bool // the objects that this source created
}

// MaxConcurrentCalls implements [storage.ConcurrentSource].
func (s *memorySource) MaxConcurrentCalls() int { return 4 }

// begin begins a bulk call, which the returned function ends.
func (s *memorySource) begin(ctx envcontext.ProviderCallContext) (end func(), err error) {
	if ctx.Err() != nil {
		switch s.flaw {
		case hangsWhenCancelled:
			<-s.end
		case failsOddlyWhenCancelled:
			return nil, errors.New("it did not work")
		}
	}
	s.mu.Lock()
	if s.flaw == closesOlderSources && s.number != s.opened {
		s.mu.Unlock()
		return nil, errors.New("the source is closed")
	}
	if s.flaw != takesOneCallAtATime {
		return s.mu.Unlock, nil
	}
	if s.busy {
		s.mu.Unlock()
		return nil, errors.New("the provider is busy")
	}
	s.busy = true
	s.mu.Unlock()
	for range 1000 {
		runtime.Gosched() // and let others call
	}
	s.mu.Lock()
	return func() { s.busy = false; s.mu.Unlock() }, nil
}

// memoryCall carries out a bulk call, item by item.
func memoryCall[T, R any](s *memorySource, ctx envcontext.ProviderCallContext, items []T, do func(T) (R, error), failed func(error) R) ([]R, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer end()
	if s.flaw == failsWithoutArguments && len(items) == 0 {
		return nil, errors.New("nothing to do")
	}
	results := make([]R, 0, len(items))
	for _, item := range items {
		var r R
		err := ctx.Err()
		if err == nil {
			r, err = do(item)
		}
		if err != nil {
			if s.flaw == failsAsAWhole {
				return nil, errors.Trace(err)
			}
			r = failed(err)
		}
		results = append(results, r)
		if err != nil && s.flaw == stopsAtTheFirstFailure {
			for len(results) < len(items) {
				results = append(results, failed(err))
			}
		}
	}
	results = results[:len(items)]
	// The number of items in the rule about the order.
	switch {
	case s.flaw == answersOutOfOrder && len(results) == 5:
		slices.Reverse(results)
	case s.flaw == answersTooLittle && len(results) == 5:
		results = results[:4]
	}
	return results, nil
}

// start starts an operation, which is done at its second call.
func (s *memorySource) start(operation string) error {
	if !s.takesItsTime || s.begun[operation] {
		return nil
	}
	s.begun[operation] = true
	return storage.InProgress(errors.New(operation))
}

func memoryEach[T any](s *memorySource, ctx envcontext.ProviderCallContext, items []T, do func(T) error) ([]error, error) {
	return memoryCall(s, ctx, items, func(item T) (error, error) { return nil, do(item) }, itself)
}

// find returns the object with the tag if the tags name its owner.
func (s *memorySource) find(tag names.Tag, tags map[string]string) *object {
	for _, o := range s.objects {
		forgotten := s.flaw == forgetsWithARestart && !s.own[o.id]
		if o.tag == tag && !o.released && !forgotten && s.flaw != makesAnotherEachTime && s.owns(o, tags) {
			return o
		}
	}
	return nil
}

// owns reports whether the resource tags name the owner of an object.
func (s *memorySource) owns(o *object, tags map[string]string) bool {
	uuid := tags[storage.EntityUUIDTag]
	switch s.flaw {
	case adoptsAnothers, forgetsTags:
		return true
	case adoptsForNobody:
		return uuid == "" || o.tags[storage.EntityUUIDTag] == uuid
	case adoptsForTheFormer:
		return o.tags[storage.EntityUUIDTag] == uuid || o.former[storage.EntityUUIDTag] == uuid
	}
	return o.tags[storage.EntityUUIDTag] == uuid
}

func (s *memorySource) create(ctx envcontext.ProviderCallContext, tag names.Tag, size uint64, tags map[string]string) (*object, error) {
	if err := s.start("creating " + tag.String()); err != nil {
		return nil, errors.Trace(err)
	}
	if size > 1<<40 && s.flaw != makesLessThanAsked {
		return nil, errors.NotValidf("size %d MiB", size)
	}
	o := s.find(tag, tags)
	if o != nil && o.unfinished {
		return nil, errors.AlreadyExistsf("%s", tag)
	}
	if o == nil {
		for _, other := range s.objects {
			if s.refusesAnothers && other.tag == tag && !other.released {
				return nil, errors.AlreadyExistsf("%s of another owner", tag)
			}
		}
		s.last++
		o = &object{
			kind: s.kind, tag: tag, size: size, id: fmt.Sprintf("%s-%03d", s.kind, s.last), data: make([]byte, 1024), tags: maps.Clone(tags),
		}
		if data, ok := s.kept[tag]; ok && s.flaw == keepsTheData {
			o.data = data
		}
		for _, other := range s.objects {
			if s.flaw == adoptsTheData && other.tag == tag {
				o.data = other.data
			}
		}
		if s.flaw == reusesIDs {
			o.id = fmt.Sprintf("%s-id", s.kind)
		}
		if s.flaw == makesLessThanAsked {
			o.size = size / 2
		}
		s.objects[o.id], s.own[o.id] = o, true
		if err := ctx.Err(); err != nil && s.flaw == deniesWhatItLeaves {
			if s.kind == storage.StorageKindFilesystem {
				return nil, storage.Incomplete(err)
			}
			return nil, storage.NothingMade(err)
		}
		if s.flaw == leavesHalfOfIt {
			if err := ctx.Err(); err != nil {
				o.unfinished = true
				return nil, err
			}
		}
	}
	if s.flaw == wipesWhatIsCreatedAgain {
		clear(o.data)
	}
	return o, nil
}

// owners lists the objects with their owners.
func (s *memorySource) owners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer end()
	var objects []storage.OwnedObject
	if s.flaw == listsSnapshotsAsStorage {
		for id := range s.snapshots {
			objects = append(objects, storage.OwnedObject{ID: id})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.objects)) {
		o := s.objects[id]
		if o.kind != s.kind || o.released || !s.own[id] && s.flaw == listsOwnersOfItsOwn {
			continue
		}
		owned := storage.OwnedObject{ID: id, Size: o.size, ResourceTags: maps.Clone(o.tags), Attached: o.attached > 0}
		switch s.flaw {
		case forgetsTags:
			owned.ResourceTags = nil
		case forgetsSizes:
			owned.Size++
		case saysNothingIsAttached:
			owned.Attached = false
		case saysAllIsAttached:
			owned.Attached = true
		case saysAllIsReleased:
			owned.Released = true
		}
		objects = append(objects, owned)
	}
	if s.flaw == listsOwnersOddly {
		slices.Reverse(objects)
	}
	if s.flaw == listsOwnersOfTheGone {
		for n := 1; n <= s.last; n++ {
			if id := fmt.Sprintf("%s-%03d", s.kind, n); s.objects[id] == nil {
				objects = append(objects, storage.OwnedObject{ID: id})
			}
		}
	}
	return objects, nil
}

// retag replaces resource tags.
func (s *memorySource) retag(t storage.ObjectTags) error {
	o := s.existing(t.ID)
	if o == nil {
		if s.flaw == tagsWhatIsNotThere {
			return nil
		}
		return errors.NotFoundf("%s", t.ID)
	}
	again := maps.Equal(o.tags, t.ResourceTags)
	switch {
	case again && s.flaw == doesNotTagTwice:
		return errors.AlreadyExistsf("tags of %s", t.ID)
	case o.attached > 0 && s.flaw == doesNotTagWhatIsInUse:
		return errors.Errorf("%s is attached", t.ID)
	}
	if !again {
		o.former, o.tags = o.tags, maps.Clone(t.ResourceTags)
	}
	switch s.flaw {
	case addsTags:
		all := maps.Clone(o.former)
		maps.Copy(all, t.ResourceTags)
		o.tags = all
	case tagsEverything:
		for _, other := range s.objects {
			other.tags = maps.Clone(t.ResourceTags)
		}
	case wipesWhatItTags:
		clear(o.data)
	case detachesWhatItTags:
		o.attached = 0
	}
	return nil
}

// existing returns an object, or nil if the source does not have it.
func (s *memorySource) existing(id string) *object {
	o := s.objects[id]
	if o == nil || o.released || o.kind != s.kind {
		return nil
	}
	return o
}

func (s *memorySource) attach(id string, p storage.AttachmentParams, path string) (*object, error) {
	if err := s.start("attaching " + id); err != nil {
		return nil, errors.Trace(err)
	}
	o := s.existing(id)
	if o == nil {
		if s.flaw == attachesWhatIsNotThere {
			return &object{id: id, path: path}, nil
		}
		return nil, errors.NotFoundf("%s", id)
	}
	if o.attached > 0 {
		switch s.flaw {
		case doesNotAttachTwice:
			return nil, errors.AlreadyExistsf("attachment of %s", id)
		case attachesTwice:
			o.attached++
		case wipesWhatIsAttachedAgain:
			clear(o.data)
		}
		return o, nil
	}
	if path == "" {
		if s.flaw == choosesNoPath && s.kind == storage.StorageKindFilesystem {
			return nil, errors.NotValidf("empty path")
		}
		path = "/memory/" + id
	}
	o.machine = p.Machine
	o.attached, o.path, o.readOnly = 1, path, p.ReadOnly && s.flaw != ignoresReadOnly
	return o, nil
}

func (s *memorySource) detach(id string) error {
	if err := s.start("detaching " + id); err != nil {
		return errors.Trace(err)
	}
	o := s.existing(id)
	if o == nil {
		if s.flaw == doesNotDetachWhatIsGone {
			return errors.NotFoundf("%s", id)
		}
		return nil
	}
	if o.attached == 0 {
		if s.flaw == doesNotDetachTwice {
			return errors.NotFoundf("attachment of %s", id)
		}
		return nil
	}
	o.attached--
	switch s.flaw {
	case losesDataOnDetach:
		clear(o.data)
	case detachesEverything:
		for _, other := range s.objects {
			other.attached = 0
		}
	}
	return nil
}

func (s *memorySource) destroy(id string) error {
	if err := s.start("destroying " + id); err != nil {
		return errors.Trace(err)
	}
	o := s.existing(id)
	if o == nil {
		if s.flaw == doesNotDestroyTwice {
			return errors.NotFoundf("%s", id)
		}
		return nil
	}
	if o.attached > 0 && s.flaw != destroysWhatIsAttached {
		return errors.Errorf("%s is attached", id)
	}
	s.kept[o.tag] = o.data
	for name, snapshot := range s.snapshots {
		if s.flaw == snapshotsGoWithOrigins && snapshot.origin == id {
			delete(s.snapshots, name)
		}
	}
	if s.flaw == leavesSomething {
		s.leaked = append(s.leaked, "something of "+id)
	}
	delete(s.objects, id)
	return nil
}

func (s *memorySource) release(id string) error {
	if !s.releases {
		return errors.NotSupportedf("releasing")
	}
	o := s.existing(id)
	if o == nil {
		if s.flaw == doesNotReleaseTwice {
			return errors.NotFoundf("%s", id)
		}
		return nil
	}
	if o.attached > 0 && s.flaw != releasesWhatIsAttached {
		return errors.Errorf("%s is attached", id)
	}
	o.released = true
	if s.flaw == destroysWhatItReleases {
		delete(s.objects, id)
	}
	return nil
}

func (s *memorySource) take(id string, tags map[string]string) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[id]
	switch {
	case o == nil && s.flaw == importsWhatIsNotThere:
		return &object{id: id}, nil
	case o == nil:
		return nil, errors.NotFoundf("%s", id)
	case !o.released && s.flaw == doesNotImportTwice:
		return nil, errors.AlreadyExistsf("%s", id)
	}
	o.released, o.tags = false, maps.Clone(tags)
	if s.flaw == wipesWhatItImports {
		clear(o.data)
	}
	return o, nil
}

// validate checks a size, and does not change its arguments.
func (s *memorySource) validate(tag names.Tag, size uint64, tags map[string]string) error {
	switch s.flaw {
	case refusesWhatItMakes:
		return errors.NotValidf("size %d MiB", size)
	case makesWhatItValidates:
		s.mu.Lock()
		defer s.mu.Unlock()
		id := "validated-" + tag.Id()
		s.objects[id] = &object{kind: s.kind, tag: tag, id: id, size: size, data: make([]byte, 1024)}
	case changesResourceTags:
		tags["changed"] = "yes"
	}
	if size > 1<<40 && s.flaw != makesLessThanAsked {
		return errors.NotValidf("size %d MiB", size)
	}
	return nil
}

// memoryVolumes is a source of volumes.
type memoryVolumes struct{ *memorySource }

func (s *memoryVolumes) ValidateVolumeParams(p storage.VolumeParams) error {
	return s.validate(p.Tag, p.Size, p.ResourceTags)
}

func (s *memoryVolumes) CreateVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeParams) ([]storage.CreateVolumesResult, error) {
	return memoryCall(s.memorySource, ctx, params, func(p storage.VolumeParams) (r storage.CreateVolumesResult, err error) {
		o, err := s.create(ctx, p.Tag, p.Size, p.ResourceTags)
		if err != nil {
			return r, errors.Trace(err)
		}
		r.Volume = &storage.Volume{Tag: p.Tag, VolumeInfo: s.info(o)}
		if s.attachesWhatItMakes {
			if o, err = s.attach(o.id, p.Attachment.AttachmentParams, ""); err != nil {
				return r, errors.Trace(err)
			}
			r.VolumeAttachment = s.attachment(*p.Attachment, o)
		}
		switch s.flaw {
		case returnsAnotherTag:
			r.Volume.Tag = names.NewVolumeTag("99")
		case returnsNothing:
			r.Volume = nil
		}
		return r, nil
	}, func(err error) storage.CreateVolumesResult { return storage.CreateVolumesResult{Error: err} })
}

func (s *memoryVolumes) info(o *object) storage.VolumeInfo {
	return storage.VolumeInfo{VolumeId: o.id, Size: o.size, Persistent: true}
}

func (s *memoryVolumes) attachment(p storage.VolumeAttachmentParams, o *object) *storage.VolumeAttachment {
	a := &storage.VolumeAttachment{
		Volume: p.Volume, Machine: p.Machine,
		VolumeAttachmentInfo: storage.VolumeAttachmentInfo{DeviceName: "memory-" + o.id, ReadOnly: o.readOnly},
	}
	if s.flaw == attachesElsewhere {
		a.Machine = names.NewMachineTag("99")
	}
	return a
}

func (s *memoryVolumes) ListVolumes(ctx envcontext.ProviderCallContext) ([]string, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer end()
	var ids []string
	for _, o := range s.objects {
		if o.kind != s.kind || o.released && s.flaw != listsWhatItReleased || !s.own[o.id] && s.flaw == listsOnlyItsOwn {
			continue
		}
		ids = append(ids, o.id)
		if s.flaw == listsTwice {
			ids = append(ids, o.id)
		}
	}
	return ids, nil
}

func (s *memoryVolumes) DescribeVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]storage.DescribeVolumesResult, error) {
	return memoryCall(s.memorySource, ctx, ids, func(id string) (storage.DescribeVolumesResult, error) {
		o := s.existing(id)
		if o == nil {
			if s.flaw == describesOddly {
				return storage.DescribeVolumesResult{}, errors.Errorf("%s is not there", id)
			}
			return storage.DescribeVolumesResult{}, errors.NotFoundf("%s", id)
		}
		i := s.info(o)
		if s.flaw == describesAnotherSize {
			i.Size++
		}
		return storage.DescribeVolumesResult{VolumeInfo: &i}, nil
	}, func(err error) storage.DescribeVolumesResult { return storage.DescribeVolumesResult{Error: err} })
}

func (s *memoryVolumes) AttachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]storage.AttachVolumesResult, error) {
	return memoryCall(s.memorySource, ctx, params, func(p storage.VolumeAttachmentParams) (storage.AttachVolumesResult, error) {
		o, err := s.attach(p.VolumeId, p.AttachmentParams, "")
		if err != nil {
			return storage.AttachVolumesResult{}, errors.Trace(err)
		}
		return storage.AttachVolumesResult{VolumeAttachment: s.attachment(p, o)}, nil
	}, func(err error) storage.AttachVolumesResult { return storage.AttachVolumesResult{Error: err} })
}

func (s *memoryVolumes) DetachVolumes(ctx envcontext.ProviderCallContext, params []storage.VolumeAttachmentParams) ([]error, error) {
	return memoryEach(s.memorySource, ctx, params, func(p storage.VolumeAttachmentParams) error { return s.detach(p.VolumeId) })
}

func (s *memoryVolumes) DestroyVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return memoryEach(s.memorySource, ctx, ids, s.destroy)
}

func (s *memoryVolumes) ReleaseVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return memoryEach(s.memorySource, ctx, ids, s.release)
}

// ListVolumeOwners implements [storage.VolumeOwnerLister].
func (s *memoryVolumes) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return s.owners(ctx)
}

// ListVolumeAttachments implements [storage.AttachmentLister].
func (s *memoryVolumes) ListVolumeAttachments(ctx envcontext.ProviderCallContext) ([]storage.ListedAttachment, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer end()
	var listed []storage.ListedAttachment
	for id, o := range s.objects {
		switch {
		case o.kind != s.kind || o.attached == 0 && s.flaw != listsDetached || !s.own[id] && s.flaw == listsAttachmentsOfItsOwn:
		case s.flaw == listsAnotherMachine:
			listed = append(listed, storage.ListedAttachment{VolumeId: id, Machine: names.NewMachineTag("99")})
		default:
			listed = append(listed, storage.ListedAttachment{VolumeId: id, Machine: o.machine})
		}
	}
	return listed, nil
}

// TagVolumes implements [storage.VolumeTagger].
func (s *memoryVolumes) TagVolumes(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return memoryEach(s.memorySource, ctx, tags, s.retag)
}

// ImportVolume implements [storage.VolumeImporter].
func (s *memoryVolumes) ImportVolume(_ envcontext.ProviderCallContext, id string, tags map[string]string) (storage.VolumeInfo, error) {
	o, err := s.take(id, tags)
	if err != nil {
		return storage.VolumeInfo{}, errors.Trace(err)
	}
	return s.info(o), nil
}

// memoryFilesystems is a source of filesystems.
type memoryFilesystems struct{ *memorySource }

func (s *memoryFilesystems) ValidateFilesystemParams(p storage.FilesystemParams) error {
	return s.validate(p.Tag, p.Size, p.ResourceTags)
}

func (s *memoryFilesystems) CreateFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemParams) ([]storage.CreateFilesystemsResult, error) {
	return memoryCall(s.memorySource, ctx, params, func(p storage.FilesystemParams) (r storage.CreateFilesystemsResult, err error) {
		o, err := s.create(ctx, p.Tag, p.Size, p.ResourceTags)
		if err != nil {
			return r, errors.Trace(err)
		}
		r.Filesystem = &storage.Filesystem{
			Tag: p.Tag, Volume: p.Volume, FilesystemInfo: storage.FilesystemInfo{FilesystemId: o.id, Size: o.size},
		}
		switch s.flaw {
		case returnsAnotherTag:
			r.Filesystem.Tag = names.NewFilesystemTag("99")
		case returnsNothing:
			r.Filesystem = nil
		}
		return r, nil
	}, func(err error) storage.CreateFilesystemsResult { return storage.CreateFilesystemsResult{Error: err} })
}

func (s *memoryFilesystems) AttachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]storage.AttachFilesystemsResult, error) {
	return memoryCall(s.memorySource, ctx, params, func(p storage.FilesystemAttachmentParams) (storage.AttachFilesystemsResult, error) {
		o, err := s.attach(p.FilesystemId, p.AttachmentParams, p.Path)
		if err != nil {
			return storage.AttachFilesystemsResult{}, errors.Trace(err)
		}
		a := &storage.FilesystemAttachment{
			Filesystem: p.Filesystem, Machine: p.Machine,
			FilesystemAttachmentInfo: storage.FilesystemAttachmentInfo{Path: o.path, ReadOnly: o.readOnly},
		}
		if s.flaw == attachesElsewhere {
			a.Path += "-elsewhere"
		}
		return storage.AttachFilesystemsResult{FilesystemAttachment: a}, nil
	}, func(err error) storage.AttachFilesystemsResult { return storage.AttachFilesystemsResult{Error: err} })
}

func (s *memoryFilesystems) DetachFilesystems(ctx envcontext.ProviderCallContext, params []storage.FilesystemAttachmentParams) ([]error, error) {
	return memoryEach(s.memorySource, ctx, params, func(p storage.FilesystemAttachmentParams) error { return s.detach(p.FilesystemId) })
}

func (s *memoryFilesystems) DestroyFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return memoryEach(s.memorySource, ctx, ids, s.destroy)
}

func (s *memoryFilesystems) ReleaseFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return memoryEach(s.memorySource, ctx, ids, s.release)
}

// ListFilesystemOwners implements [storage.FilesystemOwnerLister].
func (s *memoryFilesystems) ListFilesystemOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return s.owners(ctx)
}

// TagFilesystems implements [storage.FilesystemTagger].
func (s *memoryFilesystems) TagFilesystems(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return memoryEach(s.memorySource, ctx, tags, s.retag)
}

// CheckVolumes implements [storage.VolumeChecker].
func (s *memoryVolumes) CheckVolumes(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.checkAll(ctx, ids)
}

// CheckFilesystems implements [storage.FilesystemChecker].
func (s *memoryFilesystems) CheckFilesystems(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	return s.checkAll(ctx, ids)
}

// SetMountOptions implements [storage.MountOptionsSetter].
func (s *memoryFilesystems) SetMountOptions(ctx envcontext.ProviderCallContext, options []storage.FilesystemMountOptions) ([]error, error) {
	return memoryEach(s.memorySource, ctx, options, func(o storage.FilesystemMountOptions) error {
		found := s.existing(o.FilesystemId)
		switch {
		case found == nil && s.flaw != mountsWhatIsNotThere:
			return errors.NotFoundf("%s", o.FilesystemId)
		case found != nil && found.attached > 0 && s.flaw != remountsWhatIsAttached:
			return errors.Errorf("%s is attached", o.FilesystemId)
		case found != nil && s.flaw == wipesWhatGetsOptions:
			found.data = nil
		}
		return nil
	})
}

func (s *memorySource) checkAll(ctx envcontext.ProviderCallContext, ids []string) ([]error, error) {
	if s.flaw == checksOnlyTheFirst {
		ids = ids[:1]
	}
	return memoryEach(s, ctx, ids, s.checkOne)
}

// checkOne checks an attached object.
func (s *memorySource) checkOne(id string) error {
	o := s.existing(id)
	switch {
	case o == nil:
		return errors.NotFoundf("%s", id)
	case s.flaw == detachesWhatItChecks:
		o.attached = 0
	case s.flaw == saysThatItWasUnmounted || o.attached == 0:
		return errors.Errorf("%s was unmounted", id)
	}
	return nil
}

// ImportFilesystem implements [storage.FilesystemImporter].
func (s *memoryFilesystems) ImportFilesystem(_ envcontext.ProviderCallContext, id string, tags map[string]string) (storage.FilesystemInfo, error) {
	o, err := s.take(id, tags)
	if err != nil {
		return storage.FilesystemInfo{}, errors.Trace(err)
	}
	return storage.FilesystemInfo{FilesystemId: o.id, Size: o.size}, nil
}
