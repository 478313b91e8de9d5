package providerfake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// checkOwner returns an error unless a creation with these resource tags may return the existing
// object of the tag.
func (p *Provider) checkOwner(tag names.Tag, id string, wanted map[string]string) error {
	got, owner := storage.OwnerOf(p.tags[id]).EntityUUID, storage.OwnerOf(wanted).EntityUUID
	if got == owner {
		return nil
	}
	return errors.NewAlreadyExists(nil, fmt.Sprintf("%s already exists, with entity UUID %q, not %q", names.ReadableString(tag), got, owner))
}

// ListVolumeOwners implements storage.VolumeOwnerLister. It lists the volumes that the
// provider has made.
func (p *Provider) ListVolumeOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return listOwners(p, ctx, "ListVolumeOwners", &p.volumes, func(v storage.Volume) (names.Tag, string, uint64) {
		return v.Tag, v.VolumeId, v.Size
	})
}

// ListFilesystemOwners implements storage.FilesystemOwnerLister.
func (p *Provider) ListFilesystemOwners(ctx envcontext.ProviderCallContext) ([]storage.OwnedObject, error) {
	return listOwners(p, ctx, "ListFilesystemOwners", &p.filesystems, func(f storage.Filesystem) (names.Tag, string, uint64) {
		return f.Tag, f.FilesystemId, f.Size
	})
}

// listOwners lists the objects in one of the provider's lists.
func listOwners[T any](
	p *Provider, ctx context.Context, name string, all *[]T, of func(T) (tag names.Tag, id string, size uint64),
) ([]storage.OwnedObject, error) {
	defer p.RecordBegin(p.Options.Prefix+name, nil)()
	if err := p.Begin(ctx, name); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	objects := make([]storage.OwnedObject, len(*all))
	for i, one := range *all {
		tag, id, size := of(one)
		objects[i] = storage.OwnedObject{
			ID: id, Size: size, ResourceTags: maps.Clone(p.tags[id]),
			Attached: slices.ContainsFunc(p.attached, func(s string) bool { return strings.HasPrefix(s, tag.String()+" ") }),
		}
	}
	slices.SortFunc(objects, func(a, b storage.OwnedObject) int { return strings.Compare(a.ID, b.ID) })
	return objects, nil
}

// TagVolumes implements storage.VolumeTagger. The script can make it fail.
func (p *Provider) TagVolumes(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return p.tag(ctx, "TagVolumes", tags, subjectOfVolume, func(id string) bool {
		return slices.ContainsFunc(p.volumes, func(v storage.Volume) bool { return v.VolumeId == id })
	})
}

// TagFilesystems implements storage.FilesystemTagger. The script can make it fail.
func (p *Provider) TagFilesystems(ctx envcontext.ProviderCallContext, tags []storage.ObjectTags) ([]error, error) {
	return p.tag(ctx, "TagFilesystems", tags, subjectOfFilesystem, func(id string) bool {
		return slices.ContainsFunc(p.filesystems, func(f storage.Filesystem) bool { return f.FilesystemId == id })
	})
}

func (p *Provider) tag(ctx context.Context, name string, tags []storage.ObjectTags, subject func(string) string, has func(string) bool) ([]error, error) {
	subjects := make([]string, len(tags))
	for i, t := range tags {
		subjects[i] = subject(t.ID)
	}
	defer p.RecordBegin(p.Options.Prefix+name, slices.Clone(tags), subjects...)()
	if err := p.Begin(ctx, name); err != nil {
		return nil, err
	}
	errs := make([]error, len(tags))
	for i, t := range tags {
		if errs[i] = p.Item(name, subjects[i]); errs[i] != nil {
			continue
		}
		p.mu.Lock()
		if has(t.ID) {
			p.tags[t.ID] = maps.Clone(t.ResourceTags)
		} else {
			errs[i] = errors.NotFoundf("%q", t.ID)
		}
		p.mu.Unlock()
	}
	return errs, nil
}
