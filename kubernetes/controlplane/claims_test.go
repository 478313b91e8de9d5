package controlplane_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const provisionerName = "stowage.io/provisioner"

// provisioning starts a provisioner, which ends with the test. Then nothing may be left.
func provisioning(t *testing.T, flags ...string) *process {
	t.Helper()
	p := provisioner(t, "provisioner", flags...)
	t.Cleanup(func() { wantNothing(t) })
	return p
}

func provisioner(t *testing.T, name string, flags ...string) *process {
	t.Helper()
	args := append([]string{
		"--kubeconfig=" + plane.path("provisioner.kubeconfig"), "--context=test", "--mount-dir=" + store.path("volumes"),
		"--leader-election-namespace=stowage", "--resync-period=5s", "--retry-interval-max=2s", "--save-interval-max=2s", "--kube-api-qps=500", "--kube-api-burst=500",
	}, flags...)
	p, err := start(plane.dir, name, []string{"XDG_CONFIG_HOME=" + store.path("config")}, store.provisioner, args...)
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

// wantNothing checks that claims, volumes, storage, mounts and loop devices are gone.
func wantNothing(t *testing.T) {
	t.Helper()
	volumes, err := plane.client.CoreV1().PersistentVolumes().List(background, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pv := range volumes.Items {
		t.Errorf("volume %s is left: %s", pv.Name, pv.Status.Phase)
	}
	left, err := store.leftovers(background)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left: %s", strings.Join(left, ", "))
	}
}

// newClass makes a StorageClass that is gone after the test.
func newClass(t *testing.T, name string, change func(*storagev1.StorageClass)) {
	t.Helper()
	immediate := storagev1.VolumeBindingImmediate
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisionerName,
		Parameters: map[string]string{"pool": "loop"}, VolumeBindingMode: &immediate,
	}
	if change != nil {
		change(class)
	}
	classes := plane.client.StorageV1().StorageClasses()
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := classes.Delete(background, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func newClaim(t *testing.T, name, class string, change func(*corev1.PersistentVolumeClaim)) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
		},
	}
	if change != nil {
		change(claim)
	}
	if _, err := claims().Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func bound(t *testing.T, count int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d claims are not bound", count), func() (bool, error) {
		all, err := claims().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, ignoreUnavailable(err)
		}
		n := 0
		for _, c := range all.Items {
			if c.Status.Phase == corev1.ClaimBound {
				n++
			}
		}
		return n == count, nil
	})
}

// removeClaims deletes all claims, and waits until they and their volumes are gone.
func removeClaims(t *testing.T) {
	t.Helper()
	eventually(t, "claims are not deleted", func() (bool, error) {
		return claims().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}) == nil, nil
	})
	eventually(t, "claims or volumes are left", func() (bool, error) {
		all, err := claims().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, ignoreUnavailable(err)
		}
		volumes, err := plane.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, ignoreUnavailable(err)
		}
		return len(all.Items)+len(volumes.Items) == 0, nil
	})
}

// volumeOf returns the volume of a bound claim.
func volumeOf(t *testing.T, name string) *corev1.PersistentVolume {
	t.Helper()
	claim, err := claims().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv, err := plane.client.CoreV1().PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

// event waits for an event about an object that has the text.
func event(t *testing.T, object, reason, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has no event %s with %q", object, reason, text), func() (bool, error) {
		all, err := plane.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(all.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == object && e.Reason == reason && strings.Contains(e.Message, text)
		}), nil
	})
}

func TestHundredClaims(t *testing.T) {
	const count = 100
	provisioning(t)
	newClass(t, "loop", nil)
	before, err := plane.requests()
	if err != nil {
		before = nil // nobody has asked yet
	}
	began := time.Now()
	for i := range count {
		newClaim(t, fmt.Sprintf("claim-%d", i), "loop", nil)
	}
	bound(t, count)
	t.Logf("%d claims bound in %.1f s", count, time.Since(began).Seconds())
	on := map[string]int{}
	all, err := store.client.Storage(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		on[s.Attachments[0].Machine]++
	}
	if len(all) != count || len(on) != 2 {
		t.Errorf("%d storage instances, by machine: %v", len(all), on)
	}
	report(t, before)
	began = time.Now()
	removeClaims(t)
	t.Logf("%d claims deleted in %.1f s; machines: %v", count, time.Since(began).Seconds(), on)
	report(t, before)
}

// report logs the requests of the provisioner to the API server.
func report(t *testing.T, before map[string]int) {
	t.Helper()
	after, err := plane.requests()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if n := after[name] - before[name]; n > 0 {
			sum += n
			lines = append(lines, fmt.Sprintf("%d %s", n, name))
		}
	}
	t.Logf("%d requests of the provisioner: %s", sum, strings.Join(lines, ", "))
}

// A claim of a class with delayed binding waits for the scheduler, and goes where that says.
func TestDelayedBinding(t *testing.T) {
	provisioning(t)
	newClaim(t, "delayed", "stowage", nil) // the class of deploy/
	newClass(t, "loop", nil)
	newClaim(t, "immediate", "loop", nil)
	bound(t, 1)
	selectNode(t, "delayed", "node-2")
	bound(t, 2)
	pv := volumeOf(t, "delayed")
	term := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if term.Key != corev1.LabelHostname || !slices.Equal(term.Values, []string{"node-2"}) || *pv.Spec.Local.FSType != "ext4" {
		t.Error(pv.Spec)
	}
	removeClaims(t)
}

