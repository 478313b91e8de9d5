package metrics_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/juju/names/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/metrics"
)

func operation(kind storageprovisioner.OperationKind, source string) storageprovisioner.Operation {
	return storageprovisioner.Operation{Kind: kind, Source: source, Entity: names.NewVolumeTag("0")}
}

// expect compares the metrics of these names with the wanted text.
func expect(t *testing.T, c prometheus.Collector, want string, metricNames ...string) {
	t.Helper()
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), metricNames...); err != nil {
		t.Error(err)
	}
}

// Behaviour O8.
func TestOperationsTotalByOutcome(t *testing.T) {
	c := metrics.New(metrics.Options{})
	create, attach := operation(storageprovisioner.CreateVolume, "ebs"), operation(storageprovisioner.AttachVolume, "loop")
	finish := func(op storageprovisioner.Operation, outcome storageprovisioner.Outcome, err error) {
		c.OperationStarted(op)
		c.OperationFinished(op, outcome, time.Second, err)
	}
	finish(create, storageprovisioner.Failure, errors.New("no room"))
	finish(create, storageprovisioner.Failure, errors.New("no room"))
	finish(create, storageprovisioner.Success, nil)
	finish(attach, storageprovisioner.Permanent, errors.New("no such device"))
	expect(t, c, `
# HELP stowage_provisioner_operations_total Attempts at operations, by how they ended.
# TYPE stowage_provisioner_operations_total counter
stowage_provisioner_operations_total{kind="attach-volume",outcome="deferred",source="loop"} 0
stowage_provisioner_operations_total{kind="attach-volume",outcome="failure",source="loop"} 0
stowage_provisioner_operations_total{kind="attach-volume",outcome="ignored",source="loop"} 0
stowage_provisioner_operations_total{kind="attach-volume",outcome="in-progress",source="loop"} 0
stowage_provisioner_operations_total{kind="attach-volume",outcome="permanent",source="loop"} 1
stowage_provisioner_operations_total{kind="attach-volume",outcome="success",source="loop"} 0
stowage_provisioner_operations_total{kind="create-volume",outcome="deferred",source="ebs"} 0
stowage_provisioner_operations_total{kind="create-volume",outcome="failure",source="ebs"} 2
stowage_provisioner_operations_total{kind="create-volume",outcome="ignored",source="ebs"} 0
stowage_provisioner_operations_total{kind="create-volume",outcome="in-progress",source="ebs"} 0
stowage_provisioner_operations_total{kind="create-volume",outcome="permanent",source="ebs"} 0
stowage_provisioner_operations_total{kind="create-volume",outcome="success",source="ebs"} 1
`, "stowage_provisioner_operations_total")
}

// Behaviour O8.
func TestOperationsInProgress(t *testing.T) {
	c := metrics.New(metrics.Options{})
	create, destroy := operation(storageprovisioner.CreateVolume, "ebs"), operation(storageprovisioner.DestroyVolume, "ebs")
	c.OperationStarted(create)
	c.OperationStarted(create)
	c.OperationStarted(destroy)
	c.OperationFinished(create, storageprovisioner.InProgress, time.Second, errors.New("going on"))
	c.OperationFinished(destroy, storageprovisioner.Success, time.Second, nil)
	expect(t, c, `
# HELP stowage_provisioner_operations_in_progress Operations that have been handed to their source.
# TYPE stowage_provisioner_operations_in_progress gauge
stowage_provisioner_operations_in_progress{kind="create-volume",source="ebs"} 1
stowage_provisioner_operations_in_progress{kind="destroy-volume",source="ebs"} 0
`, "stowage_provisioner_operations_in_progress")
}

// Behaviour O8.
func TestQueueDepthIsLastValue(t *testing.T) {
	c := metrics.New(metrics.Options{})
	c.QueueDepth(storageprovisioner.CreateVolume, 7)
	c.QueueDepth(storageprovisioner.DetachFilesystem, 2)
	c.QueueDepth(storageprovisioner.CreateVolume, 0)
	expect(t, c, `
# HELP stowage_provisioner_queue_depth Operations that are due and wait for their source to be free.
# TYPE stowage_provisioner_queue_depth gauge
stowage_provisioner_queue_depth{kind="create-volume"} 0
stowage_provisioner_queue_depth{kind="detach-filesystem"} 2
`, "stowage_provisioner_queue_depth")
}

