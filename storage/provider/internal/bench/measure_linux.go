package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/storage/provider"
)

// The names of the ways. "Parallel" means as many calls at once as there are CPUs.
const (
	execSerial    = "exec, serial"
	execParallel  = "exec, parallel"
	floorSerial   = "floor, serial"
	floorParallel = "floor, parallel"
	oursSerial    = "ours, one per call"
	oursBulk      = "ours, bulk"
)

// sample holds the costs of each way in each round.
type sample struct {
	ways   []string
	rounds map[string][]costs
}

func (s *sample) add(way string, c costs) {
	if s.rounds == nil {
		s.rounds = make(map[string][]costs)
	}
	if s.rounds[way] == nil {
		s.ways = append(s.ways, way)
	}
	s.rounds[way] = append(s.rounds[way], c)
}

// median returns the median over the rounds of the total cost of the steps.
func (s *sample) median(way string, steps ...step) time.Duration {
	var sums []time.Duration
	for _, c := range s.rounds[way] {
		sums = append(sums, c.sum(steps...))
	}
	return middle(sums)
}

// ratio returns the cost of a way divided by the cost of the other. A disturbance of the
// machine affects all ways of a round, so the result is the median of the ratios of each
// round.
func (s *sample) ratio(way, other string, steps ...step) float64 {
	var ratios []float64
	for i, c := range s.rounds[way] {
		ratios = append(ratios, float64(c.sum(steps...))/float64(s.rounds[other][i].sum(steps...)))
	}
	return middle(ratios)
}

func middle[T time.Duration | float64](all []T) T {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// measureVolumes measures making and removing volumes with a filesystem.
func measureVolumes(ctx context.Context, s settings, p *place) (sample, error) {
	var all sample
	if err := p.makeNodes(s.volumes); err != nil {
		return all, errors.Trace(err)
	}
	dir, err := p.path("volumes")
	if err != nil {
		return all, errors.Trace(err)
	}
	our, err := openVolumes(filepath.Join(dir, "stowage"))
	if err != nil {
		return all, errors.Trace(err)
	}
	ways := []way{
		{execSerial, 1, 1, single(classic)},
		{floorSerial, 1, 1, single(floor)},
		{oursSerial, 1, 1, our.do},
		{execParallel, 1, cpus(), single(classic)},
		{floorParallel, 1, cpus(), single(floor)},
		{oursBulk, s.volumes, 1, our.do},
	}
	for round := range s.rounds {
		for _, w := range ways {
			fmt.Fprintf(os.Stderr, "volumes, round %d of %d: %s\n", round+1, s.rounds, w.name)
			c, err := w.cost(ctx, makeItems(s.volumes, s.size, dir), slices.Concat(setup, teardown)...)
			if err != nil {
				return all, errors.Trace(err)
			}
			all.add(w.name, c)
		}
	}
	return all, nil
}

const tmpfsSize = 1 // MiB

// measureMounts measures mounts of tmpfs and of directories.
func measureMounts(ctx context.Context, s settings, p *place) (map[string]*sample, error) {
	all := make(map[string]*sample)
	for _, kind := range []struct {
		name           string
		open           func(dir string) (*ours, error)
		classic, floor func(context.Context, step, *item) error
	}{
		{"tmpfs", func(dir string) (*ours, error) {
			return openFilesystems(provider.NewTmpfsProvider(provider.TmpfsOptions{StorageDir: dir}), provider.TmpfsProviderType)
		}, classicTmpfs, floorTmpfs},
		{"bind", func(dir string) (*ours, error) {
			return openFilesystems(provider.NewRootfsProvider(provider.RootfsOptions{StorageDir: dir}), provider.RootfsProviderType)
		}, classicBind, floorBind},
	} {
		dir, err := p.path(kind.name)
		if err != nil {
			return nil, errors.Trace(err)
		}
		our, err := kind.open(filepath.Join(dir, "stowage"))
		if err != nil {
			return nil, errors.Trace(err)
		}
		items := makeItems(s.volumes, tmpfsSize, dir)
		for _, t := range items {
			if err := os.Mkdir(t.file, 0o755); err != nil {
				return nil, errors.Trace(err)
			}
		}
		if err := our.create(ctx, items); err != nil {
			return nil, errors.Trace(err)
		}
		all[kind.name] = &sample{}
		for round := range s.rounds {
			fmt.Fprintf(os.Stderr, "%s, round %d of %d\n", kind.name, round+1, s.rounds)
			for _, w := range []way{
				{execSerial, 1, 1, single(kind.classic)},
				{floorSerial, 1, 1, single(kind.floor)},
				{oursSerial, 1, 1, our.do},
				{oursBulk, len(items), 1, our.do},
			} {
				c, err := w.cost(ctx, items, mount, unmount)
				if err != nil {
					return nil, errors.Trace(err)
				}
				all[kind.name].add(w.name, c)
			}
		}
		if err := our.do(ctx, remove, items); err != nil {
			return nil, errors.Trace(err)
		}
	}
	return all, nil
}

// measureLoops compares a bulk call that attaches a few volumes with one that attaches many.
func measureLoops(ctx context.Context, s settings, p *place) (few, many sample, err error) {
	if err := p.makeNodes(s.loops); err != nil {
		return few, many, errors.Trace(err)
	}
	dir, err := p.path("loops")
	if err != nil {
		return few, many, errors.Trace(err)
	}
	our, err := openVolumes(filepath.Join(dir, "stowage"))
	if err != nil {
		return few, many, errors.Trace(err)
	}
	items := makeItems(s.loops, 1, dir)
	if err := our.do(ctx, allocate, items); err != nil {
		return few, many, errors.Trace(err)
	}
	for round := range s.rounds {
		for _, of := range []struct {
			n int
			*sample
		}{{s.loops / 10, &few}, {s.loops, &many}} {
			fmt.Fprintf(os.Stderr, "%d loop devices, round %d of %d\n", of.n, round+1, s.rounds)
			w := way{oursBulk, of.n, 1, our.do}
			c, err := w.cost(ctx, items[:of.n], attach, detach)
			if err != nil {
				return few, many, errors.Trace(err)
			}
			of.add(w.name, c)
		}
	}
	return few, many, errors.Trace(our.do(ctx, remove, items))
}
