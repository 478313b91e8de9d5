package cli_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/state/kv/etcdkv"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/leased"
	"github.com/stowage-io/stowage/worker/metricsserver"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
	"github.com/stowage-io/stowage/worker/storageprovisioner/metrics"
)

// controllerOptions are the options of the controller of sig-storage-lib-external-provisioner v13, sorted.
var controllerOptions = []string{
	"AddFinalizer", "AdditionalProvisionerNames", "ClaimsInformer", "ClassesInformer",
	"CreateProvisionedPVBackoff", "CreateProvisionedPVInterval", "CreateProvisionedPVLimiter",
	"CreateProvisionedPVRetryCount", "DeletionTimeout", "ExponentialBackOffOnError", "FailedDeleteThreshold",
	"FailedProvisionThreshold", "LeaderElection", "LeaderElectionNamespace", "LeaseDuration", "MetricsAddress",
	"MetricsInstance", "MetricsPath", "MetricsPort", "ProvisionTimeout", "RateLimiter", "RenewDeadline",
	"ResyncPeriod", "RetryIntervalMax", "RetryPeriod", "Threadiness", "VolumeName", "VolumesInformer",
}

// libraryTypes are the types that the page names, and libraryFunctions the functions.
var (
	libraryTypes = map[string]reflect.Type{
		"Config":                   reflect.TypeFor[storageprovisioner.Config](),
		"RetryPolicy":              reflect.TypeFor[storageprovisioner.RetryPolicy](),
		"TimeLimits":               reflect.TypeFor[storageprovisioner.TimeLimits](),
		"storage.ConcurrentSource": reflect.TypeFor[storage.ConcurrentSource](),
		"storage.RateLimiter":      reflect.TypeFor[storage.RateLimiter](),
		"storage.FactoryRegistry":  reflect.TypeFor[storage.FactoryRegistry](),
		"etcdkv.Config":            reflect.TypeFor[etcdkv.Config](),
		"metricsserver.Config":     reflect.TypeFor[metricsserver.Config](),
		"metrics.Collector":        reflect.TypeFor[metrics.Collector](),
		"kv.Lease":                 reflect.TypeFor[kv.Lease](),
		"kv.Leaser":                reflect.TypeFor[kv.Leaser](),
	}
	libraryFunctions = map[string]any{"leased.Start": leased.Start}
)

// isInLibrary reports whether a name of the page is that of a type, of a field or method of one, or of a
// function.
func isInLibrary(name string) bool {
	if _, ok := libraryFunctions[name]; ok || libraryTypes[name] != nil {
		return true
	}
	dot := strings.LastIndex(name, ".")
	if dot < 0 {
		return false
	}
	of, member := libraryTypes[name[:dot]], name[dot+1:]
	if of == nil {
		return false
	}
	if of.Kind() == reflect.Struct {
		if _, ok := of.FieldByName(member); ok {
			return true
		}
	}
	_, ok := of.MethodByName(member)
	return ok
}

// Each option of the controller is on the page, and what the page names exists.
func TestControllerOptionsPage(t *testing.T) {
	const path = "../../../../docs/reference/controller-options.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("`([^`]+)`")
	flags := help(t, []string{"run"})
	var options []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "|\n"), " | ")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(cells) != 3 {
			t.Fatalf("%d columns: %s", len(cells), line)
		}
		for _, match := range code.FindAllStringSubmatch(cells[0], -1) {
			options = append(options, match[1])
		}
		for _, match := range code.FindAllStringSubmatch(cells[1], -1) {
			if name := match[1]; name != "volume-N" && !isInLibrary(name) {
				t.Errorf("%s: the library has no %s", path, name)
			}
		}
		for _, match := range code.FindAllStringSubmatch(cells[2], -1) {
			if !strings.Contains(flags, "  "+match[1]+" ") {
				t.Errorf("%s: the command has no flag %s", path, match[1])
			}
		}
	}
	slices.Sort(options)
	if !slices.Equal(options, controllerOptions) {
		t.Errorf("%s: options\n%q\nwant\n%q", path, options, controllerOptions)
	}
}
