package main

import (
	"flag"
	"net"
	"os"
	"path"
	"strings"
	"time"

	"github.com/juju/errors"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/stowage-io/stowage/kubernetes/provisioner"
)

// options are what the flags say.
type options struct {
	name            string
	additionalNames []string

	kubeconfig string
	kubeQPS    float64
	kubeBurst  int

	context  string
	socket   string
	mountDir string
	wait     time.Duration

	threads            int
	resync             time.Duration
	provisionThreshold int
	deleteThreshold    int
	provisionTimeout   time.Duration
	deletionTimeout    time.Duration
	addFinalizer       bool

	retryStart      time.Duration
	retryMax        time.Duration
	exponential     bool
	rateQPS         float64
	rateBurst       int
	saveStart       time.Duration
	saveMax         time.Duration
	metricsAddress  string
	metricsPort     int
	metricsPath     string
	leaderElection  bool
	leaderNamespace string
	leaseDuration   time.Duration
	renewDeadline   time.Duration
	leaderRetry     time.Duration
}

// flagsOf returns the flags that set the options.
func flagsOf(o *options) *flag.FlagSet {
	f := flag.NewFlagSet("stowage-provisioner", flag.ContinueOnError)
	f.StringVar(&o.name, "name", "stowage.io/provisioner", "name of the provisioner, as StorageClasses have it in provisioner")
	f.Func("additional-names", "further names of the provisioner, separated by commas", func(value string) error {
		o.additionalNames = strings.Split(value, ",")
		return nil
	})

	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the cluster; empty: that of the pod's service account")
	f.Float64Var(&o.kubeQPS, "kube-api-qps", 50, "most requests to the API server in a second, on average")
	f.IntVar(&o.kubeBurst, "kube-api-burst", 100, "most requests to the API server at once")

	f.StringVar(&o.context, "context", os.Getenv("STOWAGE_CONTEXT"), "context of stowage, which `stowage login` makes; empty: the current one")
	f.StringVar(&o.socket, "socket", "", "socket of a stowage server or agent on this host, instead of a context")
	f.StringVar(&o.mountDir, "mount-dir", "/var/lib/stowage-volumes", "directory on each machine in which filesystems are mounted")
	f.DurationVar(&o.wait, "wait", provisioner.DefaultWait, "how long a request waits for storage to be attached, or to be gone, before it is tried again")

	f.IntVar(&o.threads, "threads", controller.DefaultThreadiness, "how many claims, and how many volumes, are worked on at a time")
	f.DurationVar(&o.resync, "resync-period", controller.DefaultResyncPeriod, "how often all claims and volumes are looked at again")
	f.IntVar(&o.provisionThreshold, "failed-provision-threshold", controller.DefaultFailedProvisionThreshold, "after how many failures a claim is left alone until it changes or the next resync; 0: never")
	f.IntVar(&o.deleteThreshold, "failed-delete-threshold", controller.DefaultFailedDeleteThreshold, "after how many failures a volume is left alone until it changes or the next resync; 0: never")
	f.DurationVar(&o.provisionTimeout, "provision-timeout", 0, "how long one attempt for a claim may take; 0: any time")
	f.DurationVar(&o.deletionTimeout, "deletion-timeout", 0, "how long one attempt to delete a volume may take; 0: any time")
	f.BoolVar(&o.addFinalizer, "add-finalizer", false, "keep volumes with a finalizer until their storage is gone")

	f.DurationVar(&o.retryStart, "retry-interval-start", time.Second, "delay after the first failure for a claim or a volume")
	f.DurationVar(&o.retryMax, "retry-interval-max", controller.DefaultRetryIntervalMax, "longest delay after failures")
	f.BoolVar(&o.exponential, "exponential-backoff", controller.DefaultExponentialBackOffOnError, "double the delay with each failure; otherwise it is always that of --retry-interval-start")
	f.Float64Var(&o.rateQPS, "retry-qps", 10, "most retries in a second, on average")
	f.IntVar(&o.rateBurst, "retry-burst", 100, "most retries at once")
	f.DurationVar(&o.saveStart, "save-interval-start", time.Second, "delay after the API server has refused a volume for the first time; storage is kept, and saving goes on until it succeeds")
	f.DurationVar(&o.saveMax, "save-interval-max", 5*time.Minute, "longest delay between two attempts to save a volume")

	f.StringVar(&o.metricsAddress, "metrics-address", controller.DefaultMetricsAddress, "IP address on which metrics are served")
	f.IntVar(&o.metricsPort, "metrics-port", controller.DefaultMetricsPort, "port on which metrics are served; 0: none")
	f.StringVar(&o.metricsPath, "metrics-path", controller.DefaultMetricsPath, "path at which metrics are served")

	f.BoolVar(&o.leaderElection, "leader-election", controller.DefaultLeaderElection, "work only while elected among several provisioners of the same name")
	f.StringVar(&o.leaderNamespace, "leader-election-namespace", "", "namespace of the lease; empty: that of the pod")
	f.DurationVar(&o.leaseDuration, "leader-election-lease-duration", controller.DefaultLeaseDuration, "how long others wait after a leader has stopped renewing")
	f.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", controller.DefaultRenewDeadline, "how long a leader tries to renew before it ends")
	f.DurationVar(&o.leaderRetry, "leader-election-retry-period", controller.DefaultRetryPeriod, "time between two attempts to lead or to renew")
	return f
}

