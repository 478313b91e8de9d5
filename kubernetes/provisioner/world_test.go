package provisioner_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/stowage-io/stowage/kubernetes/orchestrator"
	"github.com/stowage-io/stowage/kubernetes/provisioner"
)

const uid = "6f1c2a34-0000-4000-8000-000000000001"

// world is a provisioner between a fake cluster and a fake stowage. Its nodes are n1, which is
// machine m1 by its label, and m2.
type world struct {
	stowage *fakeStowage
	cluster *fake.Clientset
	claims  cache.Indexer
	events  *record.FakeRecorder
	claim   *corev1.PersistentVolumeClaim
	class   *storagev1.StorageClass
	p       *provisioner.Provisioner
}

func newNode(name string, labels map[string]string) *corev1.Node {
	labels[corev1.LabelHostname] = name
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func newClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: uid, Finalizers: []string{"kubernetes.io/pvc-protection"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Mi")}},
		},
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		stowage: newFakeStowage(),
		claims:  cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		events:  record.NewFakeRecorder(10),
		claim:   newClaim(),
		class: &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "fast-class"}, Provisioner: "stowage.io/provisioner", Parameters: map[string]string{"pool": "fast"},
		},
	}
	w.cluster = fake.NewClientset(w.claim.DeepCopy())
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for _, node := range []*corev1.Node{
		newNode("n1", map[string]string{orchestrator.MachineLabel: "m1", "zone": "a"}),
		newNode("m2", map[string]string{"zone": "b"}),
		newNode("n3", map[string]string{"zone": "a"}),
	} {
		if err := nodes.Add(node); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	w.p, err = provisioner.New(provisioner.Config{
		Stowage: w.stowage, Kubernetes: w.cluster,
		Claims: corelisters.NewPersistentVolumeClaimLister(w.claims), Nodes: corelisters.NewNodeLister(nodes),
		Events: w.events, MountDir: "/volumes", Wait: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// provision asks for the world's claim once.
func (w *world) provision(t *testing.T, node string) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	t.Helper()
	if err := w.claims.Add(w.claim); err != nil {
		t.Fatal(err)
	}
	return w.p.Provision(t.Context(), controller.ProvisionOptions{
		StorageClass: w.class, PVName: "pvc-" + string(w.claim.UID), PVC: w.claim, SelectedNodeName: node,
	})
}

// want checks the outcome of a request that has no volume.
func want(t *testing.T, state controller.ProvisioningState, err error, wanted controller.ProvisioningState) {
	t.Helper()
	if state != wanted || err == nil {
		t.Fatalf("state %q with error %v, want %q", state, err, wanted)
	}
}

// wantNothing checks that no storage is left.
func (w *world) wantNothing(t *testing.T) {
	t.Helper()
	if len(w.stowage.storage) > 0 {
		t.Errorf("storage is left: %v", w.stowage.storage)
	}
}
