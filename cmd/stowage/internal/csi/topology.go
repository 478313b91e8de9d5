package csi

import (
	"regexp"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/juju/errors"
	"google.golang.org/grpc/codes"
)

// topologyKey is the key of topologies, whose value is the name of a machine.
const topologyKey = "stowage.io/machine"

var validMachine = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// CheckMachine returns an error that satisfies errors.IsNotValid unless a machine of that name can be in
// topologies.
func CheckMachine(name string) error {
	if !validMachine.MatchString(name) {
		return errors.NewNotValid(nil, "it cannot be in a topology: write up to 63 letters, digits, dots, underscores and hyphens, with a letter or digit at both ends")
	}
	return nil
}

// topologyOf returns the topologies from which a volume can be used: none for any machine.
func topologyOf(machine string) []*csi.Topology {
	if machine == "" {
		return nil
	}
	return []*csi.Topology{{Segments: map[string]string{topologyKey: machine}}}
}

// parseTopology returns the machine that a topology names; empty if it names none.
func parseTopology(t *csi.Topology) (string, error) {
	for key := range t.GetSegments() {
		if key != topologyKey {
			return "", fail(codes.InvalidArgument, "topology: %q is not a key of this driver: write %s", key, topologyKey)
		}
	}
	return t.GetSegments()[topologyKey], nil
}

// machinesOf returns the machines that may have a volume, the preferred ones first; empty for any.
func machinesOf(r *csi.TopologyRequirement) ([]string, error) {
	var machines []string
	for _, t := range append(slices.Clone(r.GetPreferred()), r.GetRequisite()...) {
		machine, err := parseTopology(t)
		if err != nil {
			return nil, err
		}
		if machine != "" && !slices.Contains(machines, machine) {
			machines = append(machines, machine)
		}
	}
	return machines, nil
}
