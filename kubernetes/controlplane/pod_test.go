package controlplane_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// image is the name of the only image of the node: busybox, which also keeps pods' sandboxes.
const image = "stowage.test/busybox:1"

// A pod writes to a filesystem and a block device, and the next pod on the node reads what it wrote.
// A deleted claim is held while a pod uses it; afterwards nothing is left.
func TestPodUsesVolumes(t *testing.T) {
	kubelet := os.Getenv("KUBELET")
	if kubelet == "" {
		t.Skip("KUBELET is not set; run `make kubelet`")
	}
	startNode(t, kubelet, "node-1")
	provisioning(t)
	newClass(t, "filesystems", func(c *storagev1.StorageClass) {
		c.AllowedTopologies = zone("node-1")
		c.MountOptions = []string{"noatime"}
	})
	newClass(t, "devices", func(c *storagev1.StorageClass) {
		c.AllowedTopologies = zone("node-1")
		c.Parameters["allow-device-names"] = "true"
	})
	newClaim(t, "data", "filesystems", nil)
	newClaim(t, "raw", "devices", func(c *corev1.PersistentVolumeClaim) {
		block := corev1.PersistentVolumeBlock
		c.Spec.VolumeMode = &block
	})
	bound(t, 2)

	runPod(t, "writer", `echo hello >/data/file && echo hello | dd of=/dev/raw bs=512 count=1 conv=fsync,notrunc`)
	runPod(t, "reader", `grep -q hello /data/file && head -c5 /dev/raw | grep -q hello && grep -q ' /data ext4 .*noatime' /proc/mounts`)

	pod := newPod(t, "user", "while true; do echo x >>/data/file; sleep 0.1; done")
	awaitPhase(t, pod, corev1.PodRunning)
	if err := claims().Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := claims().Get(t.Context(), "data", metav1.GetOptions{}); err != nil {
		t.Errorf("the claim of a pod that runs: %v", err)
	}
	removePod(t, pod)
	removeClaims(t)
}

func pods() typedcorev1.PodInterface { return plane.client.CoreV1().Pods(corev1.NamespaceDefault) }

// runPod runs a script in a pod that has the claims data and raw, and removes the pod when the script
// has succeeded.
func runPod(t *testing.T, name, script string) {
	t.Helper()
	pod := newPod(t, name, script)
	awaitPhase(t, pod, corev1.PodSucceeded)
	removePod(t, pod)
}

