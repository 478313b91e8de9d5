package cli

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/privilege"
)

// checkPrivileges returns the needs that are not met here, before an operation fails
// because of one. It is an error if the agent can do nothing at all without one of them.
func checkPrivileges() ([]privilege.Lack, error) {
	lacks, err := privilege.Check()
	if err != nil {
		return nil, err
	}
	for _, lack := range lacks {
		if lack.Vital {
			return nil, errors.Errorf("the agent %s", lack)
		}
	}
	return lacks, nil
}
