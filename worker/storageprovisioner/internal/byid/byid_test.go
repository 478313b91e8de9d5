package byid_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/byid"
)

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
	ids := []string{"01", "007", "0/1", "mysql/0/3", "1000000000000000000", "999999999999999999"}
	for n := range 300 {
		ids = append(ids, strconv.Itoa(n), "1/"+strconv.Itoa(n))
	}
	random := rand.New(rand.NewPCG(1, 2))
	var m byid.Map[int]
	want := make(map[string]*int)
	for range 20_000 {
		id := ids[random.IntN(len(ids))]
		if random.IntN(2) == 0 {
			value := new(int)
			m.Set(id, value)
			want[id] = value
		} else {
			m.Delete(id)
			delete(want, id)
		}
		if got := m.Len(); got != len(want) {
			t.Fatalf("Len is %d, not %d", got, len(want))
		}
		for _, id := range ids[:10] {
			if m.Get(id) != want[id] {
				t.Fatalf("%s has %v, not %v", id, m.Get(id), want[id])
			}
		}
	}
	for _, id := range ids {
		if m.Get(id) != want[id] {
			t.Errorf("%s has %v, not %v", id, m.Get(id), want[id])
		}
	}
	for _, id := range slices.Collect(maps.Keys(want)) {
		m.Delete(id)
	}
	if got := m.Len(); got != 0 {
		t.Errorf("Len is %d after all was deleted", got)
	}
}
