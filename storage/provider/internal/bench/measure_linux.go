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

// The names of the ways. "Parallel" is as many at once as there are CPUs.
const (
	execSerial    = "exec, serial"
	execParallel  = "exec, parallel"
	floorSerial   = "floor, serial"
	floorParallel = "floor, parallel"
	oursSerial    = "ours, one per call"
	oursBulk      = "ours, bulk"
)

// sample is what the ways cost in each of the rounds.
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

// median returns what the steps cost in all, in the middle one of the rounds.
func (s *sample) median(way string, steps ...step) time.Duration {
	var sums []time.Duration
	for _, c := range s.rounds[way] {
		sums = append(sums, c.sum(steps...))
	}
	return middle(sums)
}

// ratio returns how many times what the other costs a way costs. What disturbs the
// machine disturbs all ways of a round, so it is the middle of the rounds' ratios.
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

// measureVolumes measures volumes with a filesystem, up and away.
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
		{execSerial, 1, 1, one(classic)},
		{floorSerial, 1, 1, one(floor)},
		{oursSerial, 1, 1, our.do},
		{execParallel, 1, cpus(), one(classic)},
		{floorParallel, 1, cpus(), one(floor)},
		{oursBulk, s.volumes, 1, our.do},
	}
	for round := range s.rounds {
		for _, w := range ways {
			fmt.Fprintf(os.Stderr, "volumes, round %d of %d: %s\n", round+1, s.rounds, w.name)
			c, err := w.cost(ctx, makeThings(s.volumes, s.size, dir), slices.Concat(up, away)...)
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
		classic, floor func(context.Context, step, *thing) error
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
		things := makeThings(s.volumes, tmpfsSize, dir)
		for _, t := range things {
			if err := os.Mkdir(t.file, 0o755); err != nil {
				return nil, errors.Trace(err)
			}
		}
		if err := our.create(ctx, things); err != nil {
			return nil, errors.Trace(err)
		}
		all[kind.name] = &sample{}
		for round := range s.rounds {
			fmt.Fprintf(os.Stderr, "%s, round %d of %d\n", kind.name, round+1, s.rounds)
			for _, w := range []way{
				{execSerial, 1, 1, one(kind.classic)},
				{floorSerial, 1, 1, one(kind.floor)},
				{oursSerial, 1, 1, our.do},
				{oursBulk, len(things), 1, our.do},
			} {
				c, err := w.cost(ctx, things, mount, unmount)
				if err != nil {
					return nil, errors.Trace(err)
				}
				all[kind.name].add(w.name, c)
			}
		}
		if err := our.do(ctx, remove, things); err != nil {
			return nil, errors.Trace(err)
		}
	}
	return all, nil
}

// measureLoops measures a bulk call that attaches a few volumes and one that
// attaches many.
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
	things := makeThings(s.loops, 1, dir)
	if err := our.do(ctx, allocate, things); err != nil {
		return few, many, errors.Trace(err)
	}
	for round := range s.rounds {
		for _, of := range []struct {
			n int
			*sample
		}{{s.loops / 10, &few}, {s.loops, &many}} {
			fmt.Fprintf(os.Stderr, "%d loop devices, round %d of %d\n", of.n, round+1, s.rounds)
			w := way{oursBulk, of.n, 1, our.do}
			c, err := w.cost(ctx, things[:of.n], attach, detach)
			if err != nil {
				return few, many, errors.Trace(err)
			}
			of.add(w.name, c)
		}
	}
	return few, many, errors.Trace(our.do(ctx, remove, things))
}
