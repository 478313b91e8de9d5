package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The control plane and the stowage that the tests share.
var (
	plane *cluster
	store *installation
)

// TestMain starts a control plane and stowage. KUBERNETES_BIN is the directory with kube-apiserver and
// kube-controller-manager, which `make kubernetes` builds; without it there are no tests.
func TestMain(m *testing.M) {
	bin := os.Getenv("KUBERNETES_BIN")
	if bin == "" {
		fmt.Println("skipped: KUBERNETES_BIN is not set; run `make kubernetes`")
		return
	}
	code, err := runAll(m, bin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M, bin string) (code int, err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	dir, err := os.MkdirTemp("", "k8s")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, name := range []string{"cluster", "stowage"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return 1, err
		}
	}
	store, err = startStowage(ctx, filepath.Join(dir, "stowage"))
	defer func() { err = errors.Join(err, store.stop()) }()
	if err != nil {
		return 1, err
	}
	plane, err = startCluster(ctx, filepath.Join(dir, "cluster"), bin)
	defer func() { err = errors.Join(err, plane.stop()) }()
	if err != nil {
		return 1, err
	}
	if err := plane.apply(ctx, "../deploy", "rbac.yaml", "deployment.yaml", "storageclass.yaml"); err != nil {
		return 1, err
	}
	for _, name := range machines {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "zone": name}}}
		if _, err := plane.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}
