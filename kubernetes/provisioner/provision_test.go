package provisioner_test

import (
	"slices"
	"testing"

	"github.com/juju/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/kubernetes/orchestrator"
	"github.com/stowage-io/stowage/kubernetes/provisioner"
)

// The volume has what the claim and the class ask for, and is on the machine of its node.
func TestVolume(t *testing.T) {
	w := newWorld(t)
	retain := corev1.PersistentVolumeReclaimRetain
	w.class.ReclaimPolicy = &retain
	w.class.MountOptions = []string{"noatime", "nodev"}
	w.class.Parameters = map[string]string{"pool": "fast", "labels": "tier=gold", "filesystem": "xfs", "mkfs-options": "reflink=0"}
	w.claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
	pv, state, err := w.provision(t, "n1")
	if err != nil || state != controller.ProvisioningFinished {
		t.Fatal(state, err)
	}
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	term := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	for what, ok := range map[string]bool{
		"name":           pv.Name == "pvc-"+uid,
		"path":           pv.Spec.Local != nil && pv.Spec.Local.Path == "/volumes/pvc-"+uid,
		"filesystem":     *pv.Spec.Local.FSType == "xfs",
		"mode":           *pv.Spec.VolumeMode == corev1.PersistentVolumeFilesystem,
		"size":           size.String() == "100Mi",
		"reclaim policy": pv.Spec.PersistentVolumeReclaimPolicy == retain,
		"mount options":  slices.Equal(pv.Spec.MountOptions, w.class.MountOptions),
		"labels":         pv.Labels["tier"] == "gold",
		"access modes":   slices.Equal(pv.Spec.AccessModes, w.claim.Spec.AccessModes),
		"affinity":       term.Key == orchestrator.MachineLabel && slices.Equal(term.Values, []string{"m1"}),
	} {
		if !ok {
			t.Errorf("%s: %+v", what, pv)
		}
	}
	entry := w.stowage.entries[0]
	for field, value := range map[string]string{
		"name": "pvc-" + uid, "directive": "fast,100M", "kind": "filesystem", "machine": "m1", "mount": "/volumes/pvc-" + uid,
		"filesystem": "xfs", "mkfs-options": "reflink=0", "mount-options": "noatime,nodev",
	} {
		if entry[field] != value {
			t.Errorf("field %s is %q, want %q", field, entry[field], value)
		}
	}
	claim, err := w.cluster.CoreV1().PersistentVolumeClaims("shop").Get(t.Context(), "orders", metav1.GetOptions{})
	if err != nil || !slices.Contains(claim.Finalizers, provisioner.Finalizer) || len(claim.Finalizers) != 2 {
		t.Errorf("finalizers %v, %v", claim.Finalizers, err)
	}
}

// A node without the label is the machine of its name.
func TestNodeName(t *testing.T) {
	w := newWorld(t)
	pv, _, err := w.provision(t, "m2")
	if err != nil {
		t.Fatal(err)
	}
	term := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if w.stowage.applied[0] != "m2" || term.Key != corev1.LabelHostname || term.Values[0] != "m2" {
		t.Error(w.stowage.applied, term)
	}
}

func block() *corev1.PersistentVolumeMode {
	mode := corev1.PersistentVolumeBlock
	return &mode
}

func TestBlock(t *testing.T) {
	w := newWorld(t)
	w.claim.Spec.VolumeMode = block()
	pv, state, err := w.provision(t, "n1")
	if err != nil || state != controller.ProvisioningFinished || *pv.Spec.VolumeMode != corev1.PersistentVolumeBlock || pv.Spec.Local.Path != w.stowage.device {
		t.Fatal(pv, state, err)
	}
	if entry := w.stowage.entries[0]; entry["kind"] != "block" || entry["mount"] != "" {
		t.Error(entry)
	}
	if !w.p.SupportsBlock(t.Context()) {
		t.Error("block is not supported")
	}
}

// A device's name that can be another's after a restart needs the class's consent.
func TestBlockWithDeviceName(t *testing.T) {
	w := newWorld(t)
	w.claim.Spec.VolumeMode = block()
	w.stowage.device = "/dev/loop7"
	_, state, err := w.provision(t, "n1")
	want(t, state, err, controller.ProvisioningFinished)
	w.wantNothing(t)

	w.class.Parameters["allow-device-names"] = "true"
	pv, _, err := w.provision(t, "n1")
	if err != nil || pv.Spec.Local.Path != "/dev/loop7" {
		t.Error(pv, err)
	}
}

