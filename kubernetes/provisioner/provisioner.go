// Package provisioner makes the storage that claims of a Kubernetes cluster ask for with stowage, and
// removes it. [Provisioner] is the part of a controller of sig-storage-lib-external-provisioner that
// knows stowage, and [Cleaner] removes what was begun for claims that are deleted too early. Use
// package api/user for storage of anything else.
//
// # The life of a claim
//
// The storage of a claim is named pvc-UID, by the UID of the claim. Before it is added to stowage, the
// claim gets [Finalizer], so that it cannot disappear unnoticed, not even while no provisioner
// runs. Then the storage is added, with the machine that it is to be on, and Provision waits until it
// is attached. If that takes longer than [Config].Wait, the controller asks again, and Provision
// finds by the name what was begun. The Cleaner takes the finalizer away when the claim has its
// volume, or when what was begun is gone.
//
// # Concurrency
//
// The methods may be called concurrently, for different claims. Only one Provisioner and one Cleaner
// may work for a cluster and a provisioner's name at a time: the command elects a leader.
package provisioner

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubernetesclient "k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Stowage is the part of [user.Client] that is used.
type Stowage interface {
	Pools(context.Context) ([]user.Pool, error)
	Machines(context.Context) ([]user.Machine, error)
	Storage(ctx context.Context, names []string) ([]user.Storage, error)
	Apply(context.Context, user.ApplyArgs) (user.ApplyResult, error)
	Attach(context.Context, user.AttachArgs) (user.ChangesResult, error)
	RemoveStorage(context.Context, user.RemoveArgs) error
	Watch(ctx context.Context, names []string, each func(user.Event) error) error
}

// Config configures a [Provisioner].
type Config struct {
	// Stowage makes the storage. Required.
	Stowage Stowage
	// Kubernetes is the cluster. Required.
	Kubernetes kubernetesclient.Interface
	// Claims and Nodes read the cluster's claims and nodes from a cache. Required.
	Claims corelisters.PersistentVolumeClaimLister
	Nodes  corelisters.NodeLister
	// Events gets what users should know and the controller does not record. Required.
	Events record.EventRecorder
	// MountDir is the absolute path of the directory on each machine in which filesystems are mounted.
	// Required.
	MountDir string
	// Wait is how long one request waits for storage to be attached, or to be gone. Zero means
	// [DefaultWait].
	Wait time.Duration
}

// DefaultWait is the value of Config.Wait if it is zero.
const DefaultWait = 15 * time.Second

// Validate returns an error that satisfies errors.IsNotValid and names the invalid field, or nil.
func (c Config) Validate() error {
	switch {
	case c.Stowage == nil:
		return errors.NotValidf("nil Stowage")
	case c.Kubernetes == nil:
		return errors.NotValidf("nil Kubernetes")
	case c.Claims == nil:
		return errors.NotValidf("nil Claims")
	case c.Nodes == nil:
		return errors.NotValidf("nil Nodes")
	case c.Events == nil:
		return errors.NotValidf("nil Events")
	case !isMountDir(c.MountDir):
		return errors.NotValidf("MountDir %q: want an absolute path in its shortest form, not /", c.MountDir)
	case c.Wait < 0:
		return errors.NotValidf("negative Wait")
	}
	return nil
}

// Provisioner makes and removes storage for the controller.
type Provisioner struct {
	config   Config
	storage  *storageClient
	registry storage.ProviderRegistry
	// busy has the UIDs of the claims that are being provisioned or cleaned up.
	busy sync.Map
}

var (
	_ controller.Provisioner      = (*Provisioner)(nil)
	_ controller.BlockProvisioner = (*Provisioner)(nil)
	_ controller.Qualifier        = (*Provisioner)(nil)
	_ controller.DeletionGuard    = (*Provisioner)(nil)
)

// New returns a Provisioner.
func New(config Config) (*Provisioner, error) {
	if err := config.Validate(); err != nil {
		return nil, errors.Trace(err)
	}
	if config.Wait == 0 {
		config.Wait = DefaultWait
	}
	return &Provisioner{
		config:   config,
		storage:  newStorageClient(config.Stowage, config.Wait),
		registry: provider.CommonStorageProviders(),
	}, nil
}

// SupportsBlock implements controller.BlockProvisioner.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// ShouldProvision implements controller.Qualifier. Claims that are being deleted are the Cleaner's,
// and those with a data source of another kind than those of Kubernetes are that of its populator.
func (p *Provisioner) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp == nil && !hasPopulator(claim)
}

func hasPopulator(claim *corev1.PersistentVolumeClaim) bool {
	source := claim.Spec.DataSourceRef
	if source == nil || source.APIGroup == nil || *source.APIGroup == "" {
		return false
	}
	return *source.APIGroup != "snapshot.storage.k8s.io"
}

// errBusy is the error for a claim that another goroutine works on.
var errBusy = errors.New("the claim is being cleaned up: it is tried again")