// A kind that never had to wait has a depth of 0, so that a query finds it.
func TestQueueDepthFromFirstOperation(t *testing.T) {
	c := metrics.New(metrics.Options{})
	c.QueueDepth(storageprovisioner.CreateVolume, 7)
	c.OperationStarted(operation(storageprovisioner.CreateVolume, "ebs"))
	c.OperationStarted(operation(storageprovisioner.AttachVolume, "ebs"))
	expect(t, c, `
# HELP stowage_provisioner_queue_depth Operations that are due and wait for their source to be free.
# TYPE stowage_provisioner_queue_depth gauge
stowage_provisioner_queue_depth{kind="attach-volume"} 0
stowage_provisioner_queue_depth{kind="create-volume"} 7
`, "stowage_provisioner_queue_depth")
}

// Behaviour O8.
func TestLastSuccessBySource(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_500)
	c := metrics.New(metrics.Options{Now: func() time.Time { return now }})
	create, mount := operation(storageprovisioner.CreateVolume, "ebs"), operation(storageprovisioner.AttachFilesystem, "tmpfs")
	c.OperationFinished(create, storageprovisioner.Success, time.Second, nil)
	now = now.Add(time.Minute)
	for _, outcome := range []storageprovisioner.Outcome{storageprovisioner.Failure, storageprovisioner.Permanent, storageprovisioner.InProgress} {
		c.OperationFinished(create, outcome, time.Second, errors.New("not done"))
		c.OperationFinished(mount, outcome, time.Second, errors.New("not done"))
	}
	expect(t, c, `
# HELP stowage_provisioner_last_success_timestamp_seconds The time of the last attempt at an operation that succeeded, in seconds since 1970.
# TYPE stowage_provisioner_last_success_timestamp_seconds gauge
stowage_provisioner_last_success_timestamp_seconds{source="ebs"} 1.7000000005e+09
`, "stowage_provisioner_last_success_timestamp_seconds")
}

// A mount of memory takes microseconds and a call to a slow cloud takes minutes: both fall
// between two bounds, and not beyond all of them.
func TestDurationBuckets(t *testing.T) {
	c := metrics.New(metrics.Options{})
	mount := operation(storageprovisioner.AttachFilesystem, "tmpfs")
	for _, took := range []time.Duration{200 * time.Microsecond, 2 * time.Second, 20 * time.Minute} {
		c.OperationFinished(mount, storageprovisioner.Success, took, nil)
	}
	expect(t, c, `
# HELP stowage_provisioner_operation_duration_seconds How long attempts at operations took, by how they ended.
# TYPE stowage_provisioner_operation_duration_seconds histogram
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="0.0001"} 0
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="0.0003"} 1
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="0.001"} 1
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="0.003"} 1
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="0.01"} 1
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="0.03"} 1
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="0.1"} 1
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="0.3"} 1
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="1"} 1
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="3"} 2
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="10"} 2
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="30"} 2
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="60"} 2
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="300"} 2
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="600"} 2
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="1200"} 3
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="3600"} 3
stowage_provisioner_operation_duration_seconds_bucket{kind="attach-filesystem",outcome="success",source="tmpfs",le="+Inf"} 3
stowage_provisioner_operation_duration_seconds_sum{kind="attach-filesystem",outcome="success",source="tmpfs"} 1202.0002
stowage_provisioner_operation_duration_seconds_count{kind="attach-filesystem",outcome="success",source="tmpfs"} 3
`, "stowage_provisioner_operation_duration_seconds")
}

