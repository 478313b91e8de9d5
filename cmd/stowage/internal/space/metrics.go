package space

import "github.com/prometheus/client_golang/prometheus"

var (
	hostSize     = prometheus.NewDesc("stowage_host_size_bytes", "Size of the filesystem that loop volumes and rootfs directories are on.", nil, nil)
	hostFree     = prometheus.NewDesc("stowage_host_free_bytes", "Free space of the filesystem that loop volumes and rootfs directories are on.", nil, nil)
	hostPromised = prometheus.NewDesc("stowage_host_thin_promised_bytes", "Space that thin volumes may still allocate: their sizes, less what their files have allocated.", nil, nil)
)

// Metrics are the metrics of the host. They are measured when they are collected, and left out if that
// fails.
type Metrics struct {
	// Dir is the directory of the storage.
	Dir string
	// Promised returns how many bytes thin volumes may take that they do not have yet.
	Promised func() (uint64, error)
}

// Describe implements prometheus.Collector.
func (m Metrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- hostSize
	descs <- hostFree
	descs <- hostPromised
}

// Collect implements prometheus.Collector.
func (m Metrics) Collect(found chan<- prometheus.Metric) {
	if size, free, err := Host(m.Dir); err == nil {
		found <- prometheus.MustNewConstMetric(hostSize, prometheus.GaugeValue, float64(size))
		found <- prometheus.MustNewConstMetric(hostFree, prometheus.GaugeValue, float64(free))
	}
	if promised, err := m.Promised(); err == nil {
		found <- prometheus.MustNewConstMetric(hostPromised, prometheus.GaugeValue, float64(promised))
	}
}
