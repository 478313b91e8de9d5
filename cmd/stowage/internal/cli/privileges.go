package cli

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/cmd/stowage/internal/privilege"
)

// checkPrivileges returns what will not work here, before anything fails for the want
// of it. Where nothing would, that is the error.
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
