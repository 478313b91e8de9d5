package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/core/status"
)

// startMockDriver starts the mock CSI driver of the Kubernetes project, behind a proxy that lets calls fail,
// and returns the flags with which a server and an agent use it in the environment. It skips the test unless
// the driver has been built: make csi-mock.
func startMockDriver(t *testing.T, s *site, seed uint64) (dir string, flags []string) {
	t.Helper()
	binary := os.Getenv("STOWAGE_MOCK_DRIVER")
	if binary == "" {
		t.Skip("STOWAGE_MOCK_DRIVER does not name the mock driver: make csi-mock")
	}
	dir = filepath.Join(s.dir, "mock")
	socket, plugins := filepath.Join(s.dir, "mock.sock"), filepath.Join(s.dir, "plugins")
	driver := exec.Command(binary, "-socket", socket, "-dir", dir, "-seed", fmt.Sprint(seed))
	driver.Stderr = os.Stderr
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = driver.Process.Signal(unix.SIGTERM)
		if err := driver.Wait(); err != nil {
			t.Errorf("the driver ended: %v", err)
		}
	})
	if err := os.Mkdir(plugins, 0o700); err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("name: mock\ntype: csi\ndriver: io.kubernetes.storage.mock\nscope: environment\ntimeout: 1s\nsocket: %s\n", socket)
	if err := os.WriteFile(filepath.Join(plugins, "mock.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, []string{"--plugins-dir", plugins, "--retry-min", "50ms", "--retry-max", "500ms"}
}

// A server and an agent use a driver that nobody here wrote, and whose calls fail in every way, while they are
// killed. Nothing is lost, made twice or left.
func TestMockDriverInTheEnvironment(t *testing.T) {
	for _, seed := range []uint64{0, 1, 2} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newSite(t)
			dir, flags := startMockDriver(t, s, seed)
			server := s.startServer(flags...)
			web := s.startAgent("web", s.token(), flags...)
			random := rand.New(rand.NewPCG(seed, 0))
			crash := func() {
				t.Helper()
				<-time.After(time.Duration(random.IntN(100)) * time.Millisecond) // at any moment
				if random.IntN(3) > 0 {
					server.kill()
					server = s.startServer(flags...)
				}
				web.kill()
				web = s.startAgent("web", "", flags...)
			}
			s.writeSpec(`
pools:
- {name: raw, provider: mock, attributes: {volume-mode: block}}
- {name: trees, provider: mock, attributes: {volume-mode: block, fs: xfs}}
storage:
- {name: share, directive: "mock,16M", kind: filesystem, mount: MNT/share, machine: web}
- {name: data, directive: "trees,300M", kind: filesystem, mount: MNT/data, machine: web}
- {name: disk, directive: "raw,16M,3", kind: block, machine: web}
`)
			s.must("apply", "-f", s.spec)
			crash()
			are := func(want status.Status) func() bool {
				return func() bool {
					for _, storage := range s.status() {
						if storage.Status != want || (want == status.Attached) != (storage.Location != "") {
							return false
						}
					}
					return true
				}
			}
			s.poll("the storage is not attached", are(status.Attached))
			s.write("data", "precious")
			s.write("share", "precious")
			for round := range 4 {
				if round == 1 {
					s.must("resize", "data", "384M")
					s.must("resize", "share", "32M")
				}
				s.must("detach", "data", "share", "disk")
				crash()
				s.poll("the storage is not detached", are(status.Detached))
				s.must("attach", "data", "share", "disk", "--machine", "web")
				crash()
				s.poll("the storage is not attached again", are(status.Attached))
				for _, name := range []string{"data", "share"} {
					if got := s.read(name); got != "precious" {
						t.Fatalf("%s has %q", name, got)
					}
				}
				if loops := loopsBelow(s, dir); len(loops) != 4 {
					t.Fatalf("4 volumes are attached, and the driver has %v", loops)
				}
			}
			s.poll("the storage has not grown", func() bool { return s.status()["data"].SizeMiB == 384 && s.status()["share"].SizeMiB == 32 })
			s.must("resize", "share", "48M")
			s.must("resize", "data", "448M")
			s.must("resize", "disk/0", "32M")
			crash()
			s.poll("the attached storage has not grown", func() bool {
				return s.status()["share"].SizeMiB == 48 && s.status()["data"].SizeMiB == 448 && deviceMiB(s, s.status()["disk/0"].Location) == 32
			})
			s.must("snapshot", "create", "monday", "data")
			s.must("snapshot", "create", "tuesday", "share")
			crash()
			made := func() bool { return strings.Count(s.must("snapshot", "list").Stdout, " ready ") == 2 }
			s.poll("the snapshots are not made", made)
			s.writeSpec(`
storage:
- {name: restored, directive: "trees,512M", kind: filesystem, mount: MNT/restored, machine: web, from: monday}
- {name: copy, directive: "mock,64M", kind: filesystem, mount: MNT/copy, machine: web, from: tuesday}
`)
			s.must("apply", "-f", s.spec)
			crash()
			s.poll("storage is not made from the snapshots", are(status.Attached))
			for _, name := range []string{"restored", "copy"} {
				if got := s.read(name); got != "precious" {
					t.Errorf("%s has %q", name, got)
				}
			}
			s.must("snapshot", "delete", "monday", "tuesday")
			crash()
			s.poll("the snapshots are not deleted", func() bool { return !strings.Contains(s.must("snapshot", "list").Stdout, "day") })
			s.must("remove", "data", "share", "disk", "restored", "copy")
			crash()
			s.poll("the storage is not removed", func() bool { return len(s.status()) == 0 })
			left, err := os.ReadDir(dir)
			if loops := loopsBelow(s, dir); err != nil || len(loops)+len(left) > 0 {
				t.Errorf("the driver has %v, %v, %v", loops, left, err)
			}
			web.stop()
			server.stop()
			s.wantNoStorageIn("web")
		})
	}
}
