package backend

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/converge"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/core/label"
	coremachine "github.com/stowage-io/stowage/core/machine"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/storage"
)

// Claims implements userapi.Backend.
func (b *Backend) Claims(_ context.Context, names []string) ([]user.Claim, error) {
	var claims []state.Claim
	var err error
	if len(names) == 0 {
		claims, err = b.state.Claims()
	}
	for _, name := range names {
		if err == nil {
			var claim state.Claim
			claim, err = b.state.Claim(name)
			claims = append(claims, claim)
		}
	}
	if err != nil {
		return nil, errors.Trace(err)
	}
	storageNames := make([]string, len(claims))
	for i, claim := range claims {
		storageNames[i] = claim.Storage
	}
	found, _, err := b.state.FindStorage(storageNames...)
	if err != nil {
		return nil, errors.Trace(err)
	}
	host, err := b.measureHost(found)
	if err != nil {
		return nil, errors.Trace(err)
	}
	rows := map[string]*user.Storage{}
	for _, s := range found {
		row := b.wireStorage(s, host)
		rows[s.Name] = &row
	}
	wire := make([]user.Claim, len(claims))
	for i, claim := range claims {
		wire[i] = user.Claim{Name: claim.Name, Request: wireRequest(claim.Request), Status: user.ClaimLost, StorageName: claim.Storage}
		if row := rows[claim.Storage]; row != nil && !claim.Lost {
			wire[i].Status, wire[i].Storage = user.ClaimBound, row
		}
	}
	return wire, nil
}

// wireRequest returns the request of a claim as users see it.
func wireRequest(r state.ClaimRequest) user.ClaimRequest {
	wire := user.ClaimRequest{
		Selector: label.FormatSelector(r.Selector), Pool: r.Pool, SizeMiB: r.Size, Kind: r.Kind.String(), AccessMode: r.AccessMode,
		Machine: r.Machine, MachineLabels: label.FormatSelector(r.MachineLabels), Mount: r.MountPoint, ReclaimPolicy: user.ReclaimRetain,
	}
	if r.Delete {
		wire.ReclaimPolicy = user.ReclaimDelete
	}
	return wire
}

// Claim implements userapi.Backend.
func (b *Backend) Claim(ctx context.Context, name string, wanted user.ClaimRequest) error {
	request, declared, err := parseRequest(name, wanted)
	if err != nil {
		return errors.Trace(err)
	}
	return b.change(ctx, "", func() (*state.Changes, error) {
		existing, err := b.state.Claim(name)
		if !errors.Is(err, errors.NotFound) {
			if err == nil {
				err = checkSame(name, wireRequest(existing.Request), wireRequest(request))
			}
			return nil, errors.Trace(err)
		}
		situation, err := b.situation([]string{name})
		if err != nil {
			return nil, errors.Annotatef(err, "claim %s", name)
		}
		changes, err := converge.Claim(situation, state.Claim{Name: name, Request: request}, declared)
		if err != nil {
			return nil, errors.Trace(err)
		}
		changes.By = "claim " + name
		return &changes, nil
	})
}

