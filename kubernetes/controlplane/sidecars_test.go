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
)

const (
	// driverNamespace, driverClass and driverPod are of the manifests in deploy/csi.
	driverNamespace = "stowage-csi"
	driverClass     = "stowage-csi"
	driverPod       = "stowage-csi-node-1"
	machineLabel    = "stowage.io/machine"
)

var snapshots = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}

// The sidecars of Kubernetes, with the arguments and the rights of the manifests, use an agent as a CSI
// driver: a claim is bound and grows, a snapshot of it is made, and claims get what the snapshot and what the
// first claim have. Once all is deleted, nothing is left.
func TestSidecars(t *testing.T) {
	defineSnapshots(t)
	if err := plane.applyDirectory(t.Context(), "../deploy/csi/nodes"); err != nil {
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
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "csi.sock")
	running(t, dir, "stowage-run", nil, store.binary, "run", "--data-dir", data, "--csi-endpoint", "unix://"+socket, "--csi-machine", "node-1", "--csi-expand", "node")
	t.Cleanup(func() { // before the agent ends
		for _, list := range [][]string{{"status"}, {"snapshot", "list"}} {
			if out, err := store.run(background, append(list, "-o", "json", "--data-dir", data)...); err != nil || strings.TrimSpace(out) != "[]" {
				t.Errorf("stowage %s: %s (%v)", strings.Join(list, " "), out, err)
			}
		}
	})
	labelNode(t, "node-1")
	set := registerNode(t, "node-1")
	startSidecars(t, dir, socket, set)

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
	newClaim(t, "restored", driverClass, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "monday"}
	})
	newClaim(t, "clone", driverClass, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("32Mi")
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
	})
	for _, name := range []string{"restored", "clone"} {
		selectNode(t, name, "node-1")
	}
	bound(t, 3)
	list, err := store.run(t.Context(), "snapshot", "list", "--data-dir", data)
	if err != nil || strings.Count(list, " ready") != 1 {
		t.Errorf("the snapshots of the agent (%v): %s", err, list)
	}

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

// registerNode notes that a node has the driver, as kubelet does, and makes the pod of the driver, which no
// kubelet runs. It returns the DaemonSet of the pod.
func registerNode(t *testing.T, name string) *appsv1.DaemonSet {
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
	set, err := plane.client.AppsV1().DaemonSets(driverNamespace).Get(t.Context(), "stowage-csi", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: driverPod, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}},
		Spec:       set.Spec.Template.Spec,
	}
	pod.Spec.NodeName = name
	pods := plane.client.CoreV1().Pods(driverNamespace)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		if err := pods.Delete(background, driverPod, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
	})
	return set
}

// startSidecars starts the sidecars of the DaemonSet, and the controller of snapshots, which a cluster has once.
func startSidecars(t *testing.T, dir, socket string, set *appsv1.DaemonSet) {
	t.Helper()
	bin := os.Getenv("SIDECARS")
	running(t, dir, "snapshot-controller", nil, filepath.Join(bin, "snapshot-controller"),
		"--kubeconfig="+plane.path("admin.kubeconfig"), "--enable-distributed-snapshotting", "--kube-api-qps=500", "--kube-api-burst=1000")
	env := []string{"NODE_NAME=node-1", "NAMESPACE=" + driverNamespace, "POD_NAMESPACE=" + driverNamespace, "POD_NAME=" + driverPod}
	for container, program := range map[string]string{"provisioner": "csi-provisioner", "resizer": "csi-resizer", "snapshotter": "csi-snapshotter"} {
		at := slices.IndexFunc(set.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
		if at < 0 {
			t.Fatalf("the driver has no container %s", container)
		}
		args := []string{"--kubeconfig=" + plane.path("sidecars.kubeconfig"), "--kube-api-qps=500", "--kube-api-burst=1000"}
		for _, arg := range set.Spec.Template.Spec.Containers[at].Args {
			if arg == "--leader-election" { // out of a cluster, the namespace has to be named
				args = append(args, "--leader-election-namespace="+driverNamespace)
			}
			args = append(args, strings.ReplaceAll(arg, "/csi/csi.sock", socket))
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
