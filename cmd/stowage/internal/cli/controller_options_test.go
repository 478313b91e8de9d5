package cli_test

import (
	"os"
	"reflect"
	"regexp"
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

// What the page names exists. The module kubernetes compares the options with those of the controller.
func TestControllerOptionsPage(t *testing.T) {
	const path = "../../../../docs/reference/controller-options.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("`([^`]+)`")
	flags := help(t, []string{"run"})
	options := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "|\n"), " | ")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(cells) != 3 {
			t.Fatalf("%d columns: %s", len(cells), line)
		}
		options++
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
	if options == 0 {
		t.Errorf("%s has no options", path)
	}
}
