package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/kubernetes/internal/connection"
)

const (
	// driverNamespace and driverClass are those of the manifests in deploy/csi.
	driverNamespace = "stowage-csi"
	driverClass     = "stowage-csi"
	driverPod       = "sidecars"
	machineLabel    = "stowage.io/machine"
)

var snapshots = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}

// deployment is a way to run the driver.
type deployment struct {
	// socket is that of the controller, data the directory of the state.
	socket, data string
	// pod is the one that has the sidecars, and owner what makes it, in the manifests.
	pod   corev1.PodSpec
	owner metav1.OwnerReference
	// distributed says that each node makes its own snapshots.
	distributed bool
}

// The sidecars of Kubernetes, with the arguments and the rights of the manifests, use an agent, or a server, as
// a CSI driver: a claim is bound and grows, a snapshot of it is made, and claims get what the snapshot and what
// the first claim have. Once all is deleted, nothing is left.
func TestSidecars(t *testing.T) {
	defineSnapshots(t)
	for name, start := range map[string]func(t *testing.T, dir string) *deployment{"nodes": startOnNode, "server": startWithServer} {
		t.Run(name, func(t *testing.T) {
			if err := plane.applyDirectory(t.Context(), filepath.Join("../deploy/csi", name)); err != nil {
				t.Fatal(err)
			}
			dir, err := os.MkdirTemp("", "csi")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			d := start(t, dir)
			t.Cleanup(func() { // before the agent ends
				for _, list := range [][]string{{"status"}, {"snapshot", "list"}} {
					if out, err := store.run(background, append(list, "-o", "json", "--data-dir", d.data)...); err != nil || strings.TrimSpace(out) != "[]" {
						t.Errorf("stowage %s: %s (%v)", strings.Join(list, " "), out, err)
					}
				}
			})
			labelNode(t, "node-1")
			registerNode(t, "node-1", d)
			startSidecars(t, dir, d)
			useVolumes(t, d)
		})
	}
}

// startOnNode starts an agent with a state of its own.
func startOnNode(t *testing.T, dir string) *deployment {
	t.Helper()
	d := &deployment{socket: filepath.Join(dir, "csi.sock"), data: filepath.Join(dir, "data"), distributed: true}
	running(t, dir, "stowage-run", nil, store.binary, "run", "--data-dir", d.data, "--csi-endpoint", "unix://"+d.socket, "--csi-machine", "node-1", "--csi-expand", "node")
	set, err := plane.client.AppsV1().DaemonSets(driverNamespace).Get(t.Context(), "stowage-csi", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.pod, d.owner = set.Spec.Template.Spec, *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))
	return d
}

// startWithServer starts a server, and the agent of a node.
func startWithServer(t *testing.T, dir string) *deployment {
	t.Helper()
	d := &deployment{socket: filepath.Join(dir, "csi.sock"), data: filepath.Join(dir, "server")}
	address := "127.0.0.1:" + mustPort(t)
	running(t, dir, "stowage-server", nil, store.binary, "server", "--data-dir", d.data, "--listen", address, "--csi-endpoint", "unix://"+d.socket)
	var token string
	eventually(t, "the server is not ready", func() (bool, error) {
		var err error
		token, err = store.run(t.Context(), "token", "create", "--data-dir", d.data, "--role", "machine", "--uses", "50")
		return err == nil, nil
	})
	running(t, dir, "stowage-agent", []string{"STOWAGE_TOKEN=" + strings.TrimSpace(token)}, store.binary, "agent", "--data-dir", filepath.Join(dir, "agent"),
		"--server", "https://"+address, "--machine", "node-1", "--csi-endpoint", "unix://"+filepath.Join(dir, "node.sock"))
	client, err := connection.OpenSocket(filepath.Join(d.data, "stowage.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	eventually(t, "the machine is not up", func() (bool, error) {
		all, err := client.Machines(t.Context())
		return len(all) == 1 && all[0].Status == user.MachineUp && len(all[0].Space) > 0, err
	})
	set, err := plane.client.AppsV1().StatefulSets(driverNamespace).Get(t.Context(), "stowage-server", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.pod, d.owner = set.Spec.Template.Spec, *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	return d
}

// useVolumes makes and deletes claims and a snapshot.
func useVolumes(t *testing.T, d *deployment) {
	t.Helper()
	newClaim(t, "data", driverClass, nil)
	selectNode(t, "data", "node-1")
	bound(t, 1)
	wantOnNode(t, "data", "node-1")
	patch := `{"spec": {"resources": {"requests": {"storage": "32Mi"}}}}`
	if _, err := claims().Patch(t.Context(), "data", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume does not grow", func() (bool, error) {
		size := volumeOf(t, "data").Spec.Capacity[corev1.ResourceStorage]
		return size.Cmp(resource.MustParse("32Mi")) == 0, nil
	})

	newSnapshot(t, "monday", "data")
	group := snapshots.Group
	for name, source := range map[string]*corev1.TypedLocalObjectReference{
		"restored": {APIGroup: &group, Kind: "VolumeSnapshot", Name: "monday"},
		"clone":    {Kind: "PersistentVolumeClaim", Name: "data"},
	} {
		newClaim(t, name, driverClass, func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("32Mi")
			c.Spec.DataSource = source
		})
		selectNode(t, name, "node-1")
	}
	bound(t, 3)
	list, err := store.run(t.Context(), "snapshot", "list", "--data-dir", d.data)
	if err != nil || strings.Count(list, " ready") != 1 {
		t.Errorf("the snapshots of stowage (%v): %s", err, list)
	}
	eventually(t, "the scheduler does not know the free space", func() (bool, error) {
		known, err := plane.client.StorageV1().CSIStorageCapacities(driverNamespace).List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(known.Items, func(c storagev1.CSIStorageCapacity) bool {
			return c.StorageClassName == driverClass && c.Capacity != nil && c.Capacity.Sign() > 0 && c.NodeTopology.MatchLabels[machineLabel] == "node-1"
		}), err
	})

	removeSnapshot(t, "monday")
	removeClaims(t)
}

