package provisioner_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/kubernetes/provisioner"
)

// eventually polls until the condition is met.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// clean runs a Cleaner on the world's cluster until the test ends.
func (w *world) clean(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	factory := informers.NewSharedInformerFactory(w.cluster, 0)
	claims := factory.Core().V1().PersistentVolumeClaims()
	p, err := provisioner.New(provisioner.Config{
		Stowage: w.stowage, Kubernetes: w.cluster, Claims: claims.Lister(), Nodes: factory.Core().V1().Nodes().Lister(),
		Events: record.NewFakeRecorder(10), MountDir: "/volumes", Wait: 20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	cleaner := provisioner.NewCleaner(p, claims.Informer())
	factory.StartWithContext(ctx)
	factory.WaitForCacheSync(ctx.Done())
	running.Go(func() {
		if err := cleaner.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		factory.Shutdown()
	})
}

// update changes the world's claim in the cluster.
func (w *world) update(t *testing.T, change func(*corev1.PersistentVolumeClaim)) {
	t.Helper()
	claims := w.cluster.CoreV1().PersistentVolumeClaims("shop")
	claim, err := claims.Get(t.Context(), "orders", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(claim)
	if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) hasFinalizer(t *testing.T) bool {
	t.Helper()
	claim, err := w.cluster.CoreV1().PersistentVolumeClaims("shop").Get(t.Context(), "orders", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(claim.Finalizers, "kubernetes.io/pvc-protection") {
		t.Error("the finalizer of another controller is gone")
	}
	return slices.Contains(claim.Finalizers, provisioner.Finalizer)
}

// A claim that is deleted while it is provisioned keeps the finalizer until its storage is gone, even
// if the provisioner that began it was killed.
func TestCleanDeleted(t *testing.T) {
	w := newWorld(t)
	w.stowage.outcome = func(s *user.Storage) { s.Status, s.Location = status.Pending, "" }
	w.stowage.keep = true
	if _, _, err := w.provision(t, "n1"); err == nil {
		t.Fatal("it was attached")
	}
	w.clean(t)
	w.update(t, func(c *corev1.PersistentVolumeClaim) { now := metav1.Now(); c.DeletionTimestamp = &now })
	eventually(t, "storage is not removed", func() bool {
		w.stowage.mu.Lock()
		defer w.stowage.mu.Unlock()
		return len(w.stowage.removed) > 0
	})
	if !w.hasFinalizer(t) {
		t.Error("the finalizer is gone before the storage")
	}
	w.stowage.change(func() {
		w.stowage.keep = false
		clear(w.stowage.storage)
	})
	eventually(t, "the finalizer stays", func() bool { return !w.hasFinalizer(t) })
}

// A claim with its volume loses only the finalizer.
func TestCleanBound(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.provision(t, "n1"); err != nil {
		t.Fatal(err)
	}
	w.clean(t)
	w.update(t, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-" + uid })
	eventually(t, "the finalizer stays", func() bool { return !w.hasFinalizer(t) })
	if len(w.stowage.removed) > 0 {
		t.Error("the storage of a bound claim was removed")
	}
}

// A claim that got another volume leaves no storage.
func TestCleanBoundToOther(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.provision(t, "n1"); err != nil {
		t.Fatal(err)
	}
	w.clean(t)
	w.update(t, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "by-hand" })
	eventually(t, "the finalizer stays", func() bool { return !w.hasFinalizer(t) })
	w.wantNothing(t)
}

// A deleted claim whose volume was saved leaves the storage to the volume's reclaim policy.
func TestCleanDeletedWithVolume(t *testing.T) {
	w := newWorld(t)
	pv, _, err := w.provision(t, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.cluster.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.clean(t)
	w.update(t, func(c *corev1.PersistentVolumeClaim) { now := metav1.Now(); c.DeletionTimestamp = &now })
	eventually(t, "the finalizer stays", func() bool { return !w.hasFinalizer(t) })
	if len(w.stowage.removed) > 0 {
		t.Error("the storage of a volume was removed")
	}
}
