package e2e

import (
	"testing"

	"github.com/stowage-io/stowage/core/status"
)

// Storage can be made without being attached, be attached later, and be detached by the file.
func TestDetachedByFile(t *testing.T) {
	m := newMachine(t)
	m.start()
	const entries = `storage:
- {name: volume, directive: 'loop,16M', kind: block, attached: false}
- {name: data, directive: 'loop,16M', kind: filesystem, mount: MNT/data, attached: false}
- {name: dir, directive: 'rootfs,1M', kind: filesystem, mount: MNT/dir, attached: false}
- {name: mem, directive: 'tmpfs,1M', kind: filesystem, mount: MNT/mem, attached: false}
`
	all := []string{"volume", "data", "dir", "mem"}
	want := func(when string, wanted status.Status) {
		t.Helper()
		for _, name := range all {
			if got := m.status()[name]; got.Status != wanted || (len(got.Attachments) > 0) != (wanted == status.Attached) {
				t.Errorf("%s, %s is %+v; want %s", when, name, got, wanted)
			}
		}
	}
	m.writeSpec(entries)
	m.must("apply", "-f", m.spec, "--wait")
	want("at first", status.Detached)
	m.must("apply", "-f", m.spec, "--wait")
	m.must(append([]string{"attach", "--wait"}, all...)...)
	want("when they were attached", status.Attached)
	m.must("apply", "-f", m.spec, "--wait")
	want("when the file was applied again", status.Detached)
	m.must(append([]string{"remove", "--wait"}, all...)...)
}
