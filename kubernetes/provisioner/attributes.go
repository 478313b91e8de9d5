package provisioner

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider/tmpfs"
)

// checkAttributes has the provider of the request's pool check the attributes that Kubernetes
// interprets. Without any, there is nothing to check: a provider that does not know Kubernetes refuses
// each of them. The error is a refusal.
func (p *Provisioner) checkAttributes(r *request) error {
	if len(r.params.Attributes) == 0 {
		return nil
	}
	known, err := p.registry.StorageProvider(r.params.Provider)
	if errors.Is(err, errors.NotFound) {
		return refuse("pool %s: provider %s takes no parameter %s: leave it out", r.class.pool, r.params.Provider, storage.K8sStorageMedium)
	}
	if err != nil {
		return errors.Annotatef(err, "provider %s", r.params.Provider)
	}
	if err := known.ValidateForK8s(r.params.Attributes); err != nil {
		return refuse("pool %s: %v: leave parameter %s out, or use another pool", r.class.pool, err, storage.K8sStorageMedium)
	}
	// The provider accepts every medium that a directory of a workload can be on. Here the pool decides
	// that, so the parameter can only confirm it.
	if medium := r.params.Attributes[storage.K8sStorageMedium]; medium != storage.K8sStorageMediumMemory || r.params.Provider != tmpfs.ProviderType {
		return refuse("pool %s of provider %s does not have its volumes on medium %v: leave parameter %s out, or use another pool",
			r.class.pool, r.params.Provider, medium, storage.K8sStorageMedium)
	}
	return nil
}
