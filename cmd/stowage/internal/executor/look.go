package executor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/names/v5"

	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/internal/patience"
	"github.com/stowage-io/stowage/storage/provider"
)

// lookLimit is how long a look waits for each answer of the kernel.
const lookLimit = 3 * time.Second

// maxLooked bounds each list of a result, and maxLookedText each text of others in it, in bytes.
const (
	maxLooked     = 50
	maxLookedText = 1 << 10
)

// look finds out what this machine has of storage. It changes nothing. What it cannot find out is in the
// notes.
func (x *Executor) look(ctx context.Context, args task.Look) *task.Looked {
	found := &task.Looked{Operations: x.Operations(args.Entities)}
	for _, o := range args.Objects {
		for _, directory := range x.config.Dir.StorageDirectories() {
			if string(directory.Provider) == o.Provider {
				x.lookAt(ctx, found, directory, o)
			}
		}
	}
	bound(found, &found.Files, "files")
	bound(found, &found.Devices, "devices")
	bound(found, &found.Mounts, "mounts")
	bound(found, &found.Holders, "processes")
	bound(found, &found.Operations, "operations")
	return found
}

// lookAt adds what the machine has of an object.
func (x *Executor) lookAt(ctx context.Context, found *task.Looked, directory provider.StorageDirectory, o task.Ref) {
	failed := func(doing string, err error) {
		found.Notes = append(found.Notes, truncate(fmt.Sprintf("%s of %s %s: %v", doing, o.Kind, o.ID, err)))
	}
	footprint, err := ask(x, "the files", o, func() (*provider.Footprint, error) { return directory.Look(ctx, o.ID) })
	if err != nil {
		failed("the files", err)
		return
	}
	found.Files = append(found.Files, task.File{Kind: task.FileRecord, Path: footprint.Record})
	for _, f := range footprint.Files {
		file := task.File{Kind: task.FileData, Path: f.Path, Missing: f.Missing, Size: f.Size, Allocated: f.Allocated}
		if f.Directory {
			file.Kind = task.FileDirectory
		}
		found.Files = append(found.Files, file)
	}
	for _, path := range footprint.Devices {
		found.Devices = addMissing(found.Devices, path)
	}
	for _, m := range footprint.Mounts {
		found.Mounts = addMissing(found.Mounts, task.Mount{Path: truncate(m.Path), ReadOnly: m.ReadOnly})
	}
	used, err := ask(x, "the usage", o, func() (*task.Usage, error) {
		u, ok, err := footprint.Usage()
		if !ok {
			return nil, errors.Trace(err)
		}
		return usage(u), nil
	})
	if err != nil {
		failed("the usage", err)
	} else if used != nil {
		found.Usage = used
	}
	holders, err := ask(x, "the users", o, func() ([]provider.Holder, error) { return footprint.Holders(), nil })
	if err != nil {
		failed("the users", err)
	}
	for _, h := range holders {
		known := func(k task.Holder) bool { return k.PID == h.PID && (h.PID != 0 || k.Name == h.Name) }
		if !slices.ContainsFunc(found.Holders, known) {
			found.Holders = append(found.Holders, task.Holder{PID: h.PID, Name: truncate(h.Name), Use: truncate(h.Use)})
		}
	}
}

// measure measures filesystems. After one that does not answer in time, the others may still take as long
// each, so it stops at the end of the context.
func (x *Executor) measure(ctx context.Context, args task.Measure) *task.Measured {
	measured := &task.Measured{Filesystems: make([]*task.Usage, len(args.Filesystems))}
	directories := x.config.Dir.StorageDirectories()
	for i, o := range args.Filesystems {
		at := slices.IndexFunc(directories, func(d provider.StorageDirectory) bool { return string(d.Provider) == o.Provider })
		if at < 0 || ctx.Err() != nil {
			continue
		}
		// What cannot be measured has no usage.
		measured.Filesystems[i], _ = ask(x, "the usage", o, func() (*task.Usage, error) {
			u, ok, err := directories[at].Usage(ctx, o.ID)
			if !ok {
				return nil, errors.Trace(err)
			}
			return usage(u), nil
		})
	}
	return measured
}

func usage(u provider.Usage) *task.Usage {
	return &task.Usage{Size: u.Size, Used: u.Size - u.Free, Available: u.Available, Shared: u.Shared}
}

// ask returns an answer about an object, unless that takes too long.
func ask[T any](x *Executor, what string, o task.Ref, question func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	a, err := patience.Ask(x.looking, what+" "+o.Provider+" "+o.ID, func() answer {
		value, err := question()
		return answer{value, err}
	})
	if err == nil {
		err = a.err
	}
	return a.value, errors.Trace(err)
}

// Operations returns the unfinished operations of this process's workers on volumes and filesystems, sorted
// by entity. The entities are tags.
func (x *Executor) Operations(entities []string) []task.Operation {
	if x.config.Progress == nil {
		return nil
	}
	var tags []names.Tag
	for _, entity := range entities {
		if tag, err := names.ParseTag(entity); err == nil {
			tags = append(tags, tag)
		}
	}
	progress := x.config.Progress(tags)
	var all []task.Operation
	for _, entity := range slices.Sorted(maps.Keys(progress)) {
		entry, _ := progress[entity].(map[string]any)
		all = append(all, task.Operation{
			Entity: entity, Operation: field[string](entry, "operation"), State: field[string](entry, "state"),
			Since: field[time.Time](entry, "since"), WaitsFor: truncate(field[string](entry, "waits-for")),
			Failures: field[int](entry, "failures"), LastFailure: truncate(field[string](entry, "last-failure")),
			NextAttempt: field[time.Time](entry, "next-attempt"),
		})
	}
	return all
}

// field returns the value of a key that has the type, or the zero value.
func field[T any](entry map[string]any, key string) T {
	value, _ := entry[key].(T)
	return value
}

// bound shortens a list of a result.
func bound[T any](found *task.Looked, list *[]T, what string) {
	if more := len(*list) - maxLooked; more > 0 {
		*list = (*list)[:maxLooked]
		found.Notes = append(found.Notes, fmt.Sprintf("%d more %s are left out", more, what))
	}
}

func addMissing[T comparable](list []T, value T) []T {
	if slices.Contains(list, value) {
		return list
	}
	return append(list, value)
}

// truncate shortens a text of others.
func truncate(text string) string {
	if len(text) <= maxLookedText {
		return text
	}
	return strings.ToValidUTF8(text[:maxLookedText], "") + "…"
}
