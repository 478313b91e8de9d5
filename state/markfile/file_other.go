//go:build !linux

package markfile

const noFollow = 0
