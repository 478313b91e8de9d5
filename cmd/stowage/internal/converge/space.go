package converge

import (
	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/cmd/stowage/internal/asked"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/storage"
)

// Space is the free space of a machine for the storage of a provider.
type Space struct {
	// FreeMiB is the space that is free for new storage.
	FreeMiB uint64
	// Reserved says that each storage instance takes its size out of FreeMiB. Otherwise its size
	// is only a maximum.
	Reserved bool
	// Thin reports whether storage with these attributes may be larger than the free space.
	// Nil: never.
	Thin func(attributes map[string]any) bool
}

// limits reports whether the free space limits the size of storage with these attributes.
func (s *Space) limits(attributes map[string]any) bool {
	return s.Thin == nil || !s.Thin(attributes)
}

// place is where storage takes space.
type place struct {
	machine  names.MachineTag
	provider storage.ProviderType
}

// hasSpace reports whether storage with these attributes can take size MiB, as far as is known.
func (p *planner) hasSpace(at place, attributes map[string]any, size uint64) bool {
	space := p.space[at]
	return space == nil || !space.limits(attributes) || size <= space.FreeMiB
}

// takeSpace reserves the space for storage with these attributes, which [planner.hasSpace].
func (p *planner) takeSpace(at place, attributes map[string]any, size uint64) {
	if space := p.space[at]; space != nil && space.Reserved && space.limits(attributes) {
		space.FreeMiB -= size
	}
}

// noSpace returns the error of storage that does not fit, which satisfies errors.Is(err,
// [asked.ErrNoSpace]). wish says what it asks for.
func (p *planner) noSpace(at place, wish string) error {
	where := ""
	if at.machine != p.situation.Machine {
		where = " on machine " + p.machineName(at.machine)
	}
	return errors.WithType(errors.Errorf("it does not fit: %s, and provider %s has room for %s%s", wish, at.provider, table.Size(p.space[at].FreeMiB), where), asked.ErrNoSpace)
}