// Behaviour O8.
func TestMetricNamesPassLint(t *testing.T) {
	c := metrics.New(metrics.Options{ConstLabels: prometheus.Labels{"scope": "machine-0"}})
	op := operation(storageprovisioner.CreateVolume, "loop")
	c.OperationStarted(op)
	c.OperationFinished(op, storageprovisioner.Success, time.Second, nil)
	c.QueueDepth(op.Kind, 1)
	problems, err := testutil.CollectAndLint(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestSeriesDoNotGrowWithVolumes(t *testing.T) {
	c := metrics.New(metrics.Options{})
	series := 0
	for i := range 100 {
		op := operation(storageprovisioner.AttachVolume, "loop")
		op.Entity, op.Machine = names.NewVolumeTag(strconv.Itoa(i)), names.NewMachineTag(strconv.Itoa(i))
		c.OperationStarted(op)
		c.OperationFinished(op, storageprovisioner.Failure, time.Second, errors.New(strconv.Itoa(i)))
		if i == 0 {
			series = testutil.CollectAndCount(c)
		}
	}
	if got := testutil.CollectAndCount(c); got != series {
		t.Errorf("%d series after 100 volumes, %d after one", got, series)
	}
}

func TestWorkersShareRegistryByConstLabels(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for scope, depth := range map[string]int{"machine-0": 3, "environment": 4} {
		c := metrics.New(metrics.Options{ConstLabels: prometheus.Labels{"scope": scope}})
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
		c.QueueDepth(storageprovisioner.CreateVolume, depth)
	}
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP stowage_provisioner_queue_depth Operations that are due and wait for their source to be free.
# TYPE stowage_provisioner_queue_depth gauge
stowage_provisioner_queue_depth{kind="create-volume",scope="environment"} 4
stowage_provisioner_queue_depth{kind="create-volume",scope="machine-0"} 3
`))
	if err != nil {
		t.Error(err)
	}
	if err := registry.Register(metrics.New(metrics.Options{ConstLabels: prometheus.Labels{"scope": "machine-0"}})); err == nil {
		t.Error("a second collector with the same labels was registered")
	}
}

// A collector with a bad label cannot be registered, but its worker runs.
func TestBadLabelFailsRegistrationOnly(t *testing.T) {
	for _, label := range []string{"kind", "source", "outcome", "", "__secret", "\xff"} {
		c := metrics.New(metrics.Options{ConstLabels: prometheus.Labels{label: "x"}})
		if err := prometheus.NewRegistry().Register(c); err == nil {
			t.Errorf("label %q was accepted", label)
		}
		op := operation(storageprovisioner.CreateVolume, "loop")
		c.OperationStarted(op)
		c.OperationFinished(op, storageprovisioner.Success, time.Second, nil)
		c.QueueDepth(op.Kind, 1)
	}
}

// Every outcome that the worker declares is counted from zero, new ones too.
func TestEveryOutcomeStartsAtZero(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../observer.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var declared int
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Outcome" {
				declared += len(spec.Names)
			}
		}
		return true
	})
	c := metrics.New(metrics.Options{})
	c.OperationStarted(operation(storageprovisioner.CreateVolume, "loop"))
	if got := testutil.CollectAndCount(c, "stowage_provisioner_operations_total"); got != declared || declared == 0 {
		t.Errorf("%d outcomes are counted, %d are declared", got, declared)
	}
}

func TestCollectWhileObserving(t *testing.T) {
	const attempts = 1000
	c := metrics.New(metrics.Options{})
	op := operation(storageprovisioner.CreateVolume, "loop")
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for i := range attempts {
				c.OperationStarted(op)
				c.QueueDepth(op.Kind, i)
				c.OperationFinished(op, storageprovisioner.Success, time.Second, nil)
			}
		})
	}
	group.Go(func() {
		for range 100 {
			testutil.CollectAndCount(c)
		}
	})
	group.Wait()
	expect(t, c, `
# HELP stowage_provisioner_operations_in_progress Operations that have been handed to their source.
# TYPE stowage_provisioner_operations_in_progress gauge
stowage_provisioner_operations_in_progress{kind="create-volume",source="loop"} 0
`, "stowage_provisioner_operations_in_progress")
}

func BenchmarkOperationFinished(b *testing.B) {
	c := metrics.New(metrics.Options{ConstLabels: prometheus.Labels{"scope": "machine-0"}})
	op := operation(storageprovisioner.CreateVolume, "loop")
	b.ReportAllocs()
	for b.Loop() {
		c.OperationFinished(op, storageprovisioner.Success, time.Millisecond, nil)
	}
}