// Storage that is not attached in time is found again by its name.
func TestBackground(t *testing.T) {
	w := newWorld(t)
	w.stowage.outcome = func(s *user.Storage) { s.Status, s.Location = status.Pending, "" }
	_, state, err := w.provision(t, "n1")
	want(t, state, err, controller.ProvisioningInBackground)
	_, state, err = w.provision(t, "n1")
	want(t, state, err, controller.ProvisioningInBackground)
	w.stowage.change(func() {
		s := w.stowage.storage["pvc-"+uid]
		s.Status, s.Location = status.Attached, "/volumes/x"
		w.stowage.storage[s.Name] = s
	})
	pv, state, err := w.provision(t, "n1")
	if err != nil || state != controller.ProvisioningFinished || pv.Spec.Local.Path != "/volumes/x" {
		t.Fatal(pv, state, err)
	}
	if len(w.stowage.applied) != 1 {
		t.Errorf("added %d times", len(w.stowage.applied))
	}
}

// Detached storage of an earlier attempt is attached.
func TestDetached(t *testing.T) {
	w := newWorld(t)
	w.stowage.storage["pvc-"+uid] = user.Storage{Name: "pvc-" + uid, Kind: "filesystem", Life: life.Alive, Status: status.Detached}
	if pv, _, err := w.provision(t, "n1"); err != nil || pv.Spec.Local.Path != "/volumes/pvc-"+uid {
		t.Error(pv, err)
	}
}

// While stowage cannot be reached, nothing is known to have changed.
func TestUnreachable(t *testing.T) {
	for _, request := range []string{"storage", "pools", "machines"} {
		t.Run(request, func(t *testing.T) {
			w := newWorld(t)
			w.stowage.fail = func(r string) error {
				if r == request {
					return errors.New("connection refused")
				}
				return nil
			}
			_, state, err := w.provision(t, "n1")
			want(t, state, err, controller.ProvisioningNoChange)
			w.wantNothing(t)
		})
	}
}

// A refused claim stays as it is while stowage cannot be reached, since its storage may exist.
func TestUnreachableForRefusedClaim(t *testing.T) {
	w := newWorld(t)
	w.claim.Spec.AccessModes = nil
	w.stowage.fail = func(string) error { return errors.New("connection refused") }
	_, state, err := w.provision(t, "")
	want(t, state, err, controller.ProvisioningNoChange)
}

// A request whose answer was lost may have been carried out.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t)
	lost := true
	w.stowage.fail = func(r string) error {
		if r == "apply" && lost {
			return errors.New("the agent stopped before it answered")
		}
		return nil
	}
	_, state, err := w.provision(t, "n1")
	want(t, state, err, controller.ProvisioningInBackground)
	lost = false
	if _, _, err := w.provision(t, "n1"); err != nil || len(w.stowage.applied) != 1 {
		t.Error(err, w.stowage.applied)
	}
}

// A role that may not make changes ends the attempt.
func TestUnauthorized(t *testing.T) {
	w := newWorld(t)
	w.stowage.fail = func(r string) error {
		if r == "apply" {
			return errors.Unauthorizedf("role viewer")
		}
		return nil
	}
	_, state, err := w.provision(t, "n1")
	want(t, state, err, controller.ProvisioningFinished)
}

// Only a selected node can be given up, and not before its storage is gone.
func TestReschedule(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"down":     func(w *world) { w.stowage.machines[0].Status = user.MachineUnreachable },
		"drained":  func(w *world) { w.stowage.machines[0].Drained = true },
		"no space": func(w *world) { w.stowage.machines[0].Space["loop"] = user.MachineSpace{FreeMiB: 99} },
		"labels":   func(w *world) { w.class.Parameters["machine-labels"] = "disk=nvme" },
		"topology": func(w *world) { w.class.AllowedTopologies = zone("b") },
		"unknown":  func(w *world) { w.stowage.machines = w.stowage.machines[1:] },
		"failed": func(w *world) {
			w.stowage.outcome = func(s *user.Storage) { s.Status, s.Message = status.Error, "no space" }
		},
		"elsewhere": func(w *world) {
			w.stowage.storage["pvc-"+uid] = user.Storage{Name: "pvc-" + uid, Life: life.Alive, Attachments: []user.Attachment{{Machine: "m2"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			_, state, err := w.provision(t, "n1")
			want(t, state, err, controller.ProvisioningReschedule)
			w.wantNothing(t)
		})
	}
	t.Run("no such node", func(t *testing.T) {
		_, state, err := newWorld(t).provision(t, "n9")
		want(t, state, err, controller.ProvisioningReschedule)
	})
}

func zone(name string) []corev1.TopologySelectorTerm {
	return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{name}}}}}
}

