package csi

import (
	"path/filepath"
	"strings"

	"github.com/juju/errors"
)

// ParseEndpoint returns the path of the socket that an endpoint names: unix:///PATH, unix:/PATH or
// /PATH. The error satisfies errors.IsNotValid.
func ParseEndpoint(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix:")
	if path != endpoint {
		if rest, ok := strings.CutPrefix(path, "//"); ok {
			path = rest
		}
	}
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", errors.NewNotValid(nil, "it is not the path of a socket: write unix:///run/stowage/csi.sock")
	}
	return filepath.Clean(path), nil
}
