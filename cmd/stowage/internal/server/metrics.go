package server

import (
	"context"
	"time"

	"github.com/juju/errors"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
)

// registerMetrics registers the metrics of the server.
func (s *Server) registerMetrics() {
	s.Metrics.MustRegister(&machineMetrics{s}, s.backend.StorageMetrics())
	s.Gauge("stowage_server_provisions_environment", "Whether this server provisions the environment's storage (1) or not (0).",
		func() float64 { return process.BoolGauge(s.leads.Load()) })
	if m := s.etcdMember(); m != nil {
		s.Gauge("stowage_etcd_database_size_bytes", "The size of the database of this server's etcd, which refuses changes at 8 GiB.",
			func() float64 { return float64(m.Size()) })
	}
	s.CertificateExpiry(func() (time.Time, error) {
		leaf, err := s.certs.get().Leaf()
		if err != nil {
			return time.Time{}, errors.Trace(err)
		}
		return leaf.NotAfter, nil
	})
}

var machinesDesc = prometheus.NewDesc("stowage_server_machines", "The number of machines, by status.", []string{"status"}, nil)

// machineMetrics counts the machines at each request.
type machineMetrics struct{ server *Server }

// Describe implements prometheus.Collector.
func (m *machineMetrics) Describe(descs chan<- *prometheus.Desc) { descs <- machinesDesc }

// Collect implements prometheus.Collector. Without a state that can be read, it returns nothing.
func (m *machineMetrics) Collect(metrics chan<- prometheus.Metric) {
	machines, err := m.server.backend.Machines(context.Background())
	if err != nil {
		return
	}
	counts := map[user.MachineStatus]int{user.MachineUp: 0, user.MachineUnreachable: 0, user.MachineFenced: 0, user.MachinePending: 0}
	for _, machine := range machines {
		counts[machine.Status]++
	}
	for status, count := range counts {
		metrics <- prometheus.MustNewConstMetric(machinesDesc, prometheus.GaugeValue, float64(count), string(status))
	}
}

// ready returns an error if the server cannot serve agents and users.
func (s *Server) ready() error {
	if _, err := s.state.EnvironConfig(); err != nil {
		return errors.Annotate(err, "reading the state")
	}
	if m := s.etcdMember(); m != nil && m.IsFull() {
		return errors.New("etcd's database has reached its limit, so that changes are refused: remove storage that is no longer needed")
	}
	return errors.Trace(s.handler.Ready())
}