// parseRequest returns the request for a claim, with the defaults, and the storage that it asks for. The
// error names the field. It satisfies errors.IsNotSupported if storage cannot have the access mode, and
// otherwise errors.IsNotValid.
func parseRequest(name string, wanted user.ClaimRequest) (state.ClaimRequest, spec.Storage, error) {
	title := "claim " + name
	invalid := func(format string, args ...any) (state.ClaimRequest, spec.Storage, error) {
		return state.ClaimRequest{}, spec.Storage{}, errors.NewNotValid(nil, title+": "+fmt.Sprintf(format, args...))
	}
	selector, err := label.ParseSelector(wanted.Selector)
	if err == nil {
		err = label.Check(selector)
	}
	wanted.AccessMode = cmp.Or(wanted.AccessMode, user.ReadWriteOnce)
	wanted.ReclaimPolicy = cmp.Or(wanted.ReclaimPolicy, user.ReclaimRetain)
	wanted.Machine = cmp.Or(wanted.Machine, coremachine.Any)
	switch {
	case err != nil:
		return invalid("selector: %s", err)
	case wanted.Pool == "" && len(selector) == 0:
		return invalid("neither pool nor selector: name the pool in which storage is made, or the labels of storage that exists, or both")
	case wanted.Pool == "" && wanted.Mount != "":
		return invalid("mount: storage that exists has its mount point: leave it out, or name a pool to make storage in")
	case wanted.SizeMiB == 0:
		return invalid("size-mib: missing: write the least size in MiB, such as 1024")
	case wanted.AccessMode != user.ReadWriteOnce:
		return state.ClaimRequest{}, spec.Storage{}, errors.NewNotSupported(nil, fmt.Sprintf(
			"%s: access-mode: %q: storage is on one machine at a time: write %s, or leave it out", title, wanted.AccessMode, user.ReadWriteOnce))
	case wanted.ReclaimPolicy != user.ReclaimRetain && wanted.ReclaimPolicy != user.ReclaimDelete:
		return invalid("reclaim-policy: %q: write %s or %s", wanted.ReclaimPolicy, user.ReclaimRetain, user.ReclaimDelete)
	}
	declared, err := spec.Request(title, name, storage.Directive{Pool: wanted.Pool, Size: wanted.SizeMiB, Count: 1}, map[string]string{
		"kind": wanted.Kind, "machine": wanted.Machine, "machine-labels": wanted.MachineLabels, "mount": wanted.Mount,
	})
	declared.Labels = selector
	return state.ClaimRequest{
		Pool: wanted.Pool, Selector: selector, Size: wanted.SizeMiB, Kind: declared.Kind, AccessMode: wanted.AccessMode,
		Machine: wanted.Machine, MachineLabels: declared.MachineLabels, MountPoint: wanted.Mount,
		Delete: wanted.ReclaimPolicy == user.ReclaimDelete,
	}, declared, errors.Trace(err)
}

// checkSame returns an error that satisfies errors.IsAlreadyExists, and says what differs, unless a claim
// is one of this request.
func checkSame(name string, made, wanted user.ClaimRequest) error {
	var differs []string
	for _, field := range []struct{ name, made, wanted string }{
		{"selector", made.Selector, wanted.Selector},
		{"pool", made.Pool, wanted.Pool},
		{"size-mib", strconv.FormatUint(made.SizeMiB, 10), strconv.FormatUint(wanted.SizeMiB, 10)},
		{"kind", made.Kind, wanted.Kind},
		{"access-mode", made.AccessMode, wanted.AccessMode},
		{"machine", made.Machine, wanted.Machine},
		{"machine-labels", made.MachineLabels, wanted.MachineLabels},
		{"mount", made.Mount, wanted.Mount},
		{"reclaim-policy", string(made.ReclaimPolicy), string(wanted.ReclaimPolicy)},
	} {
		if field.made != field.wanted {
			differs = append(differs, fmt.Sprintf("%s %q, not %q", field.name, field.made, field.wanted))
		}
	}
	if len(differs) == 0 {
		return nil
	}
	return errors.NewAlreadyExists(nil, fmt.Sprintf("claim %s was made with another request: it has %s: delete it first with `stowage unclaim %s`, or choose another name",
		name, strings.Join(differs, ", "), name))
}

// Unclaim implements userapi.Backend.
func (b *Backend) Unclaim(ctx context.Context, name string) error {
	return b.change(ctx, "", func() (*state.Changes, error) {
		return &state.Changes{Unclaim: []string{name}}, nil
	})
}

// Offer implements userapi.Backend.
func (b *Backend) Offer(ctx context.Context, names []string) error {
	return b.changeNamed(ctx, names, func(found []string) state.Changes { return state.Changes{Offer: found} })
}
