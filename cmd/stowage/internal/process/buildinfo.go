package process

import (
	"cmp"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// Version returns the version of the program, or "" if that is not known.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return cmp.Or(info.Main.Version, "(devel)")
}

// buildInfo returns the metric that says which build of the program this is. What is not known, as in
// a program that was built outside of a repository, is empty.
func buildInfo() prometheus.Collector {
	labels := prometheus.Labels{"version": "", "revision": "", "goversion": ""}
	if info, ok := debug.ReadBuildInfo(); ok {
		labels["version"], labels["goversion"] = Version(), info.GoVersion
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				labels["revision"] = setting.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "stowage_build_info", Help: "1, with the version of stowage, its commit, and the version of Go as labels.", ConstLabels: labels,
	}, func() float64 { return 1 })
}
