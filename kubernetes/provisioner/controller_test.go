package provisioner_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// run runs the controller on the world's cluster until the test ends.
func (w *world) run(t *testing.T) {
	t.Helper()
	if _, err := w.cluster.StorageV1().StorageClasses().Create(t.Context(), w.class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.claims.Add(w.claim); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ctrl := controller.NewProvisionController(ctx, w.cluster, w.class.Provisioner, w.p, controller.LeaderElection(false))
	var running, workers sync.WaitGroup
	ctrl.ControllerWaitGroup(&workers)
	running.Go(func() { ctrl.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		workers.Wait()
	})
	w.update(t, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = &w.class.Name
		c.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": w.class.Provisioner}
	})
}

// The controller saves the volume, and deletes it with its storage when the claim has released it.
func TestController(t *testing.T) {
	w := newWorld(t)
	w.run(t)
	volumes := w.cluster.CoreV1().PersistentVolumes()
	var pv *corev1.PersistentVolume
	eventually(t, "no volume", func() (ok bool) {
		var err error
		pv, err = volumes.Get(t.Context(), "pvc-"+uid, metav1.GetOptions{})
		return err == nil
	})
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != uid || pv.Spec.StorageClassName != w.class.Name {
		t.Error(pv)
	}
	// The claim is bound, or it would be provisioned again.
	w.update(t, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = pv.Name })
	pv.Status.Phase = corev1.VolumeReleased
	if _, err := volumes.UpdateStatus(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume stays", func() bool {
		_, err := volumes.Get(t.Context(), pv.Name, metav1.GetOptions{})
		return err != nil
	})
	w.wantNothing(t)
}

// A refused claim gets an event that says why.
func TestControllerRefuses(t *testing.T) {
	w := newWorld(t)
	w.update(t, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.run(t)
	eventually(t, "no event", func() bool {
		events, err := w.cluster.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Reason == "ProvisioningFailed" && strings.Contains(e.Message, "access mode ReadWriteMany is not supported") {
				return true
			}
		}
		return false
	})
	w.wantNothing(t)
}
