package provisioner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/juju/errors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// cleanerThreads is how many claims a Cleaner works on at a time.
const cleanerThreads = 4

// Cleaner takes [Finalizer] away from claims that have their volume. From claims that are deleted
// without one, or that have got another volume, it does so when what was begun for them is gone.
type Cleaner struct {
	provisioner *Provisioner
	informer    cache.SharedIndexInformer
	queue       workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// NewCleaner returns a Cleaner that learns of claims from the informer. Run it while the Provisioner
// is in use.
func NewCleaner(p *Provisioner, claims cache.SharedIndexInformer) *Cleaner {
	return &Cleaner{
		provisioner: p,
		informer:    claims,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](100*time.Millisecond, time.Minute)),
	}
}

// Run works until the context ends. The informer must be running.
func (c *Cleaner) Run(ctx context.Context) error {
	registration, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.enqueue,
		UpdateFunc: func(_, claim any) { c.enqueue(claim) },
	})
	if err != nil {
		return errors.Annotate(err, "watching claims")
	}
	defer func() { _ = c.informer.RemoveEventHandler(registration) }() // it fails for a registration of another informer
	var threads sync.WaitGroup
	for range cleanerThreads {
		threads.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	threads.Wait()
	return nil
}

func (c *Cleaner) enqueue(obj any) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if ok && isUnclean(claim) {
		c.queue.Add(cache.MetaObjectToName(claim))
	}
}

// isUnclean returns whether a claim has the finalizer, and is not being provisioned.
func isUnclean(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, Finalizer) && (claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "")
}

func (c *Cleaner) next(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	err := c.clean(ctx, key)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errBusy):
		c.queue.AddAfter(key, time.Second)
	case err != nil:
		klog.FromContext(ctx).Error(err, "Cleaning up a claim", "PVC", klog.KRef(key.Namespace, key.Name))
		c.queue.AddRateLimited(key)
	default:
		c.queue.Forget(key)
	}
	return true
}

func (c *Cleaner) clean(ctx context.Context, key cache.ObjectName) error {
	p := c.provisioner
	claim, err := p.config.Claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return errors.Trace(err)
	}
	if !isUnclean(claim) {
		return nil
	}
	unlock, ok := p.lock(claim.UID)
	if !ok {
		return errBusy
	}
	defer unlock()
	name := storageName(claim.UID)
	has := claim.Spec.VolumeName == name
	if !has {
		if has, err = p.hasVolume(ctx, name); err != nil {
			return errors.Annotatef(err, "looking for volume %s", name)
		}
	}
	if !has {
		gone, err := p.storage.remove(ctx, name)
		if err := orNotGone(err, gone); err != nil {
			return errors.Annotatef(err, "removing storage %s", name)
		}
	}
	return errors.Annotatef(p.removeFinalizer(ctx, claim), "removing finalizer %s", Finalizer)
}
