package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"Namespace":                {"namespaces", false},
	"ServiceAccount":           {"serviceaccounts", true},
	"ClusterRole":              {"clusterroles", false},
	"ClusterRoleBinding":       {"clusterrolebindings", false},
	"Role":                     {"roles", true},
	"RoleBinding":              {"rolebindings", true},
	"Service":                  {"services", true},
	"Deployment":               {"deployments", true},
	"DaemonSet":                {"daemonsets", true},
	"StatefulSet":              {"statefulsets", true},
	"CSIDriver":                {"csidrivers", false},
	"StorageClass":             {"storageclasses", false},
	"VolumeSnapshotClass":      {"volumesnapshotclasses", false},
	"CustomResourceDefinition": {"customresourcedefinitions", false},
}

// The API server accepts the manifests of the CSI driver, without a server and with one.
func TestManifestsOfDriver(t *testing.T) {
	defineSnapshots(t)
	for _, dir := range []string{"nodes", "server"} {
		if err := plane.applyDirectory(t.Context(), filepath.Join("../deploy/csi", dir)); err != nil {
			t.Error(err)
		}
	}
}

// defineSnapshots makes the resources of snapshots known to the cluster.
func defineSnapshots(t *testing.T) {
	t.Helper()
	dir := os.Getenv("SIDECARS")
	if dir == "" {
		t.Skip("SIDECARS is not set; run `make kubernetes`")
	}
	files, err := filepath.Glob(filepath.Join(dir, "crd", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no definitions of snapshots: %v", dir, err)
	}
	for _, file := range files {
		if err := plane.applyFile(t.Context(), file); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"} {
		eventually(t, name+" are not known", func() (bool, error) {
			_, err := plane.dynamic.Resource(snapshots.WithResource(name)).List(t.Context(), metav1.ListOptions{})
			return err == nil, nil
		})
	}
}

// apply creates what manifests of a directory have. The API server refuses unknown and repeated fields.
// What exists stays as it is.
func (c *cluster) apply(ctx context.Context, dir string, files ...string) error {
	for _, name := range files {
		if err := c.applyFile(ctx, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// applyDirectory creates what a directory has that kustomize understands, and those which that one names.
func (c *cluster) applyDirectory(ctx context.Context, dir string) error {
	content, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return err
	}
	var settings struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Resources  []string `json:"resources"`
	}
	if err := yaml.UnmarshalStrict(content, &settings); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	for _, name := range settings.Resources {
		apply := c.applyFile
		if filepath.Ext(name) == "" {
			apply = c.applyDirectory
		}
		if err := apply(ctx, filepath.Join(dir, name)); err != nil {
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
		if _, err := client.Create(ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}
