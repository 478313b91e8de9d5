package label_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/core/label"
)

func TestLabels(t *testing.T) {
	labels, err := label.Parse([]string{"zone=a", "disk=ssd", "example.com/rack=r-1.2"})
	if err != nil || len(labels) != 3 || labels["zone"] != "a" || labels["example.com/rack"] != "r-1.2" {
		t.Errorf("labels %v, %v", labels, err)
	}
	if texts := label.Format(labels); !slices.Equal(texts, []string{"disk=ssd", "example.com/rack=r-1.2", "zone=a"}) {
		t.Errorf("formatted as %q", texts)
	}
	for _, texts := range [][]string{
		{""}, {"zone"}, {"zone="}, {"=a"}, {"Zone=a"}, {"zone=A"}, {"-zone=a"}, {"zone=a b"}, {"zone=a", "zone=b"}, {strings.Repeat("a", 64) + "=b"},
	} {
		if _, err := label.Parse(texts); !errors.Is(err, errors.NotValid) {
			t.Errorf("%q: %v", texts, err)
		}
	}
}

func TestSelectors(t *testing.T) {
	labels := map[string]string{"zone": "a", "disk": "ssd"}
	for text, selects := range map[string]bool{"": true, "zone=a": true, "disk=ssd,zone=a": true, "zone=b": false, "zone=a,rack=1": false} {
		selector, err := label.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := label.Selects(selector, labels); got != selects {
			t.Errorf("%q selects %v: %t", text, labels, got)
		}
	}
	if text := label.FormatSelector(labels); text != "disk=ssd,zone=a" {
		t.Errorf("formatted as %q", text)
	}
	for _, text := range []string{",", "zone", "zone=a,", "zone=a,zone=b"} {
		if _, err := label.ParseSelector(text); !errors.Is(err, errors.NotValid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestCheck(t *testing.T) {
	labels := map[string]string{}
	for n := range label.Max {
		labels[fmt.Sprint("n", n)] = "a"
	}
	if err := label.Check(labels); err != nil {
		t.Errorf("as many labels as there can be: %v", err)
	}
	labels["more"] = "a"
	if err := label.Check(labels); !errors.Is(err, errors.NotValid) {
		t.Errorf("one more: %v", err)
	}
	if err := label.Check(map[string]string{"Zone": "a"}); !errors.Is(err, errors.NotValid) {
		t.Errorf("an invalid label: %v", err)
	}
}
