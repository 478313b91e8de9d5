package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// network is a bridge on this host with network namespaces, whose links can be cut, or be slow and
// lose packets.
type network struct {
	testing.TB
	dir, name, subnet string
	hosts             []*networkHost
}

// networkHost is a network namespace.
type networkHost struct {
	address   string // IP address
	namespace string // path of the namespace
	enter     string // program that runs stowage there
	link      *networkLink
	holder    *exec.Cmd
}

// newNetwork makes a network, which is gone at the end of the test.
func newNetwork(t testing.TB, dir string) *network {
	t.Helper()
	own := os.Getpid() % 250
	n := &network{TB: t, dir: dir, name: "st" + strconv.Itoa(os.Getpid()), subnet: fmt.Sprintf("198.19.%d", own)}
	n.ip("link", "add", n.name+"b", "type", "bridge")
	t.Cleanup(n.remove)
	n.ip("address", "add", n.subnet+".254/24", "dev", n.name+"b")
	n.ip("link", "set", n.name+"b", "up")
	return n
}

// ip runs the command.
func (n *network) ip(args ...string) {
	n.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// add adds a host.
func (n *network) add() *networkHost {
	n.Helper()
	i := len(n.hosts) + 1
	h := &networkHost{
		address: fmt.Sprintf("%s.%d", n.subnet, i), enter: filepath.Join(n.dir, fmt.Sprintf("host-%d", i)),
		holder: exec.Command("unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"),
	}
	out, err := h.holder.StdoutPipe()
	if err == nil {
		err = h.holder.Start()
	}
	if err != nil {
		n.Fatal(err)
	}
	n.hosts = append(n.hosts, h)
	if _, err := out.Read(make([]byte, 8)); err != nil {
		n.Fatalf("making a network namespace: %v", err)
	}
	h.namespace = fmt.Sprintf("/proc/%d/ns/net", h.holder.Process.Pid)
	if h.link, err = newNetworkLink(fmt.Sprintf("%s-%d", n.name, i)); err != nil {
		n.Fatal(err)
	}
	n.ip("link", "set", h.link.bridge, "master", n.name+"b", "up")
	n.ip("link", "set", h.link.inside, "netns", strconv.Itoa(h.holder.Process.Pid))
	for _, args := range [][]string{
		{"link", "set", h.link.inside, "name", "eth0"}, {"address", "add", h.address + "/24", "dev", "eth0"}, {"link", "set", "eth0", "up"},
	} {
		if out, err := exec.Command("nsenter", append([]string{"--net=" + h.namespace, "ip"}, args...)...).CombinedOutput(); err != nil {
			n.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=%s %s \"$@\"\n", h.namespace, stowage)
	if err := os.WriteFile(h.enter, []byte(script), 0o700); err != nil {
		n.Fatal(err)
	}
	return h
}

// cut cuts a host off.
func (n *network) cut(h *networkHost) { n.Helper(); n.ip("link", "set", h.link.bridge, "down") }

// mend ends that.
func (n *network) mend(h *networkHost) { n.Helper(); n.ip("link", "set", h.link.bridge, "up") }

// remove removes the network.
func (n *network) remove() {
	for _, h := range n.hosts {
		_ = h.holder.Process.Kill()
		_ = h.holder.Wait() // it was killed
		if h.link != nil {
			h.link.close()
		}
	}
	if out, err := exec.Command("ip", "link", "delete", n.name+"b").CombinedOutput(); err != nil {
		n.Errorf("removing the bridge: %v\n%s", err, out)
	}
}
