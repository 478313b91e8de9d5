package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/e2e/internal/command"
	"github.com/stowage-io/stowage/e2e/internal/kernel"
)

// converge waits until everything is as wanted, and checks the data. It resolves the doubtful
// operations first.
func (s *soak) converge(begun time.Time) error {
	ctx, cancel := limited()
	defer cancel()
	status, err := s.stowage.Poll(ctx)
	if err != nil {
		return err
	}
	if err := s.resolve(status); err != nil {
		return err
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		problems, err := s.problems(status)
		if err != nil {
			return err
		}
		if len(problems) == 0 {
			break
		}
		if time.Since(begun) > liveness {
			return fmt.Errorf("after %s:\n\t%s", liveness, strings.Join(problems, "\n\t"))
		}
		select {
		case <-again.C:
		case <-s.agent.Ended:
			return fmt.Errorf("the agent has ended by itself: %w", s.agent.Err())
		}
		if status, err = s.stowage.Poll(ctx); err != nil {
			return err
		}
	}
	took := time.Since(begun)
	s.figures.checks++
	s.figures.waited += took
	s.figures.slowest = max(s.figures.slowest, took)
	s.note("all is as wanted after %s", took)
	if err := os.Truncate(s.log, 0); err != nil {
		return err
	}
	return s.settle(status)
}

// settle records that everything is as wanted, and checks the data.
func (s *soak) settle(status map[string]command.Storage) error {
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		i := s.all[name]
		if i.want == nil {
			delete(s.all, name)
			continue
		}
		row := status[name]
		i.settled = &row
		if i.want.attached {
			i.made = true
			if err := s.checkData(i, row.Location); err != nil {
				return err
			}
		}
	}
	return nil
}

// problems returns what is wrong with the agent's status, the kernel's devices and mounts, the
// files on disk, and the agent's use of resources.
func (s *soak) problems(status map[string]command.Storage) ([]string, error) {
	p := problems{soak: s, status: status}
	all, err := p.look(p.objects, p.agents, p.shownSnapshots, p.devices, p.driverDevices, p.mounted, p.files, p.snapshotFiles, p.driverVolumes, p.processes, p.resources)
	if err == nil && len(all) == 0 {
		s.settleSnapshots(p.listed)
	}
	return all, err
}

// look runs checks until one finds problems, and returns those: other problems follow from
// them, or show up next time.
func (p *problems) look(checks ...func() error) ([]string, error) {
	for _, check := range checks {
		if err := check(); err != nil {
			return nil, err
		}
		if len(p.all) > 0 {
			break
		}
	}
	return p.all, nil
}

type problems struct {
	*soak
	status map[string]command.Storage
	listed map[string]user.Snapshot
	all    []string
}

func (p *problems) add(format string, args ...any) {
	p.all = append(p.all, fmt.Sprintf(format, args...))
}

// agents checks the status that the agent shows.
func (p *problems) agents() error {
	for name, row := range p.status {
		if i, ok := p.soak.all[name]; !ok || i.want == nil {
			p.add("%s is not gone: %+v", name, row)
		}
	}
	for name, i := range p.soak.all {
		row, there := p.status[name]
		switch {
		case i.want == nil:
		case !there || row.Life != "alive" || row.WantedMiB != i.want.size:
			p.add("%s is not %s: %+v", name, i.want, row)
		case i.want.attached:
			if row.Status != "attached" || row.Location == "" || len(row.Attachments) != 1 || row.Attachments[0].Life != "alive" ||
				row.SizeMiB < i.want.size || !i.block() && row.Location != i.mount {
				p.add("%s is not %s: %+v", name, i.want, row)
			}
		case row.Status == "detaching" || row.Location != "" || len(row.Attachments) != 0:
			p.add("%s is not %s: %+v", name, i.want, row)
		}
	}
	return nil
}

// volumeFile returns the file of an instance's loop volume, which exists once the agent shows
// the volume.
func (s *soak) volumeFile(i *instance) string {
	return filepath.Join(s.boundStorage(), "loop/volumes", i.objects[volume])
}

// devices checks that each attached volume has one loop device, and that there are no others.
func (p *problems) devices() error {
	found, err := p.loops()
	if err != nil {
		return err
	}
	for name, i := range p.soak.all {
		if i.want == nil || !i.onVolume() || !i.want.attached {
			continue
		}
		row := p.status[name]
		file := p.volumeFile(i)
		switch devices := found[file]; {
		case len(devices) != 1:
			p.add("%s is behind the loop devices %v", file, devices)
		case i.block() && devices[0] != row.Location:
			p.add("%s is at %s, and said to be at %s", name, devices[0], row.Location)
		}
		delete(found, file)
	}
	for file, devices := range found {
		p.add("nothing needs %v of %s", devices, file)
	}
	return nil
}

// loops returns the loop devices of volumes, by their files.
func (p *problems) loops() (map[string][]string, error) {
	loops, err := kernel.Loops(p.boundStorage())
	found := map[string][]string{}
	for _, l := range loops {
		found[l.File] = append(found[l.File], l.Path)
	}
	return found, err
}

