package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// resources has the resource of each kind in the manifests, and whether it is in a namespace.
var resources = map[string]struct {
	name       string
	namespaced bool
}{
	"Namespace":          {"namespaces", false},
	"ServiceAccount":     {"serviceaccounts", true},
	"ClusterRole":        {"clusterroles", false},
	"ClusterRoleBinding": {"clusterrolebindings", false},
	"Role":               {"roles", true},
	"RoleBinding":        {"rolebindings", true},
	"Deployment":         {"deployments", true},
	"DaemonSet":          {"daemonsets", true},
	"CSIDriver":          {"csidrivers", false},
	"StorageClass":       {"storageclasses", false},
}

// The API server accepts the manifests of the CSI driver.
func TestManifestsOfDriver(t *testing.T) {
	if err := plane.apply(t.Context(), "../deploy/csi", "rbac.yaml", "driver.yaml", "storageclass.yaml"); err != nil {
		t.Error(err)
	}
}

// apply creates what manifests of a directory have. The API server refuses unknown and repeated fields.
func (c *cluster) apply(ctx context.Context, dir string, files ...string) error {
	for _, name := range files {
		if err := c.applyFile(ctx, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (c *cluster) applyFile(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		resource, ok := resources[object.GetKind()]
		if !ok {
			return fmt.Errorf("kind %s is not known to the test", object.GetKind())
		}
		version, err := schema.ParseGroupVersion(object.GetAPIVersion())
		if err != nil {
			return err
		}
		var client dynamic.ResourceInterface = c.dynamic.Resource(version.WithResource(resource.name))
		if resource.namespaced {
			client = c.dynamic.Resource(version.WithResource(resource.name)).Namespace(object.GetNamespace())
		}
		if _, err := client.Create(ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}
