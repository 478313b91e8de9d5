package process

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/worker/storageprovisioner/metrics"
)

// newRegistry returns a registry with the metrics of this process.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}

// observe returns the observer of the provisioner of a scope, and registers its metrics.
func (p *Process) observe(scope string) *metrics.Collector {
	collector := metrics.New(metrics.Options{ConstLabels: prometheus.Labels{"scope": scope}})
	p.Metrics.MustRegister(collector)
	return collector
}

// metricsServer serves the metrics until it is killed.
type metricsServer struct {
	tomb   tomb.Tomb
	server *http.Server
}

// startMetrics serves the metrics. A failure to listen ends the process, because someone relies
// on the metrics.
func (p *Process) startMetrics() (worker.Worker, error) {
	listener, err := net.Listen("tcp", p.Config.MetricsAddress)
	if err != nil {
		return nil, errors.WithType(errors.Annotate(err, "serving metrics"), ErrFatal)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{}))
	p.HealthRoutes(mux, true)
	w := &metricsServer{server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}}
	w.tomb.Go(func() error {
		w.tomb.Go(func() error {
			<-w.tomb.Dying()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := w.server.Shutdown(ctx); err == nil {
				return nil
			}
			return errors.Trace(w.server.Close())
		})
		if err := w.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return errors.Trace(err)
		}
		return nil
	})
	p.Config.Logger.Infof("serving metrics on http://%s/metrics", listener.Addr())
	return w, nil
}

// Kill implements worker.Worker.
func (w *metricsServer) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *metricsServer) Wait() error { return w.tomb.Wait() }
