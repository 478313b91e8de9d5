//go:build linux && !amd64

package syscallfault

var calls map[uint32]call

const auditArch = 0
