//go:build !linux

package boltkv_test

import "testing"

var unconfirmed func(t *testing.T, dir string, f func() error) error