// lock makes the caller the only one to work on a claim, unless another one does.
func (p *Provisioner) lock(uid types.UID) (unlock func(), ok bool) {
	if _, taken := p.busy.LoadOrStore(uid, nil); taken {
		return nil, false
	}
	return func() { p.busy.Delete(uid) }, true
}

// Provision implements controller.Provisioner. It adds the storage unless that was done before, and
// waits until it is attached.
func (p *Provisioner) Provision(ctx context.Context, options controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	claim := options.PVC
	unlock, ok := p.lock(claim.UID)
	if !ok {
		return nil, controller.ProvisioningNoChange, errBusy
	}
	defer unlock()
	r, err := newRequest(options, p.config.MountDir)
	if err != nil {
		return p.undo(ctx, storageName(claim.UID), controller.ProvisioningFinished, err)
	}
	current, err := p.config.Claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
	switch {
	case apierrors.IsNotFound(err), err == nil && (current.UID != claim.UID || current.DeletionTimestamp != nil):
		return p.undo(ctx, r.params.StorageName, controller.ProvisioningFinished, errors.Errorf("claim %s/%s was deleted", claim.Namespace, claim.Name))
	case err != nil:
		return nil, controller.ProvisioningNoChange, errors.Annotatef(err, "reading claim %s/%s", claim.Namespace, claim.Name)
	}
	r.claim = current
	return p.provision(ctx, r)
}

// failed is the state for a request that has made nothing and cannot be met now.
func (r *request) failed() controller.ProvisioningState {
	if r.node != "" {
		return controller.ProvisioningReschedule
	}
	return controller.ProvisioningFinished
}

func (p *Provisioner) provision(ctx context.Context, r *request) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	name := r.params.StorageName
	found, err := p.storage.find(ctx, name)
	if err != nil {
		return nil, controller.ProvisioningNoChange, err
	}
	if err := p.readPool(ctx, r); err != nil {
		return p.undoUnlessUnknown(ctx, name, err)
	}
	machines, err := p.config.Stowage.Machines(ctx)
	if err != nil {
		return nil, controller.ProvisioningNoChange, errors.Annotate(err, "listing the machines of stowage")
	}
	places, err := p.placesOf(r, machines)
	if err != nil {
		return p.undo(ctx, name, r.failed(), err)
	}
	switch {
	case found == nil:
	case found.Life != life.Alive:
		// An earlier request, or a user, removes it.
		gone, err := p.storage.awaitGone(ctx, name)
		if err == nil && gone {
			return nil, r.failed(), errors.Errorf("storage %s was removed: it is made again", name)
		}
		return nil, controller.ProvisioningInBackground, errors.Annotatef(orNotGone(err, gone), "removing storage %s", name)
	case len(found.Attachments) == 0:
		if _, err := p.config.Stowage.Attach(ctx, user.AttachArgs{Names: []string{name}}); err != nil {
			return nil, controller.ProvisioningInBackground, errors.Annotatef(err, "attaching storage %s", name)
		}
	default:
		if _, ok := placeOn(found.Attachments[0].Machine, places); !ok {
			return p.undo(ctx, name, r.failed(), errors.Errorf("storage %s was begun on machine %s, where the claim cannot have it: it is made again",
				name, found.Attachments[0].Machine))
		}
	}
	if found == nil {
		if state, err := p.add(ctx, r, places); err != nil {
			return nil, state, err
		}
	}
	return p.finish(ctx, r, places)
}

// readPool reads the provider of the class's pool, and has it check the class's attributes. The error
// is a refusal, unless the pools are not known.
func (p *Provisioner) readPool(ctx context.Context, r *request) error {
	pools, err := p.config.Stowage.Pools(ctx)
	if err != nil {
		return errors.Annotate(err, "listing the pools of stowage")
	}
	i := slices.IndexFunc(pools, func(pool user.Pool) bool { return pool.Name == r.class.pool })
	if i < 0 {
		return refuse("pool %q is not known to stowage: `stowage pools` lists the pools", r.class.pool)
	}
	r.params.Provider = storage.ProviderType(pools[i].Provider)
	return p.checkAttributes(r)
}

// add adds the storage to stowage, in the best place that does not refuse it.
func (p *Provisioner) add(ctx context.Context, r *request, places []place) (controller.ProvisioningState, error) {
	able, err := choose(r, places)
	if err != nil {
		return r.failed(), err
	}
	file, err := r.file(able[0].machine.Name)
	if err != nil {
		return controller.ProvisioningFinished, err
	}
	if err := p.addFinalizer(ctx, r.claim); err != nil {
		return controller.ProvisioningFinished, errors.Annotatef(err, "adding finalizer %s to claim %s/%s", Finalizer, r.claim.Namespace, r.claim.Name)
	}
	_, err = p.config.Stowage.Apply(ctx, file)
	for _, next := range able[1:min(len(able), 3)] {
		if !errors.Is(err, errors.NotValid) {
			break
		}
		if file, err = r.file(next.machine.Name); err == nil {
			_, err = p.config.Stowage.Apply(ctx, file)
		}
	}
	switch {
	case err == nil:
		return controller.ProvisioningInBackground, nil
	case isRefused(err):
		return controller.ProvisioningFinished, errors.Annotatef(err, "adding storage")
	}
	return controller.ProvisioningInBackground, errors.Annotatef(err, "adding storage %s", r.params.StorageName)
}