// Storage that failed on the selected node is given up only when it is gone.
func TestRescheduleWaits(t *testing.T) {
	w := newWorld(t)
	w.stowage.keep = true
	w.stowage.outcome = func(s *user.Storage) { s.Status, s.Message = status.Error, "no space" }
	for range 2 {
		_, state, err := w.provision(t, "n1")
		want(t, state, err, controller.ProvisioningInBackground)
	}
	w.stowage.change(func() { clear(w.stowage.storage) })
	w.stowage.outcome, w.stowage.keep = nil, false
	if _, _, err := w.provision(t, "n1"); err != nil {
		t.Error(err)
	}
}

// Without a selected node nothing is rescheduled.
func TestNoPlace(t *testing.T) {
	w := newWorld(t)
	for i := range w.stowage.machines {
		w.stowage.machines[i].Drained = true
	}
	_, state, err := w.provision(t, "")
	want(t, state, err, controller.ProvisioningFinished)

	w = newWorld(t)
	w.stowage.outcome = func(s *user.Storage) { s.Status, s.Message = status.Error, "no space" }
	_, state, err = w.provision(t, "")
	want(t, state, err, controller.ProvisioningInBackground)
}

func TestAllowedTopologies(t *testing.T) {
	for name, machine := range map[string]string{"a": "m1", "b": "m2"} {
		w := newWorld(t)
		w.class.AllowedTopologies = zone(name)
		if _, _, err := w.provision(t, ""); err != nil || w.stowage.applied[0] != machine {
			t.Errorf("zone %s: %v, %v", name, w.stowage.applied, err)
		}
	}
	w := newWorld(t)
	w.class.AllowedTopologies = zone("c")
	_, state, err := w.provision(t, "")
	want(t, state, err, controller.ProvisioningFinished)
	w.wantNothing(t)
}

func TestMachineLabels(t *testing.T) {
	w := newWorld(t)
	w.class.Parameters["machine-labels"] = "disk=ssd"
	if _, _, err := w.provision(t, ""); err != nil || w.stowage.applied[0] != "m1" {
		t.Error(w.stowage.applied, err)
	}
}

// A machine that refuses the storage is followed by another one.
func TestNextMachine(t *testing.T) {
	for _, full := range []string{"m1", "m2"} {
		w := newWorld(t)
		w.stowage.refuses = map[string]bool{full: true}
		if _, _, err := w.provision(t, ""); err != nil || len(w.stowage.applied) != 1 || w.stowage.applied[0] == full {
			t.Error(full, w.stowage.applied, err)
		}
	}
}

// A claim that is gone, or another claim with its name, leaves no storage.
func TestDeletedClaim(t *testing.T) {
	for name, change := range map[string]func(*world) error{
		"gone":    func(w *world) error { return w.claims.Delete(w.claim) },
		"another": func(w *world) error { c := newClaim(); c.UID = "other"; return w.claims.Update(c) },
		"deleting": func(w *world) error {
			c := newClaim()
			now := metav1.Now()
			c.DeletionTimestamp = &now
			return w.claims.Update(c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.stowage.outcome = func(s *user.Storage) { s.Status, s.Location = status.Pending, "" }
			_, state, err := w.provision(t, "n1")
			want(t, state, err, controller.ProvisioningInBackground)
			if err := change(w); err != nil {
				t.Fatal(err)
			}
			_, state, err = w.p.Provision(t.Context(), controller.ProvisionOptions{StorageClass: w.class, PVName: "pvc-" + uid, PVC: w.claim})
			want(t, state, err, controller.ProvisioningFinished)
			w.wantNothing(t)
		})
	}
}

// The qualifier leaves claims to others.
func TestShouldProvision(t *testing.T) {
	w := newWorld(t)
	if !w.p.ShouldProvision(t.Context(), w.claim) {
		t.Error("an ordinary claim is left alone")
	}
	group := "example.org"
	w.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Import", Name: "x"}
	if w.p.ShouldProvision(t.Context(), w.claim) {
		t.Error("a populator's claim is not left alone")
	}
	now := metav1.Now()
	w.claim = newClaim()
	w.claim.DeletionTimestamp = &now
	if w.p.ShouldProvision(t.Context(), w.claim) {
		t.Error("a deleted claim is not left alone")
	}
}

// Storage that has a volume is not removed because its claim is refused or deleted.
func TestStorageWithVolumeIsKept(t *testing.T) {
	w := newWorld(t)
	pv, _, err := w.provision(t, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.cluster.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.class.Parameters = map[string]string{"pool": "none"}
	_, state, err := w.provision(t, "n1")
	want(t, state, err, controller.ProvisioningNoChange)
	if len(w.stowage.storage) != 1 {
		t.Errorf("storage: %v", w.stowage.storage)
	}
}
