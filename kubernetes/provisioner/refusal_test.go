package provisioner_test

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// Claims that cannot be met are refused with the reason, marked as infeasible, and leave nothing.
func TestRefused(t *testing.T) {
	modes := func(m ...corev1.PersistentVolumeAccessMode) func(*world) {
		return func(w *world) { w.claim.Spec.AccessModes = m }
	}
	parameters := func(p map[string]string) func(*world) {
		return func(w *world) { maps.Copy(w.class.Parameters, p) }
	}
	recycle := corev1.PersistentVolumeReclaimRecycle
	attributesClass := "gold"
	for reason, change := range map[string]func(*world){
		"access mode ReadOnlyMany":      modes(corev1.ReadWriteOnce, corev1.ReadOnlyMany),
		"access mode ReadWriteMany":     modes(corev1.ReadWriteMany),
		"no access mode":                modes(),
		"not the one of the class":      parameters(map[string]string{"storage-mode": "RWOP"}),
		"parameter storage-mode":        parameters(map[string]string{"storage-mode": "RWX"}),
		"parameter size: it is not":     parameters(map[string]string{"size": "1G"}),
		"parameter labels":              parameters(map[string]string{"labels": "a=b=c"}),
		"parameter machine-labels":      parameters(map[string]string{"machine-labels": "=?"}),
		"parameter allow-device-names":  parameters(map[string]string{"allow-device-names": "yes"}),
		"not the name of the class":     parameters(map[string]string{"storage-class": "other"}),
		"not the provisioner":           parameters(map[string]string{"storage-provisioner": "other"}),
		`pool "none" is not known`:      parameters(map[string]string{"pool": "none"}),
		"not available in Kubernetes":   parameters(map[string]string{"storage-medium": "Memory"}),
		`is "Disk", want`:               parameters(map[string]string{"pool": "memory", "storage-medium": "Disk"}),
		"volumes on medium HugePages":   parameters(map[string]string{"pool": "memory", "storage-medium": "HugePages"}),
		"rootfs does not have":          parameters(map[string]string{"pool": "dirs", "storage-medium": "Memory"}),
		"disks takes no parameter":      parameters(map[string]string{"pool": "array", "storage-medium": "Memory"}),
		"parameter pool: it is missing": func(w *world) { w.class.Parameters = nil },
		"reclaim policy Recycle":        func(w *world) { w.class.ReclaimPolicy = &recycle },
		"does not match the labels": func(w *world) {
			w.claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
		},
		"selector is not valid": func(w *world) {
			w.claim.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "near"}}}
		},
		"data source": func(w *world) {
			w.claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
		},
		"VolumeAttributesClass": func(w *world) { w.claim.Spec.VolumeAttributesClassName = &attributesClass },
		"requests no storage":   func(w *world) { w.claim.Spec.Resources.Requests = nil },
		"more than the limit": func(w *world) {
			w.claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1500Ki")
			w.claim.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1600Ki")}
		},
		"volume mode Block": func(w *world) { w.claim.Spec.VolumeMode, w.class.MountOptions = block(), []string{"noatime"} },
		"write each option": func(w *world) { w.class.MountOptions = []string{"noatime,nodev"} },
	} {
		t.Run(reason, func(t *testing.T) {
			w := newWorld(t)
			change(w)
			_, state, err := w.provision(t, "n1")
			want(t, state, err, controller.ProvisioningFinished)
			if !strings.Contains(err.Error(), reason) {
				t.Errorf("error %q does not say %q", err, reason)
			}
			if s, _ := status.FromError(err); s.Code() != codes.InvalidArgument {
				t.Errorf("code %s", s.Code())
			}
			w.wantNothing(t)
		})
	}
}

// A refusal of what was begun under another class comes after its storage is gone.
func TestRefusedAfterBegin(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.provision(t, "n1"); err != nil {
		t.Fatal(err)
	}
	w.class.Parameters = map[string]string{"pool": "none"}
	w.stowage.keep = true
	_, state, err := w.provision(t, "n1")
	want(t, state, err, controller.ProvisioningInBackground)
	w.stowage.keep = false
	_, state, err = w.provision(t, "n1")
	want(t, state, err, controller.ProvisioningFinished)
	w.wantNothing(t)
}

// What the class and the claim may say, besides what TestVolume has.
func TestAccepted(t *testing.T) {
	for name, change := range map[string]func(*world){
		"RWOP": func(w *world) {
			w.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			w.class.Parameters["storage-mode"] = "ReadWriteOncePod"
		},
		"own names": func(w *world) {
			w.class.Parameters["storage-class"], w.class.Parameters["storage-provisioner"] = w.class.Name, w.class.Provisioner
		},
		"memory": func(w *world) { w.class.Parameters = map[string]string{"pool": "memory", "storage-medium": "Memory"} },
		"limit": func(w *world) {
			w.claim.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Mi")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			change(w)
			if _, _, err := w.provision(t, "n1"); err != nil {
				t.Error(err)
			}
		})
	}
}