// running runs a program until the test ends.
func running(t *testing.T, dir, name string, env []string, program string, args ...string) {
	t.Helper()
	p, err := start(dir, name, env, program, args...)
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
}

// labelNode gives a node the label of its machine, as kubelet does once a driver is registered.
func labelNode(t *testing.T, name string) {
	t.Helper()
	label := func(ctx context.Context, value string) {
		patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, machineLabel, value)
		if _, err := plane.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	label(t.Context(), `"`+name+`"`)
	t.Cleanup(func() { label(background, "null") })
}

// registerNode notes that a node has the driver, as kubelet does, and makes the pod of the sidecars, which no
// kubelet runs.
func registerNode(t *testing.T, name string, d *deployment) {
	t.Helper()
	_, err := plane.client.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name, TopologyKeys: []string{machineLabel}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.client.StorageV1().CSINodes().Delete(background, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: driverPod, OwnerReferences: []metav1.OwnerReference{d.owner}}, Spec: d.pod}
	pod.Spec.NodeName = name
	pod.Spec.Volumes = nil // those of claims do not exist
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].VolumeMounts = nil
	}
	pods := plane.client.CoreV1().Pods(driverNamespace)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		if err := pods.Delete(background, driverPod, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
		// Nothing removes what belongs to a DaemonSet or StatefulSet that is not there: no collector runs.
		if err := plane.client.StorageV1().CSIStorageCapacities(driverNamespace).DeleteCollection(background, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// startSidecars starts the sidecars of the pod, and the controller of snapshots, which a cluster has once.
func startSidecars(t *testing.T, dir string, d *deployment) {
	t.Helper()
	bin := os.Getenv("SIDECARS")
	running(t, dir, "snapshot-controller", nil, filepath.Join(bin, "snapshot-controller"), "--kubeconfig="+plane.path("admin.kubeconfig"),
		fmt.Sprintf("--enable-distributed-snapshotting=%t", d.distributed), "--kube-api-qps=500", "--kube-api-burst=1000")
	env := []string{"NODE_NAME=node-1", "NAMESPACE=" + driverNamespace, "POD_NAMESPACE=" + driverNamespace, "POD_NAME=" + driverPod}
	for container, program := range map[string]string{"provisioner": "csi-provisioner", "resizer": "csi-resizer", "snapshotter": "csi-snapshotter"} {
		at := slices.IndexFunc(d.pod.Containers, func(c corev1.Container) bool { return c.Name == container })
		if at < 0 {
			t.Fatalf("the driver has no container %s", container)
		}
		args := []string{"--kubeconfig=" + plane.path("sidecars.kubeconfig"), "--kube-api-qps=500", "--kube-api-burst=1000"}
		for _, arg := range d.pod.Containers[at].Args {
			if arg == "--leader-election" { // out of a cluster, the namespace has to be named
				args = append(args, "--leader-election-namespace="+driverNamespace)
			}
			args = append(args, strings.ReplaceAll(arg, "/csi/csi.sock", d.socket))
		}
		running(t, dir, program, env, filepath.Join(bin, program), args...)
	}
}

// wantOnNode checks that the volume of a claim can only be used on a node.
func wantOnNode(t *testing.T, claim, node string) {
	t.Helper()
	affinity := volumeOf(t, claim).Spec.NodeAffinity
	want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: machineLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}
	if affinity == nil || fmt.Sprint(affinity.Required.NodeSelectorTerms) != fmt.Sprint(want) {
		t.Errorf("the volume of claim %s is for %v, want %v", claim, affinity, want)
	}
}

func volumeSnapshots() dynamic.ResourceInterface {
	return plane.dynamic.Resource(snapshots.WithResource("volumesnapshots")).Namespace(corev1.NamespaceDefault)
}

// newSnapshot makes a snapshot of a claim, and waits until it can be used.
func newSnapshot(t *testing.T, name, claim string) {
	t.Helper()
	_, err := volumeSnapshots().Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": snapshots.String(), "kind": "VolumeSnapshot", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"volumeSnapshotClassName": driverClass, "source": map[string]any{"persistentVolumeClaimName": claim}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "snapshot "+name+" is not ready", func() (bool, error) {
		made, err := volumeSnapshots().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		ready, _, err := unstructured.NestedBool(made.Object, "status", "readyToUse")
		return ready, err
	})
}

// removeSnapshot deletes a snapshot, and waits until nothing is left of it in the cluster.
func removeSnapshot(t *testing.T, name string) {
	t.Helper()
	if err := volumeSnapshots().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "snapshot "+name+" is left", func() (bool, error) {
		if _, err := volumeSnapshots().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return false, err
		}
		contents, err := plane.dynamic.Resource(snapshots.WithResource("volumesnapshotcontents")).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(contents.Items) == 0, err
	})
}