// selectNode does what the scheduler does for the first pod of a claim.
func selectNode(t *testing.T, claim, node string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": %q}}}`, node)
	if _, err := claims().Patch(t.Context(), claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A node that cannot have the storage is given back to the scheduler.
func TestReschedule(t *testing.T) {
	provisioning(t)
	newClaim(t, "picky", "stowage", nil)
	if _, err := store.client.DrainMachine(t.Context(), drain("node-1")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.undrain(); err != nil {
			t.Error(err)
		}
	}()
	selectNode(t, "picky", "node-1")
	eventually(t, "the selected node stays", func() (bool, error) {
		claim, err := claims().Get(t.Context(), "picky", metav1.GetOptions{})
		return err == nil && claim.Annotations["volume.kubernetes.io/selected-node"] == "", err
	})
	event(t, "picky", "ProvisioningFailed", "machine node-1 is drained")
	selectNode(t, "picky", "node-2")
	bound(t, 1)
	removeClaims(t)
}

func TestRefusedClaims(t *testing.T) {
	provisioning(t)
	newClass(t, "loop", nil)
	newClass(t, "unknown", func(c *storagev1.StorageClass) { c.Parameters["size"] = "1G" })
	newClass(t, "nopool", func(c *storagev1.StorageClass) { c.Parameters["pool"] = "none" })
	newClass(t, "options", func(c *storagev1.StorageClass) { c.MountOptions = []string{"suid=maybe"} })
	newClaim(t, "many", "loop", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	newClaim(t, "readers", "loop", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	})
	newClaim(t, "selective", "loop", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
	})
	newClaim(t, "unknown", "unknown", nil)
	newClaim(t, "nopool", "nopool", nil)
	newClaim(t, "options", "options", nil)
	newClaim(t, "device", "loop", func(c *corev1.PersistentVolumeClaim) {
		mode := corev1.PersistentVolumeBlock
		c.Spec.VolumeMode = &mode
	})
	for name, text := range map[string]string{
		"many": "access mode ReadWriteMany is not supported", "readers": "access mode ReadOnlyMany is not supported",
		"selective": "does not match the labels", "unknown": "parameter size: it is not known", "nopool": `pool "none" is not known`,
		"options": `"suid" is not an option for mounting`, "device": "allow-device-names",
	} {
		event(t, name, "ProvisioningFailed", text)
	}
	removeClaims(t)
}

func TestBlockClaims(t *testing.T) {
	provisioning(t)
	newClass(t, "devices", func(c *storagev1.StorageClass) { c.Parameters["allow-device-names"] = "true" })
	newClaim(t, "device", "devices", func(c *corev1.PersistentVolumeClaim) {
		mode := corev1.PersistentVolumeBlock
		c.Spec.VolumeMode = &mode
	})
	bound(t, 1)
	if pv := volumeOf(t, "device"); *pv.Spec.VolumeMode != corev1.PersistentVolumeBlock || !strings.HasPrefix(pv.Spec.Local.Path, "/dev/") {
		t.Error(pv.Spec)
	}
	removeClaims(t)
}

// The volume and the storage of a class with Retain stay until they are deleted by hand.
func TestRetain(t *testing.T) {
	provisioning(t)
	retain := corev1.PersistentVolumeReclaimRetain
	newClass(t, "retain", func(c *storagev1.StorageClass) { c.ReclaimPolicy = &retain })
	newClaim(t, "kept", "retain", nil)
	bound(t, 1)
	pv := volumeOf(t, "kept")
	if err := claims().Delete(t.Context(), "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	phase(t, pv.Name, corev1.VolumeReleased)
	if _, err := store.client.Storage(t.Context(), []string{pv.Name}); err != nil {
		t.Errorf("the storage is gone: %v", err)
	}
	patch := `{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}`
	if _, err := plane.client.CoreV1().PersistentVolumes().Patch(t.Context(), pv.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	removeClaims(t)
}

func phase(t *testing.T, volume string, wanted corev1.PersistentVolumePhase) {
	t.Helper()
	eventually(t, fmt.Sprintf("volume %s is not %s", volume, wanted), func() (bool, error) {
		pv, err := plane.client.CoreV1().PersistentVolumes().Get(t.Context(), volume, metav1.GetOptions{})
		return err == nil && pv.Status.Phase == wanted, err
	})
}

// A volume that a pod uses is held, although its claim is gone, until the pod is.
func TestGuard(t *testing.T) {
	provisioning(t)
	newClass(t, "loop", nil)
	newClaim(t, "used", "loop", nil)
	bound(t, 1)
	pv := volumeOf(t, "used")
	pods := plane.client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{
			NodeName:   "node-1",
			Containers: []corev1.Container{{Name: "web", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "used"},
			}}},
		},
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := claims().Delete(t.Context(), "used", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// What protects the claim is taken away by force.
	if _, err := claims().Patch(t.Context(), "used", types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	phase(t, pv.Name, corev1.VolumeReleased)
	event(t, pv.Name, "VolumeDeletionHeld", "pod default/web uses it")
	if _, err := store.client.Storage(t.Context(), []string{pv.Name}); err != nil {
		t.Errorf("the storage is gone: %v", err)
	}
	now := int64(0)
	if err := pods.Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	removeClaims(t)
}

// A claim that is deleted while its agent is stopped stays until its storage is gone. The provisioner
// that began it was killed.
func TestDeletedInProgress(t *testing.T) {
	if err := store.agents["node-1"].stop(); err != nil {
		t.Fatal(err)
	}
	first := provisioner(t, "provisioner")
	newClass(t, "loop", func(c *storagev1.StorageClass) { c.AllowedTopologies = zone("node-1") })
	newClaim(t, "brief", "loop", nil)
	eventually(t, "nothing was begun", func() (bool, error) {
		all, err := store.client.Storage(t.Context(), nil)
		return len(all) == 1, err
	})
	first.kill()
	if err := claims().Delete(t.Context(), "brief", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	provisioning(t)
	if _, err := claims().Get(t.Context(), "brief", metav1.GetOptions{}); err != nil {
		t.Errorf("the claim is gone before its storage: %v", err)
	}
	if err := store.startAgent("node-1"); err != nil {
		t.Fatal(err)
	}
	if err := store.up(t.Context(), "node-1"); err != nil {
		t.Fatal(err)
	}
	removeClaims(t)
}

// Of two provisioners one works. If it is killed, the other one goes on, and makes nothing twice.
func TestLeaderElection(t *testing.T) {
	const count = 30
	flags := []string{"--leader-election-lease-duration=4s", "--leader-election-renew-deadline=3s", "--leader-election-retry-period=500ms"}
	first := provisioner(t, "provisioner-1", flags...)
	newClass(t, "loop", nil)
	newClaim(t, "claim-0", "loop", nil)
	bound(t, 1)
	provisioner(t, "provisioner-2", flags...)
	for i := range count - 1 {
		newClaim(t, fmt.Sprintf("claim-%d", i+1), "loop", nil)
	}
	eventually(t, "nothing more was begun", func() (bool, error) {
		all, err := store.client.Storage(t.Context(), nil)
		return len(all) > 3, err
	})
	first.kill()
	began := time.Now()
	bound(t, count)
	t.Logf("the other provisioner had bound the remaining claims %.1f s after kill -9 of the leader", time.Since(began).Seconds())
	all, err := store.client.Storage(t.Context(), nil)
	if err != nil || len(all) != count {
		t.Errorf("%d storage instances for %d claims, %v", len(all), count, err)
	}
	removeClaims(t)
	wantNothing(t)
}

// The provisioner goes on when the API server was killed and started again.
func TestAPIServerRestart(t *testing.T) {
	const count = 20
	provisioning(t, "--leader-election-lease-duration=60s", "--leader-election-renew-deadline=50s")
	newClass(t, "loop", nil)
	for i := range count {
		newClaim(t, fmt.Sprintf("claim-%d", i), "loop", nil)
	}
	began := time.Now()
	if err := plane.restartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("API server killed, and ready again after %.1f s", time.Since(began).Seconds())
	bound(t, count)
	removeClaims(t)
}

// A provisioner whose watches have expired, since what they would go on from is compacted, lists
// everything again.
func TestExpiredWatch(t *testing.T) {
	p := provisioning(t, "--leader-election-lease-duration=60s", "--leader-election-renew-deadline=50s")
	newClass(t, "loop", nil)
	newClaim(t, "before", "loop", nil)
	bound(t, 1)
	p.signal(syscall.SIGSTOP)
	resumed := false
	defer func() {
		if !resumed {
			p.signal(syscall.SIGCONT)
		}
	}()
	newClaim(t, "after", "loop", nil)
	if err := claims().Delete(t.Context(), "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := plane.compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := plane.restartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGCONT)
	resumed = true
	bound(t, 1)
	removeClaims(t)
}

// An API server that answers with 429 delays claims, and loses none.
func TestTooManyRequests(t *testing.T) {
	const count = 20
	newClass(t, "loop", nil)
	if err := plane.restartAPI(t.Context(), "--enable-priority-and-fairness=false", "--max-requests-inflight=1", "--max-mutating-requests-inflight=1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.restartAPI(background); err != nil {
			t.Error(err)
		}
		wantNothing(t)
	})
	provisioner(t, "provisioner", "--threads=16", "--leader-election-lease-duration=60s", "--leader-election-renew-deadline=50s")
	before, err := plane.requests()
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		newClaim(t, fmt.Sprintf("claim-%d", i), "loop", nil)
	}
	bound(t, count)
	removeClaims(t)
	after, err := plane.requests()
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for name, n := range after {
		if strings.HasSuffix(name, " 429") {
			refused += n - before[name]
		}
	}
	t.Logf("%d requests of the provisioner were answered with 429", refused)
	if refused == 0 {
		t.Error("no request was answered with 429")
	}
}