func newPod(t *testing.T, name, script string) string {
	t.Helper()
	no, now := false, int64(0)
	claim := func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	}
	_, err := pods().Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: "node-1", HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &now,
			Containers: []corev1.Container{{
				Name: "main", Image: image, ImagePullPolicy: corev1.PullNever, Command: []string{"/busybox", "sh", "-c", script},
				VolumeMounts:  []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				VolumeDevices: []corev1.VolumeDevice{{Name: "raw", DevicePath: "/dev/raw"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: claim("data")}, {Name: "raw", VolumeSource: claim("raw")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func awaitPhase(t *testing.T, name string, phase corev1.PodPhase) {
	t.Helper()
	eventually(t, "pod "+name+" is not "+string(phase), func() (bool, error) {
		pod, err := pods().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if pod.Status.Phase == corev1.PodFailed {
			status, _ := json.Marshal(pod.Status)
			return false, errors.New(string(status))
		}
		return pod.Status.Phase == phase, nil
	})
}

func removePod(t *testing.T, name string) {
	t.Helper()
	if err := pods().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pod "+name+" is not removed", func() (bool, error) {
		_, err := pods().Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// startNode starts containerd and a kubelet, which end with the test, and returns the directory of the
// kubelet. The pods have the network of the host, so that no network plugin is needed.
func startNode(t *testing.T, kubelet, name string) (root string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	keepSettings(t)
	removeGroups(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	files := map[string]string{
		"containerd.toml": `version = 2
root = "` + path("root") + `"
state = "` + path("state") + `"
[grpc]
  address = "` + path("containerd.sock") + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + image + `"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.internal.v1.opt"]
  path = "` + path("opt") + `"
`,
		"kubelet.yaml": `{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
			"address": "127.0.0.1", "port": ` + mustPort(t) + `, "healthzPort": 0, "readOnlyPort": 0,
			"authentication": {"webhook": {"enabled": false}, "anonymous": {"enabled": true}}, "authorization": {"mode": "AlwaysAllow"},
			"containerRuntimeEndpoint": "unix://` + path("containerd.sock") + `", "cgroupDriver": "cgroupfs", "failCgroupV1": false,
			"cgroupsPerQOS": false, "enforceNodeAllocatable": [], "failSwapOn": false, "makeIPTablesUtilChains": false,
			"evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%", "memory.available": "1Mi"}, "imageGCHighThresholdPercent": 100,
			"localStorageCapacityIsolation": false, "podLogsDir": "` + path("logs") + `", "volumePluginDir": "` + path("plugins") + `",
			"syncFrequency": "1s", "volumeStatsAggPeriod": "0s"}`,
	}
	t.Cleanup(func() {
		if err := unmountRoot(path("kubelet")); err != nil {
			t.Error(err)
		}
	})
	for name, content := range files {
		if err := os.WriteFile(path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeImage(path("image.tar")); err != nil {
		t.Fatal(err)
	}
	running := func(name, program string, args ...string) *process {
		p, err := start(dir, name, nil, program, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s:\n%s", name, p.tail())
			}
			if err := p.stop(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	ctr := func(args ...string) error {
		out, err := exec.Command("ctr", append([]string{"--address", path("containerd.sock"), "--namespace", "k8s.io"}, args...)...).CombinedOutput()
		if err != nil {
			return errors.New(strings.TrimSpace(string(out)))
		}
		return nil
	}
	containerd := running("containerd", "containerd", "--log-level=warn", "--config", path("containerd.toml"))
	eventually(t, "containerd is not ready", func() (bool, error) {
		select {
		case <-containerd.exited:
			return false, errors.New("containerd has ended")
		default:
			return ctr("version") == nil, nil
		}
	})
	if err := ctr("images", "import", path("image.tar")); err != nil {
		t.Fatal(err)
	}
	node := running("kubelet", kubelet, "--config="+path("kubelet.yaml"), "--kubeconfig="+plane.path("admin.kubeconfig"),
		"--root-dir="+path("kubelet"), "--cert-dir="+path("certificates"), "--hostname-override="+name)
	eventually(t, "the node is not known", func() (bool, error) {
		select {
		case <-node.exited:
			return false, errors.New("kubelet has ended")
		default:
		}
		registered, err := plane.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && registered.Status.NodeInfo.KubeletVersion != "", err
	})
	return path("kubelet")
}

// unmountRoot unmounts the directory that a kubelet has mounted on itself.
func unmountRoot(dir string) error {
	err := unix.Unmount(dir, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // it has not come that far
	}
	return err
}

func mustPort(t *testing.T) string {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// keepSettings restores what a kubelet sets in the kernel when the test ends.
func keepSettings(t *testing.T) {
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		file := filepath.Join("/proc/sys", name)
		before, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(file, before, 0o644); err != nil {
				t.Error(err)
			}
		})
	}
}

// removeGroups removes the control groups in which containerd puts pods when the test ends, unless they
// were there before.
func removeGroups(t *testing.T) {
	groups := func() []string {
		found, err := filepath.Glob("/sys/fs/cgroup/*/k8s.io") // of version 1
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("/sys/fs/cgroup/k8s.io"); err == nil { // of version 2
			found = append(found, "/sys/fs/cgroup/k8s.io")
		}
		return found
	}
	before := groups()
	t.Cleanup(func() {
		for _, dir := range groups() {
			if slices.Contains(before, dir) {
				continue
			}
			if err := unix.Rmdir(dir); err != nil {
				t.Errorf("control group %s is left: %v", dir, err)
			}
		}
	})
}

// writeImage writes an image that has busybox and nothing else, in the format of docker save.
func writeImage(file string) error {
	binary, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	layer, err := archive(map[string][]byte{"busybox": program})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/busybox", "sleep", "inf"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	content, err := archive(map[string][]byte{"layer.tar": layer, "config.json": config, "manifest.json": manifest})
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}

func archive(files map[string][]byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}
