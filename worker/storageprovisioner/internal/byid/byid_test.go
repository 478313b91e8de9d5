package byid_test

import (
	"flag"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
)

func init() {
	// The same cases every time, unless the command line has another seed.
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
}

func TestIsNumber(t *testing.T) {
	for id, want := range map[string]bool{
		"0": true, "7": true, "10": true, "999999999999999999": true,
		"": false, "00": false, "01": false, "-1": false, "+1": false, "1a": false, "0/1": false, "٣": false,
		"1000000000000000000": false,
	} {
		if got := byid.IsNumber(id); got != want {
			t.Errorf("%q is a number: %v", id, got)
		}
	}
}

// A Map behaves like a built-in map for IDs of any form.
func TestMapAgreesWithBuiltinMap(t *testing.T) {
	number := rapid.Map(rapid.IntRange(0, 200), strconv.Itoa)
	ids := rapid.OneOf(
		number,
		rapid.Map(number, func(n string) string { return "1/" + n }),
		rapid.SampledFrom([]string{"01", "007", "mysql/0/3", "1000000000000000000", "999999999999999999"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		var m byid.Map[int]
		want := make(map[string]*int)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				want[id] = new(int)
				m.Set(id, want[id])
			},
			"delete": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				delete(want, id)
				m.Delete(id)
			},
			"get": func(t *rapid.T) {
				if id := ids.Draw(t, "id"); m.Get(id) != want[id] {
					t.Fatalf("%s has %v, not %v", id, m.Get(id), want[id])
				}
			},
			"": func(t *rapid.T) {
				if m.Len() != len(want) || m.Empty() != (len(want) == 0) {
					t.Fatalf("Len is %d, not %d", m.Len(), len(want))
				}
				for id, value := range want {
					if m.Get(id) != value {
						t.Fatalf("%s has %v, not %v", id, m.Get(id), value)
					}
				}
			},
		})
		for id := range want {
			m.Delete(id)
		}
		if m.Len() != 0 {
			t.Fatalf("Len is %d after all was deleted", m.Len())
		}
	})
}
