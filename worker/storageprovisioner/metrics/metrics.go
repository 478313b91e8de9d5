// Package metrics counts and times the operations of a storage provisioner, for Prometheus.
//
// A [Collector] is both the worker's observer and a Prometheus collector. Make one for each
// worker, pass it to the worker's Config as Observer, and register it with a registry of the
// host's choice; the package registers nothing by itself. The collector outlives the worker:
// pass it to the worker again after a restart, and the counters go on.
//
//	collector := metrics.New(metrics.Options{
//		ConstLabels: prometheus.Labels{"scope": "machine-0"},
//	})
//	registry := prometheus.NewRegistry()
//	err := registry.Register(collector)
//	// Config{..., Observer: collector}
//	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
//
// Whether and how the registry is served is up to the host.
//
// The metrics are
//
//	stowage_provisioner_queue_depth{kind}
//		operations that are due and wait for their source to be free
//	stowage_provisioner_operations_in_progress{kind, source}
//		operations that have been handed to their source
//	stowage_provisioner_operations_total{kind, source, outcome}
//		attempts, by outcome
//	stowage_provisioner_operation_duration_seconds{kind, source, outcome}
//		duration of attempts: a histogram from 0.1 ms, for a mount of memory, to an
//		hour, for a slow cloud
//	stowage_provisioner_last_success_timestamp_seconds{source}
//		the time of the last attempt that succeeded, since 1970; a source without one
//		has no series
//
// The kinds and outcomes are those of package storageprovisioner. A source is a type of
// provider, so the number of series does not grow with the number of volumes. An attempt has
// failed if its outcome is "failure" or "permanent". The first attempt of a kind at a source
// creates a counter for every outcome, so that a rate includes the first failure.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// Options configures a [Collector].
type Options struct {
	// ConstLabels are added to every metric. Several workers in one process need them, with
	// the same names and different values, to keep their metrics apart in one registry. The
	// names "kind", "source" and "outcome" are reserved; a collector with a reserved or
	// malformed label cannot be registered. Empty: no labels.
	ConstLabels prometheus.Labels
	// Now returns the time. Nil: [time.Now].
	Now func() time.Time
}

// Collector observes one worker. It is safe to collect from at any time.
type Collector struct {
	queueDepth *prometheus.GaugeVec
	inProgress *prometheus.GaugeVec
	operations *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	succeeded  *prometheus.GaugeVec
	now        func() time.Time
}

var (
	_ storageprovisioner.Observer = (*Collector)(nil)
	_ prometheus.Collector        = (*Collector)(nil)
)

// New returns a collector without observations.
func New(options Options) *Collector {
	const namespace, subsystem = "stowage", "provisioner"
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Collector{
		queueDepth: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "queue_depth",
			Help:        "Operations that are due and wait for their source to be free.",
			ConstLabels: options.ConstLabels,
		}, []string{"kind"}),
		inProgress: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "operations_in_progress",
			Help:        "Operations that have been handed to their source.",
			ConstLabels: options.ConstLabels,
		}, []string{"kind", "source"}),
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "operations_total",
			Help:        "Attempts at operations, by how they ended.",
			ConstLabels: options.ConstLabels,
		}, []string{"kind", "source", "outcome"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "operation_duration_seconds",
			Help:        "How long attempts at operations took, by how they ended.",
			ConstLabels: options.ConstLabels,
			Buckets: []float64{
				.0001, .0003, .001, .003, .01, .03, .1, .3, 1, 3, 10, 30,
				60, 300, 600, 1200, 3600,
			},
		}, []string{"kind", "source", "outcome"}),
		succeeded: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "last_success_timestamp_seconds",
			Help:        "The time of the last attempt at an operation that succeeded, in seconds since 1970.",
			ConstLabels: options.ConstLabels,
		}, []string{"source"}),
		now: options.Now,
	}
}

func outcomes() []storageprovisioner.Outcome {
	return []storageprovisioner.Outcome{
		storageprovisioner.Success,
		storageprovisioner.Failure,
		storageprovisioner.Permanent,
		storageprovisioner.InProgress,
		storageprovisioner.Ignored,
		storageprovisioner.Deferred,
	}
}

// OperationStarted implements [storageprovisioner.Observer].
func (c *Collector) OperationStarted(op storageprovisioner.Operation) {
	c.inProgress.WithLabelValues(string(op.Kind), op.Source).Inc()
	c.queueDepth.WithLabelValues(string(op.Kind)) // 0 until something has to wait
	for _, outcome := range outcomes() {
		c.operations.WithLabelValues(string(op.Kind), op.Source, string(outcome))
	}
}

// OperationFinished implements [storageprovisioner.Observer].
func (c *Collector) OperationFinished(op storageprovisioner.Operation, outcome storageprovisioner.Outcome, took time.Duration, _ error) {
	c.inProgress.WithLabelValues(string(op.Kind), op.Source).Dec()
	c.operations.WithLabelValues(string(op.Kind), op.Source, string(outcome)).Inc()
	c.durations.WithLabelValues(string(op.Kind), op.Source, string(outcome)).Observe(took.Seconds())
	if outcome == storageprovisioner.Success {
		c.succeeded.WithLabelValues(op.Source).Set(float64(c.now().UnixMilli()) / 1000)
	}
}

// QueueDepth implements [storageprovisioner.Observer].
func (c *Collector) QueueDepth(kind storageprovisioner.OperationKind, depth int) {
	c.queueDepth.WithLabelValues(string(kind)).Set(float64(depth))
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, part := range c.parts() {
		part.Describe(descriptions)
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, part := range c.parts() {
		part.Collect(metrics)
	}
}

func (c *Collector) parts() []prometheus.Collector {
	return []prometheus.Collector{c.queueDepth, c.inProgress, c.operations, c.durations, c.succeeded}
}
