package takeover

import (
	"sync"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// listing has the attachments that a source has listed since the takeover, without those of volumes
// that this server has attached or detached since then.
type listing struct {
	mu     sync.Mutex // held while the source lists
	isRead bool
	// known is false if the source cannot list attachments.
	known    bool
	machines map[string]names.Tag
}

// listing returns the listing of a source.
func (t *Takeover) listing(key sourceKey) *listing {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.listings[key]
	if !ok {
		l = &listing{}
		t.listings[key] = l
	}
	return l
}

// read lets the source list its attachments, unless it has done so. It returns false if the source
// cannot do that.
func (l *listing) read(ctx envcontext.ProviderCallContext, source storage.VolumeSource) (bool, error) {
	lister, ok := source.(storage.AttachmentLister)
	if !ok {
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isRead {
		return l.known, nil
	}
	all, err := lister.ListVolumeAttachments(ctx)
	if err != nil && !errors.Is(err, errors.NotSupported) {
		// The error does not wrap the source's: nothing has been attached or detached.
		return false, errors.Errorf("listing which machines have volumes: %v", err)
	}
	l.isRead, l.known, l.machines = true, err == nil, make(map[string]names.Tag, len(all))
	for _, a := range all {
		l.machines[a.VolumeId] = a.Machine
	}
	return l.known, nil
}

// machineOf returns the machine that has a volume, or nil.
func (l *listing) machineOf(id string) names.Tag {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.machines[id]
}

// remove removes a volume that may be attached elsewhere from now on.
func (l *listing) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.machines, id)
}

// forget lets the source list again.
func (l *listing) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isRead = false
}