// validate returns an error that names the flag and the remedy.
func (o *options) validate() error {
	for _, name := range append([]string{o.name}, o.additionalNames...) {
		if found := validation.IsQualifiedName(name); len(found) > 0 {
			return errors.NotValidf("--name or --additional-names %q (%s)", name, strings.Join(found, "; "))
		}
	}
	for _, bound := range []struct {
		flag  string
		value float64
		least float64
	}{
		{"kube-api-qps", o.kubeQPS, 0.1}, {"kube-api-burst", float64(o.kubeBurst), 1},
		{"wait", o.wait.Seconds(), 0.001}, {"threads", float64(o.threads), 1}, {"resync-period", o.resync.Seconds(), 0},
		{"failed-provision-threshold", float64(o.provisionThreshold), 0}, {"failed-delete-threshold", float64(o.deleteThreshold), 0},
		{"provision-timeout", o.provisionTimeout.Seconds(), 0}, {"deletion-timeout", o.deletionTimeout.Seconds(), 0},
		{"retry-interval-start", o.retryStart.Seconds(), 0.001}, {"retry-interval-max", o.retryMax.Seconds(), o.retryStart.Seconds()},
		{"retry-qps", o.rateQPS, 0.1}, {"retry-burst", float64(o.rateBurst), 1},
		{"save-interval-start", o.saveStart.Seconds(), 0.001}, {"save-interval-max", o.saveMax.Seconds(), o.saveStart.Seconds()},
		{"leader-election-retry-period", o.leaderRetry.Seconds(), 0.001},
		{"leader-election-renew-deadline", o.renewDeadline.Seconds(), o.leaderRetry.Seconds() * 1.3},
		{"leader-election-lease-duration", o.leaseDuration.Seconds(), o.renewDeadline.Seconds() + 0.001},
	} {
		if bound.value < bound.least {
			return errors.NotValidf("--%s (want at least %g)", bound.flag, bound.least)
		}
	}
	switch {
	case o.metricsPort < 0 || o.metricsPort > 65535:
		return errors.NotValidf("--metrics-port %d (want 0 to 65535)", o.metricsPort)
	case net.ParseIP(o.metricsAddress) == nil:
		return errors.NotValidf("--metrics-address %q (want an IP address)", o.metricsAddress)
	case !path.IsAbs(o.metricsPath) || strings.ContainsAny(o.metricsPath, " {}"):
		return errors.NotValidf("--metrics-path %q (want a path such as /metrics)", o.metricsPath)
	}
	return nil
}

// controllerOptions returns the options of the controller. Leader election is the command's, since it
// is about more than the controller. The options with which the controller deletes storage because
// its volume could not be saved are never used.
func (o *options) controllerOptions() []func(*controller.ProvisionController) error {
	longest := o.retryMax
	if !o.exponential {
		longest = o.retryStart
	}
	return []func(*controller.ProvisionController) error{
		controller.AdditionalProvisionerNames(o.additionalNames),
		controller.Threadiness(o.threads),
		controller.ResyncPeriod(o.resync),
		controller.FailedProvisionThreshold(o.provisionThreshold),
		controller.FailedDeleteThreshold(o.deleteThreshold),
		controller.ProvisionTimeout(o.provisionTimeout),
		controller.DeletionTimeout(o.deletionTimeout),
		controller.AddFinalizer(o.addFinalizer),
		controller.RetryIntervalMax(o.retryMax),
		controller.ExponentialBackOffOnError(o.exponential),
		controller.RateLimiter(workqueue.NewTypedMaxOfRateLimiter(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](o.retryStart, longest),
			&workqueue.TypedBucketRateLimiter[string]{Limiter: rate.NewLimiter(rate.Limit(o.rateQPS), o.rateBurst)},
		)),
		controller.CreateProvisionedPVLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[string](o.saveStart, o.saveMax)),
		controller.MetricsAddress(o.metricsAddress),
		controller.MetricsPort(int32(o.metricsPort)),
		controller.MetricsPath(o.metricsPath),
		controller.LeaderElection(false),
	}
}
