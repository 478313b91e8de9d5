package main

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/juju/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	kubernetesclient "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

// errNotLeader is the error of a process that was the leader. What it has begun ends with it.
const errNotLeader = errors.ConstError("another provisioner may lead, since the lease could not be renewed in time: this one ends, to be started again")

// lead waits until this process is elected, and works until the context ends or it is the leader no
// longer. The lease is released when the work has ended, so that the next leader need not wait.
func (o *options) lead(ctx context.Context, cluster kubernetesclient.Interface, events record.EventRecorder, work func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return errors.Annotate(err, "finding the name of this host")
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, o.namespace(), strings.ReplaceAll(o.name, "/", "-"),
		cluster.CoreV1(), cluster.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID()), EventRecorder: events})
	if err != nil {
		return errors.Annotate(err, "making a lease")
	}
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	term := &term{ended: make(chan error, 1)}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   o.leaseDuration,
		RenewDeadline:   o.renewDeadline,
		RetryPeriod:     o.leaderRetry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				if !term.begin() {
					return
				}
				working, cancel := context.WithCancel(leading)
				defer context.AfterFunc(ctx, cancel)()
				defer cancel()
				term.ended <- work(working)
				stop() // the lease is released only now
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return errors.Annotate(err, "electing a leader")
	}
	defer context.AfterFunc(ctx, func() {
		if term.close() {
			stop()
		}
	})()
	elector.Run(electing)
	if !term.close() {
		err = <-term.ended
	}
	if err == nil && ctx.Err() == nil {
		err = errNotLeader
	}
	return errors.Trace(err)
}

// term is the time in which a process leads.
type term struct {
	ended chan error

	mu             sync.Mutex
	begun, refused bool
}

// begin returns whether the term can begin.
func (t *term) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = !t.refused
	return t.begun
}

// close keeps a term from beginning. It returns false if it has begun already.
func (t *term) close() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused = true
	return !t.begun
}
