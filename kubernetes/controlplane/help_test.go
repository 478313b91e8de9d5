package controlplane_test

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/net"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/stowage-io/stowage/api/user"
)

// background is for cleaning up, when the context of a test has ended.
var background = context.Background()

func claims() typedcorev1.PersistentVolumeClaimInterface {
	return plane.client.CoreV1().PersistentVolumeClaims(corev1.NamespaceDefault)
}

// ignoreUnavailable ignores the errors of an API server that is stopped, or refuses requests for now.
func ignoreUnavailable(err error) error {
	if net.IsConnectionRefused(err) || net.IsConnectionReset(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) {
		return nil
	}
	return err
}

func zone(name string) []corev1.TopologySelectorTerm {
	return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{name}}}}}
}

func drain(machine string) user.MachineArgs { return user.MachineArgs{Machine: machine} }

func (s *installation) undrain() error { return s.client.UndrainMachine(background, drain("node-1")) }
