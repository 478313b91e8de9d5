package state_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/state"
)

func TestTmpScale(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("N"))
	if n == 0 {
		t.Skip()
	}
	path := filePath(t)
	w := newFileWorld(t, path)
	lap := time.Now()
	say := func(what string) {
		d := time.Since(lap)
		info, _ := os.Stat(path)
		fmt.Printf("%-30s %10s  %8.2fµs each, file %d MB\n", what, d.Round(10*time.Microsecond), float64(d.Microseconds())/float64(n), info.Size()>>20)
		lap = time.Now()
	}
	var all []state.StorageParams
	for i := range n {
		all = append(all, state.StorageParams{Name: "s/" + strconv.Itoa(i), Kind: filesystem, Pool: "loop", Size: 1, Machine: machine0, MountPoint: "/srv/s/" + strconv.Itoa(i)})
	}
	lap = time.Now()
	w.must(w.AddStorage(all...))
	say("add")
	a := w.ForMachine(machine0)
	f := follows(t, a.WatchVolumes)
	say("watch")
	ids := next(t, f)
	say("first event")
	var vt []names.VolumeTag
	var tags []names.Tag
	for _, id := range ids {
		vt = append(vt, names.NewVolumeTag(id))
		tags = append(tags, names.NewVolumeTag(id))
	}
	lap = time.Now()
	_, err := a.Life(tags)
	w.must(err)
	say("life")
	_, err = a.VolumeParams(vt)
	w.must(err)
	say("volume params")
	var infos []params.Volume
	var sts []params.EntityStatusArgs
	for _, tag := range vt {
		infos = append(infos, params.Volume{VolumeTag: tag.String(), Info: params.VolumeInfo{VolumeId: tag.String(), Size: 1}})
		sts = append(sts, params.EntityStatusArgs{Tag: tag.String(), Status: "attaching"})
	}
	lap = time.Now()
	_, err = a.SetVolumeInfo(infos)
	w.must(err)
	say("set volume info")
	w.must(a.SetStatus(sts))
	say("set status")
	_, err = w.AllStorage()
	w.must(err)
	say("all storage")
	w.must(w.DetachStorage([]string{"s/1"}))
	say("one change")
	var list []string
	for i := range n {
		list = append(list, "s/"+strconv.Itoa(i))
	}
	lap = time.Now()
	w.must(w.RemoveStorage(list))
	say("remove")
	lap = time.Now()
	w.must(w.RemoveStorage([]string{"s/1"}))
	say("noop change")
}