// mounted checks that each attached filesystem is mounted once, that nothing else is mounted,
// and that there are no other mount points.
func (p *problems) mounted() error {
	mounts, err := kernel.Mounts(p.mounts)
	if err != nil {
		return err
	}
	loops, err := p.loops()
	if err != nil {
		return err
	}
	type mount struct{ kind, source string }
	found := map[string][]mount{}
	for _, m := range mounts {
		found[m.Mountpoint] = append(found[m.Mountpoint], mount{m.FSType, m.Source})
	}
	points, mountPoints := map[string]bool{p.mounts: true}, map[string]bool{}
	for name, i := range p.soak.all {
		if i.want == nil || i.block() || !i.want.attached {
			continue
		}
		for path := i.mount; path != p.mounts; path = filepath.Dir(path) {
			points[path] = true
		}
		mountPoints[i.mount] = true
		kind := i.filesystem
		if kind == "rootfs" {
			kind = p.dataDisk.kind
		}
		there := found[i.mount]
		if len(there) != 1 || there[0].kind != kind || i.onVolume() && !slices.Equal(loops[p.volumeFile(i)], []string{there[0].source}) {
			p.add("%s should be mounted once at %s: %v", name, i.mount, there)
		}
		delete(found, i.mount)
	}
	for path, there := range found {
		p.add("nothing is to be mounted at %s: %v", path, there)
	}
	return filepath.WalkDir(p.mounts, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !points[path]:
			p.add("the mount point %s is left", path)
			return fs.SkipDir
		case mountPoints[path]:
			return fs.SkipDir // its contents are the user's
		}
		return nil
	})
}

// files checks that all files, directories and records belong to existing storage.
func (p *problems) files() error {
	top := p.boundStorage()
	required := map[string]bool{}
	// snapshotFiles checks what is in these.
	allowed := map[string]bool{snapshotDir + "/volumes": true, snapshotDir + "/records": true, snapshotDir + "/.trash": true}
	for _, i := range p.soak.all {
		if i.want == nil {
			continue
		}
		var paths []string
		if i.onVolume() {
			paths = append(paths, "loop/volumes/"+i.objects[volume], i.record(volume))
		}
		if i.block() && i.provider == driverName {
			paths = append(paths, i.record(volume))
		}
		if !i.block() {
			paths = append(paths, i.record(filesystem))
		}
		if i.pool == "rootfs" {
			paths = append(paths, "rootfs/filesystems/"+i.objects[filesystem])
		}
		for _, path := range paths {
			allowed[path] = true
			if i.want.attached || i.made {
				required[path] = true
			}
		}
	}
	found, err := filepath.Glob(top + "/*/*/*")
	if err != nil {
		return err
	}
	hidden, err := filepath.Glob(top + "/*/*/.*")
	if err != nil {
		return err
	}
	// The directories of a driver's volumes are one level deeper.
	records, err := filepath.Glob(filepath.Join(top, driverName, "*/records/*"))
	if err != nil {
		return err
	}
	for _, path := range slices.Concat(found, hidden, records) {
		path = path[len(top)+1:]
		if !allowed[path] && !isOfDriver(path) {
			p.add("%s is nobody's", path)
		}
		delete(required, path)
	}
	for path := range required {
		p.add("%s is missing", path)
	}
	return nil
}

// isOfDriver reports whether a path is a directory of volumes of a driver, or of their parts.
func isOfDriver(path string) bool {
	parts := strings.Split(path, "/")
	return parts[0] == driverName && len(parts) <= 3
}

// processes checks that neither this agent nor an earlier one has left processes running.
func (p *problems) processes() error {
	for _, parent := range []int{os.Getpid(), p.agent.PID()} {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
		if err != nil {
			return err
		}
		for _, list := range lists {
			pids, _ := os.ReadFile(list) // the thread may have ended
			for _, text := range strings.Fields(string(pids)) {
				pid, err := strconv.Atoi(text)
				if err != nil {
					return err
				}
				if pid == p.agent.PID() || p.second != nil && pid == p.second.PID() || p.driver.is(pid) {
					continue
				}
				if parent == os.Getpid() { // no one else would wait for a child that has ended
					_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
				}
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				p.add("process %d is left: %s", pid, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
	}
	return nil
}

// resources are the machine's resources that an idle agent uses.
type resources struct {
	descriptors, goroutines int
}

// resources checks that the agent uses little more than one without storage.
func (p *problems) resources() error {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.agent.PID()))
	if err != nil {
		return err
	}
	now := resources{descriptors: len(entries)}
	if now.goroutines, err = p.goroutines(); err != nil {
		return err
	}
	if p.rest == (resources{}) {
		p.rest = now
	}
	// A connection may be about to close, runners come with their sources, and some watchers
	// start a moment after the first measurement. A leak soon exceeds this.
	const more, hands = 8, 64
	if now.descriptors > p.rest.descriptors+more || now.goroutines > p.rest.goroutines+hands {
		p.add("at rest the agent has %+v, but it had %+v in the beginning", now, p.rest)
	}
	p.figures.mostFDs = max(p.figures.mostFDs, now.descriptors)
	p.figures.mostGoroutines = max(p.figures.mostGoroutines, now.goroutines)
	return nil
}

// goroutines reads the number of goroutines from the agent's metrics. The page is available
// soon after the socket is.
func (s *soak) goroutines() (n int, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	err = eventually(patience, func() error {
		response, err := client.Get("http://" + s.metrics + "/metrics")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
				n, err = strconv.Atoi(text)
				return err
			}
		}
		return errors.New("the metrics lack go_goroutines")
	})
	return n, err
}
