package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// clusterStorage is storage that users have asked for.
type clusterStorage struct {
	block  bool
	volume string // ID of its volume; "": it is not known yet
	// confirmed is the number that was last written durably; tried is the last that may have been.
	confirmed, tried int
	removed          bool
}

// do makes a request of a user at a server that runs. Only one is made at a time.
func (c *cluster) do(args ...string) {
	var running []*clusterServer
	for _, s := range c.servers {
		if s.heal.IsZero() {
			running = append(running, s)
		}
	}
	if len(running) == 0 || c.asking {
		return
	}
	c.asking = true
	server := pick(c.rand, running).name
	c.happen("request", server+": "+strings.Join(args, " "))
	go func() {
		r := c.ask(20*time.Second, server, args...)
		text, _, _ := strings.Cut(strings.TrimSpace(r.Stderr), "\n")
		c.answers <- fmt.Sprintf("answer: %d %s", r.Code, text)
	}()
}

// change changes what storage is wanted.
func (c *cluster) change() {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.storage)) {
		if !c.storage[name].removed {
			all = append(all, name)
		}
	}
	machine := pick(c.rand, c.machines).name
	if len(all) < 2 || len(all) < 6 && c.chance(4) {
		c.last++
		name := fmt.Sprintf("s%d", c.last)
		if c.chance(2) {
			machine = "any"
		}
		file := filepath.Join(c.dir, name+".yaml")
		what := "kind: filesystem, mount: " + c.mount(name)
		block := c.chance(3)
		if block {
			what = "kind: block"
		}
		text := fmt.Sprintf("storage: [{name: %s, directive: \"shared,16M\", %s, machine: %s}]\n", name, what, machine)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			c.Fatal(err)
		}
		c.storage[name] = &clusterStorage{block: block}
		c.do("apply", "-f", file)
		return
	}
	name := pick(c.rand, all)
	switch c.rand.IntN(12) {
	case 0:
		c.storage[name].removed = true // it may be, from now on
		c.do("remove", name)
	case 1:
		c.do("detach", name)
	case 2, 3:
		c.do("attach", name, "--machine", machine)
	case 4:
		c.do("machine", "drain", machine)
	case 5, 6:
		c.do("machine", "undrain", machine)
	case 7:
		c.do("move", name, "--to", "any")
	default:
		c.do("move", name, "--to", machine)
	}
}

// write writes the next number to storage where it is attached.
func (c *cluster) write() {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.storage)) {
		if !c.storage[name].removed {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return
	}
	name := pick(c.rand, all)
	for _, m := range c.machines {
		_ = c.writeOn(m, name) // most do not have it
	}
}

// writeOn writes the next number to storage if a machine has it. Otherwise it returns why not.
func (c *cluster) writeOn(m *clusterMachine, name string) error {
	s := c.storage[name]
	if m.off || m.withoutStorage() {
		return errors.New("the machine has no storage")
	}
	s.tried++
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
	defer cancel()
	where := c.mount(name)
	if s.block {
		device, release, err := c.referee.open(s.volume, m.number)
		if err != nil {
			return err
		}
		defer release()
		where = device
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "nsenter", "--mount="+m.proc("ns/mnt"), c.referee.path("writer"), where, strconv.Itoa(s.tried))
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	c.counts["write"]++
	before, _ := strconv.Atoi(string(out)) // nothing, at first
	if before < s.confirmed || before >= s.tried {
		c.Fatalf("%s had %d on %s, and %d to %d were written", name, before, m.name, s.confirmed, s.tried-1)
	}
	s.confirmed = s.tried
	return nil
}
