package e2e

import (
	"strings"
	"testing"
)

// Thin storage can be larger than its disk. The status warns of that, and of a full disk.
func TestThinStorage(t *testing.T) {
	d := newDisk(t, 64)
	m := d.newMachine()
	m.start()
	m.writeSpec(`
pools:
  - name: thin
    provider: loop
    attributes: {allocation: thin, mount-options: discard}
storage:
  - name: data
    directive: thin,200M
    kind: filesystem
    mount: MNT/data
  - name: raw
    directive: thin,100M
    kind: block
  - name: logs
    directive: rootfs,1M
    kind: filesystem
    mount: MNT/logs
`)
	m.apply()
	m.writeData("data")
	message := m.status()["data"].Message
	for _, want := range []string{"thin", "over-committed: thin volumes may take 29", "is left in " + m.data} {
		if !strings.Contains(message, want) {
			t.Errorf("the status message %q lacks %q", message, want)
		}
	}
	if message := m.status()["logs"].Message; strings.Contains(message, "nearly full") {
		t.Errorf("status message %q with %d bytes left", message, d.left())
	}
	m.must("resize", "raw", "200M", "--wait")
	report := m.must("report").Stdout
	for _, want := range []string{"host:", "nearly-full: false", "thin-promised-mib: 3"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report lacks %q:\n%s", want, report)
		}
	}
	// Thick storage cannot be larger than the free space.
	m.writeSpec("storage:\n  - name: thick\n    directive: loop,200M\n    kind: block\n")
	if r := m.run("apply", "-f", m.spec); r.Code != 1 || !strings.Contains(r.Stderr, "it does not fit") {
		t.Error(r.All())
	}

	d.fill()
	if message := m.status()["logs"].Message; !strings.Contains(message, "nearly full: 0M of ") {
		t.Errorf("status message %q on a full disk, want it to say nearly full", message)
	}
	if report := m.must("report").Stdout; !strings.Contains(report, "nearly-full: true") {
		t.Errorf("the report on a full disk does not say nearly-full:\n%s", report)
	}
	d.free()
	m.wantData("data")
	m.must("remove", "data", "raw", "logs", "--wait")
	m.wantNoStorage()
	m.stop()
}
