package main

import (
	"flag"
	"strings"
	"testing"
)

func parse(t *testing.T, args ...string) *options {
	t.Helper()
	var o options
	if err := flagsOf(&o).Parse(args); err != nil {
		t.Fatal(err)
	}
	return &o
}

// The defaults are valid.
func TestDefaults(t *testing.T) {
	if err := parse(t).validate(); err != nil {
		t.Error(err)
	}
}

// An invalid value is an error that names the flag.
func TestInvalid(t *testing.T) {
	for _, arg := range []string{
		"--name=a b", "--additional-names=a/b/c", "--kube-api-qps=0", "--kube-api-burst=0", "--wait=0s", "--threads=0",
		"--resync-period=-1s", "--failed-provision-threshold=-1", "--failed-delete-threshold=-1", "--provision-timeout=-1s",
		"--deletion-timeout=-1s", "--retry-interval-start=0s", "--retry-interval-max=1ms", "--retry-qps=0", "--retry-burst=0",
		"--save-interval-start=0s", "--save-interval-max=1ms", "--metrics-address=host", "--metrics-port=65536", "--metrics-path=x",
		"--leader-election-lease-duration=10s", "--leader-election-renew-deadline=2s", "--leader-election-retry-period=0s",
	} {
		err := parse(t, arg).validate()
		name, _, _ := strings.Cut(arg, "=")
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", arg, err)
		}
	}
}

// Each option of the controller that an operator sets has a flag; those with which the controller
// deletes storage because its volume could not be saved have none.
func TestFlags(t *testing.T) {
	var o options
	flags := flagsOf(&o)
	for option, names := range map[string][]string{
		"Threadiness":                {"threads"},
		"ResyncPeriod":               {"resync-period"},
		"FailedProvisionThreshold":   {"failed-provision-threshold"},
		"FailedDeleteThreshold":      {"failed-delete-threshold"},
		"RetryIntervalMax":           {"retry-interval-max"},
		"ExponentialBackOffOnError":  {"exponential-backoff"},
		"RateLimiter":                {"retry-interval-start", "retry-qps", "retry-burst"},
		"CreateProvisionedPVLimiter": {"save-interval-start", "save-interval-max"},
		"ProvisionTimeout":           {"provision-timeout"},
		"DeletionTimeout":            {"deletion-timeout"},
		"AdditionalProvisionerNames": {"additional-names"},
		"AddFinalizer":               {"add-finalizer"},
		"MetricsAddress":             {"metrics-address"},
		"MetricsPort":                {"metrics-port"},
		"MetricsPath":                {"metrics-path"},
		"LeaderElection":             {"leader-election"},
		"LeaderElectionNamespace":    {"leader-election-namespace"},
		"LeaseDuration":              {"leader-election-lease-duration"},
		"RenewDeadline":              {"leader-election-renew-deadline"},
		"RetryPeriod":                {"leader-election-retry-period"},
	} {
		for _, name := range names {
			if flags.Lookup(name) == nil {
				t.Errorf("option %s has no flag --%s", option, name)
			}
		}
	}
	flags.VisitAll(func(f *flag.Flag) {
		if strings.Contains(f.Name, "retry-count") || strings.Contains(f.Name, "create-provisioned") {
			t.Errorf("flag --%s could delete storage", f.Name)
		}
	})
}

// The environment says in which namespace the lease is, unless the flag does.
func TestNamespace(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "storage")
	if name := parse(t).namespace(); name != "storage" {
		t.Error(name)
	}
	if name := parse(t, "--leader-election-namespace=own").namespace(); name != "own" {
		t.Error(name)
	}
}
