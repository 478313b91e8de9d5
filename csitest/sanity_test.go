package csitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	variableEndpoint = "STOWAGE_CSI_ENDPOINT"
	variableAccess   = "STOWAGE_CSI_ACCESS"
	variableResult   = "STOWAGE_CSI_RESULT"
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
	config.Address = os.Getenv(variableEndpoint)
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

// The suite finds nothing wrong with filesystems and block volumes, and leaves nothing.
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
	for _, access := range []string{"mount", "block"} {
		t.Run(access, func(t *testing.T) {
			at := filepath.Join(dir, access)
			if err := os.Mkdir(at, 0o700); err != nil {
				t.Fatal(err)
			}
			a := startAgent(t, binary, at)
			found := a.runSuite(t, access)
			t.Logf("%s: %d passed, %d failed, %d skipped", access, found.Passed, len(found.Failed), len(found.Skipped))
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
			if out, err := a.command(t, "status", "-o", "json").Output(); err != nil || strings.TrimSpace(string(out)) != "[]" {
				t.Errorf("the agent still has storage (%v): %s", err, out)
			}
			a.stop(t)
			if _, err := os.Lstat(a.socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is still there: %v", err)
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

// agent is an agent that serves CSI.
type agent struct {
	binary, dir, data, socket string
	process                   *exec.Cmd
	log                       bytes.Buffer
}

// startAgent starts an agent, and waits until it serves. It is killed at the end of the test.
func startAgent(t *testing.T, binary, dir string) *agent {
	t.Helper()
	a := &agent{binary: binary, dir: dir, data: filepath.Join(dir, "data"), socket: filepath.Join(dir, "csi.sock")}
	a.process = exec.Command(binary, "run", "--data-dir", a.data, "--csi-endpoint", "unix://"+a.socket)
	a.process.Stdout, a.process.Stderr = &a.log, &a.log
	if err := a.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.process.Process.Kill() // fails if it has ended
		_ = a.process.Wait()
		if t.Failed() {
			t.Logf("log of the agent:\n%s", &a.log)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+a.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("the agent does not serve: %v", err)
	}
	return a
}

// runSuite runs the suite in a process of its own.
func (a *agent) runSuite(t *testing.T, access string) (found result) {
	t.Helper()
	file := filepath.Join(a.dir, "result.json")
	suite := exec.CommandContext(t.Context(), os.Args[0])
	suite.Env = append(os.Environ(), variableEndpoint+"="+a.socket, variableAccess+"="+access, variableResult+"="+file)
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

// command returns a command for the agent.
func (a *agent) command(t *testing.T, args ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), a.binary, append(args, "--data-dir", a.data)...)
}

// stop asks the agent to end, which it does without an error.
func (a *agent) stop(t *testing.T) {
	t.Helper()
	if err := a.process.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := a.process.Wait(); err != nil {
		t.Errorf("the agent ended with: %v", err)
	}
}