// finish waits until the storage is attached, and returns its volume.
func (p *Provisioner) finish(ctx context.Context, r *request, places []place) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	name := r.params.StorageName
	s, err := p.storage.awaitAttached(ctx, name)
	switch {
	case err != nil:
		return nil, controller.ProvisioningInBackground, errors.Annotatef(err, "waiting for storage %s", name)
	case s == nil:
		return nil, controller.ProvisioningInBackground, errors.Errorf("storage %s is gone: it is made again", name)
	case s.Status == status.Error && r.node != "":
		return p.undo(ctx, name, controller.ProvisioningReschedule, errors.Errorf("storage %s: %s", name, s.Message))
	case !isAttached(*s):
		return nil, controller.ProvisioningInBackground, errors.Errorf("storage %s is %s: %s", name, s.Status, s.Message)
	case r.isBlock() && !isLasting(s.Location) && !r.class.allowDeviceNames:
		return p.undo(ctx, name, controller.ProvisioningFinished, refuse("pool %s has devices such as %s, whose names can belong to others after a restart of the machine: use another pool, or set parameter %s of the class to true",
			r.class.pool, s.Location, parameterAllowDeviceNames))
	}
	at, ok := placeOn(s.Attachments[0].Machine, places)
	if !ok {
		return nil, controller.ProvisioningInBackground, errors.Errorf("storage %s is on machine %s, where the claim cannot have it", name, s.Attachments[0].Machine)
	}
	pv, err := volume(r, storage.KubernetesFilesystemInfo{
		MountPoint: s.Location, FilesystemId: s.Filesystem, Pool: s.Pool, Size: s.SizeMiB,
	}, at)
	if err != nil {
		return nil, controller.ProvisioningInBackground, errors.Trace(err)
	}
	return pv, controller.ProvisioningFinished, nil
}

// undo removes what was begun, and returns the state and the cause once it is gone. Storage that has a
// volume is not removed: the controller, whose cache may be older, would not have asked.
func (p *Provisioner) undo(ctx context.Context, name string, state controller.ProvisioningState, cause error) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	has, err := p.hasVolume(ctx, name)
	if err == nil && has {
		err = errors.New("it has a volume")
	}
	var gone bool
	if err == nil {
		gone, err = p.storage.remove(ctx, name)
	}
	switch {
	case err != nil:
		return nil, controller.ProvisioningNoChange, errors.Annotatef(err, "%v; removing storage %s", cause, name)
	case !gone:
		return nil, controller.ProvisioningInBackground, errors.Errorf("%v; storage %s is being removed", cause, name)
	}
	return nil, state, cause
}

// undoUnlessUnknown is undo for a refusal; other errors change nothing.
func (p *Provisioner) undoUnlessUnknown(ctx context.Context, name string, cause error) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	var refused *refusal
	if !errors.As(cause, &refused) {
		return nil, controller.ProvisioningNoChange, cause
	}
	return p.undo(ctx, name, controller.ProvisioningFinished, cause)
}

// isRefused returns whether stowage has answered that it does not make a change.
func isRefused(err error) bool {
	for _, kind := range []errors.ConstError{errors.NotValid, errors.NotFound, errors.AlreadyExists, errors.Unauthorized, errors.Forbidden, errors.NotSupported} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// hasVolume returns whether there is a volume of the name, by which its storage is removed.
func (p *Provisioner) hasVolume(ctx context.Context, name string) (bool, error) {
	_, err := p.config.Kubernetes.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Finalizer keeps a claim from disappearing while storage that was begun for it has no volume.
const Finalizer = "stowage.io/provisioning"

func (p *Provisioner) addFinalizer(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if slices.Contains(claim.Finalizers, Finalizer) {
		return nil
	}
	return p.patchFinalizers(ctx, claim, map[string]any{"finalizers": []string{Finalizer}})
}

func (p *Provisioner) removeFinalizer(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	err := p.patchFinalizers(ctx, claim, map[string]any{"$deleteFromPrimitiveList/finalizers": []string{Finalizer}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // the claim is gone, or another one has its name
		return nil
	}
	return err
}

// patchFinalizers changes the metadata of the claim, and of no other one with its name.
func (p *Provisioner) patchFinalizers(ctx context.Context, claim *corev1.PersistentVolumeClaim, metadata map[string]any) error {
	metadata["uid"] = claim.UID
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return errors.Trace(err)
	}
	_, err = p.config.Kubernetes.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, patchOptions)
	return err
}
