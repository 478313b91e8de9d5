package metrics_test

import (
	"fmt"
	"time"

	"github.com/juju/names/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/metrics"
)

func Example() {
	collector := metrics.New(metrics.Options{
		ConstLabels: prometheus.Labels{"scope": "machine-0"},
	})
	registry := prometheus.NewRegistry()
	if err := registry.Register(collector); err != nil {
		fmt.Println(err)
		return
	}
	// The worker does this when the Observer of its Config is the collector.
	attach := storageprovisioner.Operation{
		Kind:    storageprovisioner.AttachFilesystem,
		Source:  "tmpfs",
		Entity:  names.NewFilesystemTag("0"),
		Machine: names.NewMachineTag("0"),
	}
	collector.QueueDepth(attach.Kind, 1)
	collector.QueueDepth(attach.Kind, 0)
	collector.OperationStarted(attach)
	collector.OperationFinished(attach, storageprovisioner.Success, 200*time.Microsecond, nil)

	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, family := range families {
		fmt.Println(family.GetName(), family.GetType(), len(family.GetMetric()))
	}
	// Output:
	// stowage_provisioner_last_success_timestamp_seconds GAUGE 1
	// stowage_provisioner_operation_duration_seconds HISTOGRAM 1
	// stowage_provisioner_operations_in_progress GAUGE 1
	// stowage_provisioner_operations_total COUNTER 6
	// stowage_provisioner_queue_depth GAUGE 1
}
