package state_test

import (
	"fmt"

	"github.com/juju/clock"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
	"github.com/stowage-io/stowage/state/kv/kvtest"
	"github.com/stowage-io/stowage/storage"
)

// A user adds storage; a worker reads the parameters and records what it has made.
func Example() {
	st, err := state.Open(state.Config{
		Store: kvtest.NewMemory(), // boltkv.Open outside tests
		Clock: clock.WallClock,
		Registry: storage.StaticProviderRegistry{Providers: map[storage.ProviderType]storage.Provider{
			"loop": fakeProvider{scope: storage.ScopeMachine, kinds: []storage.StorageKind{storage.StorageKindBlock}},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer st.Close()

	machine := names.NewMachineTag("0")
	if err := st.EnsureMachine(machine); err != nil {
		fmt.Println(err)
	}
	err = st.AddStorage(state.StorageParams{
		Name: "data", Kind: storage.StorageKindBlock, Pool: "loop", Size: 1024, Machine: machine,
	})
	if err != nil {
		fmt.Println(err)
	}

	worker := st.ForMachine(machine)
	volumes, err := worker.VolumeParams([]names.VolumeTag{names.NewVolumeTag("0/0")})
	if err != nil {
		fmt.Println(err)
	}
	wanted := volumes[0].Result
	fmt.Println("to make:", wanted.VolumeTag, wanted.Provider, wanted.Size)
	_, err = worker.SetVolumeInfo([]params.Volume{{
		VolumeTag: wanted.VolumeTag, Info: params.VolumeInfo{VolumeId: "loop-1", Size: 1024},
	}})
	if err != nil {
		fmt.Println(err)
	}

	all, err := st.AllStorage()
	if err != nil {
		fmt.Println(err)
	}
	for _, s := range all {
		fmt.Println(s.Name, s.Kind, s.Life, s.Status, s.Volume.ProviderID)
	}
	// Output:
	// to make: volume-0-0 loop 1024
	// data block alive pending loop-1
}
