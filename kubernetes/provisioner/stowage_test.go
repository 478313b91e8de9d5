package provisioner_test

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/life"
	"github.com/stowage-io/stowage/core/status"
)

// fakeStowage has storage in memory. Its zero hooks attach storage and remove it at once.
type fakeStowage struct {
	pools    []user.Pool
	machines []user.Machine

	mu      sync.Mutex
	storage map[string]user.Storage
	changed chan struct{} // closed at each change
	applied []string      // the machines that storage was added on
	removed []string
	entries []map[string]string // the entries of the files
	// fail returns the error of a request, by its name.
	fail func(request string) error
	// refuses are machines that Apply refuses.
	refuses map[string]bool
	// outcome sets the status of new storage; nil: it is attached.
	outcome func(*user.Storage)
	// keep keeps removed storage dying.
	keep bool
	// device is the path of block devices.
	device string
}

func newFakeStowage() *fakeStowage {
	return &fakeStowage{
		pools: []user.Pool{{Name: "fast", Provider: "loop"}, {Name: "memory", Provider: "tmpfs"}, {Name: "dirs", Provider: "rootfs"}, {Name: "array", Provider: "disks"}},
		machines: []user.Machine{
			{Name: "m1", Number: "0", Status: user.MachineUp, Labels: map[string]string{"disk": "ssd"}, Space: map[string]user.MachineSpace{"loop": {SizeMiB: 2000, FreeMiB: 1000}}},
			{Name: "m2", Number: "1", Status: user.MachineUp},
		},
		storage: map[string]user.Storage{},
		changed: make(chan struct{}),
		device:  "/dev/disk/by-id/volume-1",
	}
}

func (f *fakeStowage) failure(request string) error {
	if f.fail == nil {
		return nil
	}
	return f.fail(request)
}

// change changes the storage, and wakes those who watch.
func (f *fakeStowage) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeStowage) get(name string) (user.Storage, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.storage[name]
	return s, ok
}

func (f *fakeStowage) Pools(context.Context) ([]user.Pool, error) { return f.pools, f.failure("pools") }

func (f *fakeStowage) Machines(context.Context) ([]user.Machine, error) {
	return f.machines, f.failure("machines")
}

func (f *fakeStowage) Storage(_ context.Context, names []string) ([]user.Storage, error) {
	if err := f.failure("storage"); err != nil {
		return nil, err
	}
	s, ok := f.get(names[0])
	if !ok {
		return nil, errors.NotFoundf("storage %q", names[0])
	}
	return []user.Storage{s}, nil
}

func (f *fakeStowage) Apply(_ context.Context, args user.ApplyArgs) (user.ApplyResult, error) {
	var file struct{ Storage []map[string]string }
	if err := json.Unmarshal([]byte(args.Content), &file); err != nil {
		return user.ApplyResult{}, err
	}
	d := file.Storage[0]
	if f.refuses[d["machine"]] {
		return user.ApplyResult{}, errors.NewNotValid(nil, "no space on machine "+d["machine"])
	}
	err := f.failure("apply")
	if err != nil && (errors.Is(err, errors.NotValid) || errors.Is(err, errors.Unauthorized)) {
		return user.ApplyResult{}, err
	}
	pool, size, _ := strings.Cut(d["directive"], ",")
	mib, parsed := strconv.ParseUint(strings.TrimSuffix(size, "M"), 10, 64)
	if parsed != nil {
		return user.ApplyResult{}, parsed
	}
	f.change(func() {
		f.entries = append(f.entries, d)
		if _, ok := f.storage[d["name"]]; ok {
			return
		}
		s := user.Storage{
			Name: d["name"], Kind: d["kind"], Pool: pool, SizeMiB: mib, WantedMiB: mib, Life: life.Alive,
			Attachments: []user.Attachment{{Machine: d["machine"], Life: life.Alive}},
			Status:      status.Attached, Location: d["mount"],
		}
		if s.Kind == "block" {
			s.Location = f.device
		}
		if f.outcome != nil {
			f.outcome(&s)
		}
		f.storage[s.Name] = s
		f.applied = append(f.applied, d["machine"])
	})
	return user.ApplyResult{}, err
}

func (f *fakeStowage) Attach(_ context.Context, args user.AttachArgs) (user.ChangesResult, error) {
	f.change(func() {
		s := f.storage[args.Names[0]]
		s.Attachments, s.Status, s.Location = []user.Attachment{{Machine: "m1"}}, status.Attached, "/volumes/"+s.Name
		f.storage[s.Name] = s
	})
	return user.ChangesResult{}, nil
}

func (f *fakeStowage) RemoveStorage(_ context.Context, args user.RemoveArgs) error {
	names := args.Names
	if args.Way != "kubernetes" {
		return errors.NotValidf("removing storage as %q", args.Way)
	}
	if err := f.failure("remove"); err != nil {
		return err
	}
	if _, ok := f.get(names[0]); !ok {
		return errors.NotFoundf("storage %q", names[0])
	}
	f.change(func() {
		f.removed = append(f.removed, names[0])
		if f.keep {
			s := f.storage[names[0]]
			s.Life, s.Status = life.Dying, status.Detaching
			f.storage[names[0]] = s
			return
		}
		delete(f.storage, names[0])
	})
	return nil
}

func (f *fakeStowage) Watch(ctx context.Context, names []string, each func(user.Event) error) error {
	if err := f.failure("watch"); err != nil {
		return err
	}
	had := false
	for {
		f.mu.Lock()
		s, ok := f.storage[names[0]]
		changed := f.changed
		f.mu.Unlock()
		var event user.Event
		switch {
		case ok:
			event.Storage = []user.Storage{s}
		case had:
			event.Gone = names
		}
		had = ok
		if err := each(event); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
