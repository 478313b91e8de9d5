package process

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Gauge registers a metric whose value is measured at each request.
func (p *Process) Gauge(name, help string, measure func() float64) {
	p.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, measure))
}

// CertificateExpiry registers the metric that says until when the process's certificate is valid.
func (p *Process) CertificateExpiry(until func() (time.Time, error)) {
	const name = "stowage_certificate_expiry_timestamp_seconds"
	p.Gauge(name, "The time until which the certificate of this process is valid, in seconds since 1970.", func() float64 {
		at, err := until()
		if err != nil {
			return 0
		}
		return float64(at.Unix())
	})
}

// BoolGauge returns the value of a metric that is 1 or 0.
func BoolGauge(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
