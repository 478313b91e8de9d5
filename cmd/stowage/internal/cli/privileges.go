package cli

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/privilege"
)

// checkPrivileges returns the privileges that are missing, so that the agent can warn
// before an operation fails. A missing privilege that the agent cannot run without is an
// error.
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
