package main

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/juju/errors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	kubernetesclient "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/kubernetes/internal/connection"
	"github.com/stowage-io/stowage/kubernetes/provisioner"
)

// logger writes the messages of a connection as those of the controller.
type logger struct{}

func (l logger) Infof(format string, args ...any)    { klog.Infof(format, args...) }
func (l logger) Warningf(format string, args ...any) { klog.Warningf(format, args...) }

// serve provisions until the context ends, or leadership is lost.
func serve(ctx context.Context, o *options) error {
	// Everything that serve starts ends with it.
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	stowage, err := o.connect(ctx, &running)
	if err != nil {
		return errors.Trace(err)
	}
	defer stowage.Close()
	cluster, err := o.cluster()
	if err != nil {
		return errors.Trace(err)
	}
	factory := informers.NewSharedInformerFactory(cluster, o.resync)
	claims := factory.Core().V1().PersistentVolumeClaims()
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: cluster.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: o.name})

	p, err := provisioner.New(provisioner.Config{
		Stowage:    stowage,
		Kubernetes: cluster,
		Claims:     claims.Lister(),
		Nodes:      factory.Core().V1().Nodes().Lister(),
		Events:     events,
		MountDir:   o.mountDir,
		Wait:       o.wait,
	})
	if err != nil {
		return errors.Trace(err)
	}
	cleaner := provisioner.NewCleaner(p, claims.Informer())
	library := append(o.controllerOptions(), controller.ClaimsInformer(claims.Informer()))
	ctrl := controller.NewProvisionController(ctx, cluster, o.name, p, library...)

	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), claims.Informer().HasSynced, factory.Core().V1().Nodes().Informer().HasSynced) {
		return nil // the context has ended
	}
	work := func(ctx context.Context) error {
		var workers sync.WaitGroup
		ctrl.ControllerWaitGroup(&workers)
		ctx, cancel := context.WithCancel(ctx)
		defer workers.Wait()
		defer cancel()
		ended := make(chan error, 1)
		workers.Go(func() {
			ended <- cleaner.Run(ctx)
			cancel()
		})
		ctrl.Run(ctx)
		cancel()
		return <-ended
	}
	if !o.leaderElection {
		return work(ctx)
	}
	return o.lead(ctx, cluster, events, work)
}

// connect returns a client of stowage.
func (o *options) connect(ctx context.Context, running *sync.WaitGroup) (*user.Client, error) {
	if o.socket != "" {
		return connection.OpenSocket(o.socket)
	}
	path, err := connection.Path(os.Getenv, o.context)
	if err != nil {
		return nil, errors.Trace(err)
	}
	remote, err := connection.Open(path, logger{})
	if err != nil {
		return nil, errors.Trace(err)
	}
	running.Go(func() { remote.KeepRenewed(ctx) })
	return remote.Client, nil
}

// cluster returns a client of the API server.
func (o *options) cluster() (kubernetesclient.Interface, error) {
	var config *rest.Config
	var err error
	if o.kubeconfig == "" {
		config, err = rest.InClusterConfig()
		err = errors.Annotate(err, "reaching the cluster as a pod: elsewhere, use --kubeconfig")
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
		err = errors.Annotatef(err, "--kubeconfig %s", o.kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = float32(o.kubeQPS), o.kubeBurst
	config.UserAgent = "stowage-provisioner"
	client, err := kubernetesclient.NewForConfig(config)
	return client, errors.Trace(err)
}

// namespace returns the namespace of the lease.
func (o *options) namespace() string {
	if o.leaderNamespace != "" {
		return o.leaderNamespace
	}
	if name := os.Getenv("POD_NAMESPACE"); name != "" {
		return name
	}
	content, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if name := strings.TrimSpace(string(content)); err == nil && name != "" {
		return name
	}
	return corev1.NamespaceDefault
}
