package process

import (
	"cmp"
	"net/http"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/stowage-io/stowage/worker/metricsserver"
	"github.com/stowage-io/stowage/worker/storageprovisioner/metrics"
)

// newRegistry returns a registry with the metrics of this process.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(),
	)
	return registry
}

// observe returns the observer of the provisioner of a scope, and registers its metrics.
func (p *Process) observe(scope string) *metrics.Collector {
	collector := metrics.New(metrics.Options{ConstLabels: prometheus.Labels{"scope": scope}, Now: p.Config.Clock.Now})
	p.Metrics.MustRegister(collector)
	return collector
}

// startMetrics serves the metrics. A failure to listen ends the process, because someone relies
// on the metrics.
func (p *Process) startMetrics() (worker.Worker, error) {
	w, err := metricsserver.New(metricsserver.Config{
		Address: p.Config.MetricsAddress, Path: p.Config.MetricsPath, Gatherer: p.Metrics,
		Routes: func(mux *http.ServeMux) { p.HealthRoutes(mux, true) },
	})
	if err != nil {
		return nil, errors.WithType(err, ErrFatal)
	}
	p.Config.Logger.Infof("serving metrics on http://%s%s", w.Address(), cmp.Or(p.Config.MetricsPath, metricsserver.DefaultPath))
	return w, nil
}
