package csitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The environment variables of the process that runs the suite: it can run once in a process.
const (
	variableEndpoint   = "STOWAGE_CSI_ENDPOINT"
	variableController = "STOWAGE_CSI_CONTROLLER"
	variableAccess     = "STOWAGE_CSI_ACCESS"
	variableResult     = "STOWAGE_CSI_RESULT"
)

// result is what a run of the suite has found.
type result struct {
	Passed          int
	Failed, Skipped []string
}

func TestMain(m *testing.M) {
	if os.Getenv(variableEndpoint) != "" {
		// The flags of the testing package are not those of the suite.
		os.Exit(runSuite())
	}
	os.Exit(m.Run())
}

// fakeT is what the suite needs of a test.
type fakeT struct{ failed bool }

func (t *fakeT) Fail() { t.failed = true }

// runSuite runs the suite, and writes its result.
func runSuite() int {
	config := sanity.NewTestConfig()
	dir := filepath.Dir(os.Getenv(variableResult))
	config.Address, config.ControllerAddress = os.Getenv(variableEndpoint), os.Getenv(variableController)
	config.TestVolumeAccessType = os.Getenv(variableAccess)
	config.TestVolumeSize, config.TestVolumeExpandSize = 64<<20, 96<<20
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	var found result
	var writing error
	ginkgo.ReportAfterSuite("result", func(report ginkgo.Report) {
		for _, spec := range report.SpecReports {
			if spec.LeafNodeType != types.NodeTypeIt {
				continue
			}
			name := strings.Join(append(slices.Clone(spec.ContainerHierarchyTexts), spec.LeafNodeText), ": ")
			switch spec.State {
			case types.SpecStatePassed:
				found.Passed++
			case types.SpecStateSkipped, types.SpecStatePending:
				found.Skipped = append(found.Skipped, name)
			default:
				found.Failed = append(found.Failed, name)
			}
		}
		var data []byte
		if data, writing = json.Marshal(found); writing == nil {
			writing = os.WriteFile(os.Getenv(variableResult), data, 0o600)
		}
	})
	t := &fakeT{}
	context := sanity.GinkgoTest(&config)
	gomega.RegisterFailHandler(ginkgo.Fail)
	passed := ginkgo.RunSpecs(t, "csi-sanity")
	context.Finalize()
	if writing != nil {
		fmt.Fprintln(os.Stderr, writing)
	}
	if !passed || t.failed || writing != nil {
		return 1
	}
	return 0
}

// The suite finds nothing wrong with filesystems and block volumes, of an agent with a state of its own, and of
// an agent with a server, and leaves nothing.
func TestSanity(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
			t.Fatal("loop devices and mounts need root, which STOWAGE_REQUIRE_ROOT=1 promises")
		}
		t.Skip("loop devices and mounts need root")
	}
	// The directories of tests are too long for the path of a socket.
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "stowage")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "..", "-o", binary, "./cmd/stowage")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, test := range []struct {
		name, access string
		start        func(t *testing.T, binary, dir string) *driver
	}{
		{"mount", "mount", startAgent}, {"block", "block", startAgent},
		{"server-mount", "mount", startServerWithAgent}, {"server-block", "block", startServerWithAgent},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := filepath.Join(dir, test.name)
			if err := os.Mkdir(at, 0o700); err != nil {
				t.Fatal(err)
			}
			d := test.start(t, binary, at)
			found := d.runSuite(t, test.access)
			t.Logf("%s: %d passed, %d failed, %d skipped", test.name, found.Passed, len(found.Failed), len(found.Skipped))
			for _, name := range found.Failed {
				t.Errorf("failed: %s", name)
			}
			slices.Sort(found.Skipped)
			if want := skipped(t); !slices.Equal(found.Skipped, want) {
				t.Errorf("skipped:\n%s\nwant those of testdata/skipped.txt:\n%s", strings.Join(found.Skipped, "\n"), strings.Join(want, "\n"))
			}
			if found.Passed == 0 {
				t.Error("no test has passed")
			}
			if out, err := d.command(t, "status", "-o", "json").Output(); err != nil || strings.TrimSpace(string(out)) != "[]" {
				t.Errorf("there is still storage (%v): %s", err, out)
			}
			d.stop(t)
			for _, socket := range []string{d.node, d.controller} {
				if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the socket %s is still there: %v", socket, err)
				}
			}
		})
	}
}

// skipped returns the names of the tests that are skipped, since the driver does not advertise what they
// test, or since the suite itself leaves them out.
func skipped(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "skipped.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// driver is an agent that serves CSI, or a server with an agent that do.
type driver struct {
	binary, dir string
	// data is the directory of the state.
	data string
	// node and controller are the sockets of the services.
	node, controller string
	processes        []*process
}

// process is an agent or a server.
type process struct {
	name string
	*exec.Cmd
	log bytes.Buffer
}

// startAgent starts an agent with a state of its own.
func startAgent(t *testing.T, binary, dir string) *driver {
	t.Helper()
	d := &driver{binary: binary, dir: dir, data: filepath.Join(dir, "data"), node: filepath.Join(dir, "csi.sock")}
	d.controller = d.node
	d.start(t, d.node, "run", "--data-dir", d.data)
	return d
}

// startServerWithAgent starts a server, and the agent of a machine.
func startServerWithAgent(t *testing.T, binary, dir string) *driver {
	t.Helper()
	d := &driver{
		binary: binary, dir: dir, data: filepath.Join(dir, "data"),
		node: filepath.Join(dir, "node.sock"), controller: filepath.Join(dir, "controller.sock"),
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	d.start(t, d.controller, "server", "--data-dir", d.data, "--listen", address)
	token, err := d.command(t, "token", "create", "--role", "machine").Output()
	if err != nil {
		t.Fatal(err)
	}
	d.start(t, d.node, "agent", "--data-dir", filepath.Join(dir, "agent"), "--server", "https://"+address,
		"--machine", "web", "--token", strings.TrimSpace(string(token)))
	return d
}

// start starts a process, and waits until it serves CSI on a socket. It is killed at the end of the test.
func (d *driver) start(t *testing.T, socket string, args ...string) {
	t.Helper()
	p := &process{name: args[0], Cmd: exec.Command(d.binary, append(args, "--csi-endpoint", "unix://"+socket)...)}
	p.Stdout, p.Stderr = &p.log, &p.log
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill() // fails if it has ended
		_ = p.Wait()
		if t.Failed() {
			t.Logf("log of stowage %s:\n%s", p.name, &p.log)
		}
	})
	d.processes = append(d.processes, p)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("stowage %s does not serve: %v", p.name, err)
	}
}

// runSuite runs the suite in a process of its own.
func (d *driver) runSuite(t *testing.T, access string) (found result) {
	t.Helper()
	file := filepath.Join(d.dir, "result.json")
	suite := exec.CommandContext(t.Context(), os.Args[0])
	suite.Env = append(os.Environ(), variableEndpoint+"="+d.node, variableController+"="+d.controller,
		variableAccess+"="+access, variableResult+"="+file)
	out, err := suite.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	if err != nil {
		t.Fatalf("the suite has no result: %v\n%s", err, out)
	}
	return found
}

// command returns a command for the process that has the state.
func (d *driver) command(t *testing.T, args ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), d.binary, append(args, "--data-dir", d.data)...)
}

// stop asks the processes to end, the agent first, which they do without an error.
func (d *driver) stop(t *testing.T) {
	t.Helper()
	for _, p := range slices.Backward(d.processes) {
		if err := p.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err != nil {
			t.Errorf("stowage %s ended with: %v", p.name, err)
		}
	}
}
