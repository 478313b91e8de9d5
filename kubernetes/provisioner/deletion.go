package provisioner

import (
	"context"
	"slices"

	"github.com/juju/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/stowage-io/stowage/api/user"
)

// isOurs returns whether a volume is one that Provision has returned. Its name follows from the
// claim, so that no annotation can have other storage removed.
func isOurs(pv *corev1.PersistentVolume) bool {
	return pv.Spec.Local != nil && pv.Spec.ClaimRef != nil && pv.Name == storageName(pv.Spec.ClaimRef.UID)
}

// Delete implements controller.Provisioner. It removes the storage of a volume, and waits until it is
// gone. Deleting a volume whose storage is gone succeeds.
func (p *Provisioner) Delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	if !isOurs(pv) {
		return &controller.IgnoredError{Reason: "volume " + pv.Name + " is not one that this provisioner has made"}
	}
	gone, err := p.storage.remove(ctx, pv.Name)
	return errors.Annotatef(orNotGone(err, gone), "removing storage %s", pv.Name)
}

// ShouldDelete implements controller.DeletionGuard. It holds a released volume that a pod still uses,
// although its claim is gone, or whose storage was attached to another machine. The controller asks
// again when the volume changes, and at each resync.
func (p *Provisioner) ShouldDelete(ctx context.Context, pv *corev1.PersistentVolume) bool {
	if pv.Status.Phase != corev1.VolumeReleased || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || !isOurs(pv) {
		return true // it is not deleted now, or Delete ignores it
	}
	reason, err := p.user(ctx, pv)
	if err != nil {
		reason = err.Error()
	}
	if reason != "" {
		p.config.Events.Eventf(pv, corev1.EventTypeWarning, "VolumeDeletionHeld", "the volume is not deleted yet: %s", reason)
	}
	return reason == ""
}

// user returns who uses a volume, or nothing.
func (p *Provisioner) user(ctx context.Context, pv *corev1.PersistentVolume) (string, error) {
	ref := pv.Spec.ClaimRef
	pods, err := p.config.Kubernetes.CoreV1().Pods(ref.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", errors.Annotatef(err, "listing the pods of namespace %s", ref.Namespace)
	}
	released := pv.Status.LastPhaseTransitionTime
	for i := range pods.Items {
		pod := &pods.Items[i]
		if released != nil && released.Before(&pod.CreationTimestamp) {
			continue // it has another claim of the same name
		}
		if pod.Spec.NodeName != "" && uses(pod, ref.Name) {
			return "pod " + pod.Namespace + "/" + pod.Name + " uses it", nil
		}
	}
	s, err := p.storage.find(ctx, pv.Name)
	if err != nil {
		return "", errors.Trace(err)
	}
	if s == nil {
		return "", nil
	}
	at := pv.Annotations[annotationMachine]
	i := slices.IndexFunc(s.Attachments, func(a user.Attachment) bool { return at != "" && a.Machine != at })
	if i >= 0 {
		return "its storage was attached to machine " + s.Attachments[i].Machine + ", and the volume is that of machine " + at, nil
	}
	return "", nil
}

// uses returns whether a pod that has not ended has a claim of the name.
func uses(pod *corev1.Pod, claim string) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}
