package provisioner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/juju/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/stowage-io/stowage/api/user"
)

// released returns the volume of the world's claim after the claim is gone.
func (w *world) released(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	pv, _, err := w.provision(t, "n1")
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: w.claim.Namespace, Name: w.claim.Name, UID: w.claim.UID}
	pv.Status.Phase = corev1.VolumeReleased
	return pv
}

func TestDelete(t *testing.T) {
	w := newWorld(t)
	pv := w.released(t)
	for range 2 { // the second finds nothing
		if err := w.p.Delete(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
		w.wantNothing(t)
	}
}

// Storage that is not gone in time, or cannot be removed, is an error, so that the volume stays.
func TestDeleteWaits(t *testing.T) {
	w := newWorld(t)
	pv := w.released(t)
	w.stowage.keep = true
	if err := w.p.Delete(t.Context(), pv); err == nil {
		t.Error("the volume is deleted before its storage")
	}
	w.stowage.fail = func(string) error { return errors.New("connection refused") }
	if err := w.p.Delete(t.Context(), pv); err == nil {
		t.Error("the volume is deleted while stowage cannot be reached")
	}
}

// Others' volumes are left alone, whatever they claim to be.
func TestDeleteIgnores(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"source": func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{}}
		},
		"name":  func(pv *corev1.PersistentVolume) { pv.Name = "database" },
		"claim": func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "other" },
		"none":  func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pv := w.released(t)
			change(pv)
			err := w.p.Delete(t.Context(), pv)
			if _, ok := err.(*controller.IgnoredError); !ok {
				t.Errorf("error %v", err)
			}
			if len(w.stowage.removed) > 0 {
				t.Errorf("removed %v", w.stowage.removed)
			}
		})
	}
}

func (w *world) pod(t *testing.T, phase corev1.PodPhase, created time.Time) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.NewTime(created)},
		Spec: corev1.PodSpec{NodeName: "n1", Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "orders"},
		}}}},
		Status: corev1.PodStatus{Phase: phase},
	}
	if _, err := w.cluster.CoreV1().Pods("shop").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A volume that is used is held, with an event.
func TestGuard(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		prepare func(*testing.T, *world, *corev1.PersistentVolume)
		held    string
	}{
		"unused": {},
		"pod": {func(t *testing.T, w *world, _ *corev1.PersistentVolume) {
			w.pod(t, corev1.PodRunning, now.Add(-time.Hour))
		}, "pod shop/web uses it"},
		"ended pod": {prepare: func(t *testing.T, w *world, _ *corev1.PersistentVolume) {
			w.pod(t, corev1.PodSucceeded, now.Add(-time.Hour))
		}},
		"pod of a later claim": {prepare: func(t *testing.T, w *world, _ *corev1.PersistentVolume) {
			w.pod(t, corev1.PodRunning, now.Add(time.Hour))
		}},
		"moved": {func(_ *testing.T, w *world, pv *corev1.PersistentVolume) {
			s := w.stowage.storage[pv.Name]
			s.Attachments = []user.Attachment{{Machine: "m2"}}
			w.stowage.storage[pv.Name] = s
		}, "attached to machine m2"},
		"unreachable": {func(_ *testing.T, w *world, _ *corev1.PersistentVolume) {
			w.stowage.fail = func(string) error { return errors.New("connection refused") }
		}, "connection refused"},
		"in use by its claim": {prepare: func(t *testing.T, w *world, pv *corev1.PersistentVolume) {
			w.pod(t, corev1.PodRunning, now.Add(-time.Hour))
			pv.Status.Phase = corev1.VolumeBound // the controller does not delete it anyway
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pv := w.released(t)
			pv.Status.LastPhaseTransitionTime = &metav1.Time{Time: now}
			if test.prepare != nil {
				test.prepare(t, w, pv)
			}
			if got := w.p.ShouldDelete(t.Context(), pv); got != (test.held == "") {
				t.Fatalf("ShouldDelete is %t", got)
			}
			if test.held == "" {
				return
			}
			select {
			case event := <-w.events.Events:
				if !strings.Contains(event, test.held) {
					t.Errorf("event %q does not say %q", event, test.held)
				}
			default:
				t.Error("no event")
			}
		})
	}
}
