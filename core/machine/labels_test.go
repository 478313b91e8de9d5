package machine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/machine"
)

func TestLabels(t *testing.T) {
	labels, err := machine.ParseLabels([]string{"zone=a", "disk=ssd", "example.com/rack=r-1.2"})
	if err != nil || len(labels) != 3 || labels["zone"] != "a" || labels["example.com/rack"] != "r-1.2" {
		t.Errorf("labels %v, %v", labels, err)
	}
	if texts := machine.FormatLabels(labels); !slices.Equal(texts, []string{"disk=ssd", "example.com/rack=r-1.2", "zone=a"}) {
		t.Errorf("formatted as %q", texts)
	}
	for _, texts := range [][]string{
		{""}, {"zone"}, {"zone="}, {"=a"}, {"Zone=a"}, {"zone=A"}, {"-zone=a"}, {"zone=a b"}, {"zone=a", "zone=b"}, {strings.Repeat("a", 64) + "=b"},
	} {
		if _, err := machine.ParseLabels(texts); !errors.Is(err, errors.NotValid) {
			t.Errorf("%q: %v", texts, err)
		}
	}
}
