package privilege

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/juju/names/v5"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/storage/provider"
)

// Environment variables that make the test binary an agent without some capabilities.
const (
	dropEnv = "PRIVILEGE_TEST_DROP" // numbers, separated by commas; "done" after they are dropped
	dirEnv  = "PRIVILEGE_TEST_DIR"
)

// user is a user ID that is not root. Its processes have no capabilities.
const user = 1000

func TestMain(m *testing.M) {
	switch drop, ok := os.LookupEnv(dropEnv); {
	case !ok:
		os.Exit(m.Run())
	case drop != "done":
		fmt.Fprintln(os.Stderr, dropAndExec(drop))
		os.Exit(1)
	}
	if err := work(os.Getenv(dirEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dropAndExec executes the program again without the capabilities. It removes them from
// the bounding set, because on exec root gets only the capabilities in that set.
func dropAndExec(numbers string) error {
	runtime.LockOSThread()
	for number := range strings.SplitSeq(numbers, ",") {
		n, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil {
			return err
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, dropEnv+"=") })
	return unix.Exec("/proc/self/exe", os.Args, append(env, dropEnv+"=done"))
}

// outcome is how a piece of work ended, as its process writes it.
type outcome struct {
	Work      string
	Error     string // empty on success
	Permanent bool

	// Ask is set for a request instead: a process with all capabilities shall do it in the
	// directory Path.
	Ask, Path string
}

// agent does pieces of work in a directory.
type agent struct {
	dir string
	ctx envcontext.ProviderCallContext
	out *json.Encoder
	in  *bufio.Reader
}

// Pieces of an agent's work.
const (
	loopVolume    = "a volume"
	growVolume    = "a volume, growing"
	loopReadOnly  = "a read-only volume"
	loopExt4      = "ext4"
	growExt4      = "ext4, growing"
	growXFS       = "xfs, growing"
	growBtrfs     = "btrfs, growing"
	tmpfsMount    = "tmpfs"
	rootfsMount   = "a rootfs directory, mounted"
	rootfsInPlace = "a rootfs directory"
	mountInUsers  = "a mount in a user's directory"
	destroyUsers  = "a rootfs directory that holds a user's"
	destroySticky = "a rootfs directory that holds a user's sticky one"
	copyUsers     = "a snapshot of a rootfs directory with a user's file"
	copyDevice    = "a snapshot of a rootfs directory with a device"
	copyProgram   = "a snapshot of a rootfs directory with a program that has capabilities"
	importVolume  = "a volume from a user's file"
	importRootfs  = "a rootfs directory from a user's"
	nameHolders   = "who keeps a mount busy"
	receiveEvents = "a large buffer for device events"
)

func (a *agent) path(name string) string { return filepath.Join(a.dir, name) }

// work does everything that an agent does, and writes the outcome of each piece.
func work(dir string) error {
	a := &agent{dir: dir, ctx: envcontext.New(context.Background()), out: json.NewEncoder(os.Stdout), in: bufio.NewReader(os.Stdin)}
	for _, piece := range []struct {
		name string
		do   func() error
	}{
		{loopVolume, func() error { return a.volume("", 1, writable) }},
		{growVolume, func() error { return a.volume("", 1, writable|growing) }},
		{loopReadOnly, func() error { return a.volume("", 1, 0) }},
		{loopExt4, func() error { return a.volume("ext4", 8, writable) }},
		{growExt4, func() error { return a.volume("ext4", 8, writable|growing) }},
		{growXFS, func() error { return a.volume("xfs", 304, writable|growing) }},
		// The kernel does not grow a btrfs to less than 256 MiB.
		{growBtrfs, func() error { return a.volume("btrfs", 128, writable|growing) }},
		{tmpfsMount, func() error { return a.filesystem(provider.TmpfsProviderType, a.path("at"), nil) }},
		{rootfsMount, func() error { return a.filesystem(provider.RootfsProviderType, a.path("at"), nil) }},
		{rootfsInPlace, func() error { return a.filesystem(provider.RootfsProviderType, "", nil) }},
		{mountInUsers, func() error {
			return a.filesystem(provider.TmpfsProviderType, filepath.Join(dir, "user", "at"), nil)
		}},
		{destroyUsers, func() error { return a.filesystem(provider.RootfsProviderType, "", a.request("private")) }},
		{destroySticky, func() error { return a.filesystem(provider.RootfsProviderType, "", a.request("sticky")) }},
		{copyUsers, func() error { return a.snapshot("setgid") }},
		{copyDevice, func() error { return a.snapshot("device") }},
		{copyProgram, func() error { return a.snapshot("program") }},
		{importVolume, a.importVolume},
		{importRootfs, a.importRootfs},
		{nameHolders, func() error { return a.filesystem(provider.TmpfsProviderType, a.path("at"), a.detachBusy) }},
		{receiveEvents, receiveBuffer},
	} {
		// Each piece has its own directory, because a failed piece may leave files.
		a.dir = filepath.Join(dir, piece.name)
		if err := os.Mkdir(a.dir, 0o711); err != nil {
			return err
		}
		o := outcome{Work: piece.name}
		if err := piece.do(); err != nil {
			o.Error, o.Permanent = err.Error(), storage.IsPermanent(err)
		}
		if err := a.out.Encode(o); err != nil {
			return err
		}
	}
	return nil
}

// firstResult returns the result of a bulk call on a single item.
func firstResult[T any](results []T, err error) (result T, _ error) {
	if err != nil {
		return result, err
	}
	return results[0], nil
}

// firstError returns the error of a bulk call on a single item.
func firstError(results []error, err error) error {
	if err != nil {
		return err
	}
	return results[0]
}

func (a *agent) config(p storage.ProviderType) (storage.Provider, *storage.Config, error) {
	found, err := provider.CommonStorageProviders().StorageProvider(p)
	if err != nil {
		return nil, nil, err
	}
	config, err := storage.NewConfig("pool", p, storage.Attrs{storage.ConfigStorageDir: a.path(string(p))})
	return found, config, err
}

var (
	volumeTag     = names.NewVolumeTag("0/0")
	filesystemTag = names.NewFilesystemTag("0/0")
	machineTag    = names.NewMachineTag("0")
)

// How a volume is used.
const (
	writable = 1 << iota
	growing
)

// volume makes a volume and, if fs is not empty, a filesystem on it. It attaches them, grows
// them if how says so, and then detaches and destroys them.
func (a *agent) volume(fs string, mib uint64, how int) error {
	p, config, err := a.config(provider.LoopProviderType)
	if err != nil {
		return err
	}
	source, err := p.VolumeSource(config)
	if err != nil {
		return err
	}
	made, err := firstResult(source.CreateVolumes(a.ctx, []storage.VolumeParams{{Tag: volumeTag, Size: mib, Provider: provider.LoopProviderType}}))
	if err == nil {
		err = made.Error
	}
	if err != nil {
		return err
	}
	attachment := []storage.VolumeAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Machine: machineTag, ReadOnly: how&writable == 0}, Volume: volumeTag, VolumeId: made.Volume.VolumeId,
	}}
	attached, err := firstResult(source.AttachVolumes(a.ctx, attachment))
	if err == nil {
		err = attached.Error
	}
	grow := func() error {
		if how&growing == 0 {
			return nil
		}
		grown, err := firstResult(source.(storage.VolumeResizer).ResizeVolumes(a.ctx, []storage.VolumeResizeParams{
			{Tag: volumeTag, VolumeId: made.Volume.VolumeId, Size: 2 * mib},
		}))
		return errors.Join(err, grown.Error)
	}
	if err == nil && fs == "" {
		err = grow()
	} else if err == nil {
		info := attached.VolumeAttachment.VolumeAttachmentInfo
		managed := provider.NewManagedFilesystemSource(a.path("managed"),
			device{entry: storage.BlockDevice{DeviceName: info.DeviceName, BusAddress: info.BusAddress}})
		params := storage.FilesystemParams{Tag: filesystemTag, Volume: volumeTag, Size: mib, Attributes: map[string]any{"fs": fs}}
		err = a.exercise(managed, params, a.path("at"), func(string, func() error) error {
			if err := grow(); err != nil || how&growing == 0 {
				return err
			}
			grown, err := firstResult(managed.(storage.FilesystemResizer).ResizeFilesystems(a.ctx, []storage.FilesystemResizeParams{
				{Tag: filesystemTag, FilesystemId: filesystemTag.String(), Size: 2 * mib},
			}))
			return errors.Join(err, grown.Error)
		})
	}
	if derr := firstError(source.DetachVolumes(a.ctx, attachment)); err == nil {
		err = derr
	}
	if derr := firstError(source.DestroyVolumes(a.ctx, []string{made.Volume.VolumeId})); err == nil {
		err = derr
	}
	return err
}

// device is the block device of every volume.
type device struct {
	storage.BackingDevices
	entry storage.BlockDevice
}

func (d device) BlockDevice(names.VolumeTag) (storage.BlockDevice, bool) { return d.entry, true }

// importVolume imports a file as a volume, and destroys it.
func (a *agent) importVolume() error {
	p, config, err := a.config(provider.LoopProviderType)
	if err != nil {
		return err
	}
	source, err := p.VolumeSource(config)
	if err != nil {
		return err
	}
	if err := a.request("users")(a.dir, nil); err != nil {
		return err
	}
	info, err := source.(storage.VolumeImporter).ImportVolume(a.ctx, a.path("users/file"), nil)
	if err != nil {
		return err
	}
	return firstError(source.DestroyVolumes(a.ctx, []string{info.VolumeId}))
}

// importRootfs imports a directory as a filesystem, and releases it.
func (a *agent) importRootfs() error {
	p, config, err := a.config(provider.RootfsProviderType)
	if err != nil {
		return err
	}
	source, err := p.FilesystemSource(config)
	if err != nil {
		return err
	}
	if err := a.request("users")(a.dir, nil); err != nil {
		return err
	}
	info, err := source.(storage.FilesystemImporter).ImportFilesystem(a.ctx, a.path("users/dir"), nil)
	if err != nil {
		return err
	}
	return firstError(source.ReleaseFilesystems(a.ctx, []string{info.FilesystemId}))
}

// snapshot makes a rootfs directory with what is requested in it and a snapshot of it, and destroys both.
func (a *agent) snapshot(what string) error {
	p, config, err := a.config(provider.RootfsProviderType)
	if err != nil {
		return err
	}
	source, err := p.FilesystemSource(config)
	if err != nil {
		return err
	}
	made, err := firstResult(source.CreateFilesystems(a.ctx, []storage.FilesystemParams{{Tag: filesystemTag, Size: 1, Provider: provider.RootfsProviderType}}))
	if err == nil {
		err = made.Error
	}
	if err != nil {
		return err
	}
	id := made.Filesystem.FilesystemId
	if err := a.request(what)(filepath.Join(a.path(string(provider.RootfsProviderType)), "filesystems", id), nil); err != nil {
		return err
	}
	snapshotter := source.(storage.FilesystemSnapshotter)
	taken, err := firstResult(snapshotter.CreateFilesystemSnapshots(a.ctx, []storage.FilesystemSnapshotParams{
		{FilesystemId: id, ResourceTags: map[string]string{storage.EntityUUIDTag: uuid.NewString()}},
	}))
	if err == nil {
		err = taken.Error
	}
	if err == nil {
		err = firstError(snapshotter.DestroyFilesystemSnapshots(a.ctx, []string{taken.Snapshot.SnapshotId}))
	}
	if derr := firstError(source.DestroyFilesystems(a.ctx, []string{id})); err == nil {
		err = derr
	}
	return err
}

// filesystem makes a filesystem that needs no volume, attaches it, calls do, and then
// detaches and destroys the filesystem.
func (a *agent) filesystem(kind storage.ProviderType, path string, do whileAttached) error {
	p, config, err := a.config(kind)
	if err != nil {
		return err
	}
	source, err := p.FilesystemSource(config)
	if err != nil {
		return err
	}
	return a.exercise(source, storage.FilesystemParams{Tag: filesystemTag, Size: 1, Provider: kind}, path, do)
}

// exercise creates, attaches, detaches and destroys a filesystem. It returns the first
// error, and carries out the later steps as far as possible.
func (a *agent) exercise(source storage.FilesystemSource, params storage.FilesystemParams, path string, do whileAttached) error {
	made, err := firstResult(source.CreateFilesystems(a.ctx, []storage.FilesystemParams{params}))
	if err == nil {
		err = made.Error
	}
	if err != nil {
		return err
	}
	id := made.Filesystem.FilesystemId
	attachment := []storage.FilesystemAttachmentParams{{
		AttachmentParams: storage.AttachmentParams{Machine: machineTag},
		Filesystem:       params.Tag, FilesystemId: id, Path: path,
	}}
	attached, err := firstResult(source.AttachFilesystems(a.ctx, attachment))
	if err == nil {
		err = attached.Error
	}
	if err == nil && do != nil {
		err = do(attached.FilesystemAttachment.Path, func() error { return firstError(source.DetachFilesystems(a.ctx, attachment)) })
	}
	if derr := firstError(source.DetachFilesystems(a.ctx, attachment)); err == nil {
		err = derr
	}
	if derr := firstError(source.DestroyFilesystems(a.ctx, []string{id})); err == nil {
		err = derr
	}
	return err
}

// whileAttached is called while a filesystem is attached at path; detach detaches it.
type whileAttached func(path string, detach func() error) error

// request returns a function that asks the process with all capabilities to do something.
func (a *agent) request(what string) whileAttached {
	return func(path string, _ func() error) error {
		if err := a.out.Encode(outcome{Ask: what, Path: path}); err != nil {
			return err
		}
		_, err := a.in.ReadString('\n')
		return err
	}
}

// detachBusy detaches a filesystem that the process of a user keeps busy, and checks
// that the error names the process.
func (a *agent) detachBusy(path string, detach func() error) error {
	if err := a.request("hold")(path, nil); err != nil {
		return err
	}
	err := detach()
	if err == nil {
		err = errors.New("it was detached while a process kept it busy")
	} else if strings.Contains(err.Error(), "(sleep): working directory "+path) {
		err = nil
	}
	return errors.Join(err, a.request("release")(path, nil))
}

// receiveBuffer makes a socket's buffer larger than an unprivileged process may.
func receiveBuffer() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<20)
}

// runWithout runs all work of an agent without the capabilities, and returns how each
// piece of work ended.
func runWithout(t *testing.T, numbers []string) map[string]outcome {
	t.Helper()
	dir := privateDir(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), dropEnv+"="+strings.Join(numbers, ","), dirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &helper{T: t}
	outcomes := make(map[string]outcome)
	for decoder := json.NewDecoder(out); ; {
		var o outcome
		if err := decoder.Decode(&o); err != nil {
			break // the agent has ended
		}
		if o.Ask == "" {
			outcomes[o.Work] = o
			continue
		}
		h.handle(o.Ask, o.Path)
		if _, err := in.Write([]byte("done\n")); err != nil {
			t.Error(err)
		}
	}
	h.handle("release", "")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the agent without %v: %v", numbers, err)
	}
	return outcomes
}

// privateDir returns a directory for an agent, which contains a directory of a user. At the
// end of the test it is cleaned up.
func privateDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "user"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "user"), user, user); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} { // the user has to reach its directory
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { cleanUp(t, dir) })
	return dir
}

// cleanUp unmounts and detaches what an agent made and could not remove.
func cleanUp(t *testing.T, dir string) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Error(err)
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, 0); err != nil {
			t.Errorf("unmounting %s: %v", m.Mountpoint, err)
		}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		if backing, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(backing), dir+"/") {
			t.Errorf("%s is still attached to %s", file, backing)
		}
	}
}

// helper does what an agent requests.
type helper struct {
	*testing.T
	holder *exec.Cmd
}

func (h *helper) handle(what, path string) {
	h.Helper()
	var err error
	switch what {
	case "private", "sticky":
		mode := map[string]os.FileMode{"private": 0o700, "sticky": 0o777 | os.ModeSticky}[what]
		dir := filepath.Join(path, what)
		file := filepath.Join(dir, "file")
		err = errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(file, nil, 0o600), os.Chown(file, user+1, user+1),
			os.Chown(dir, user, user), os.Chmod(dir, mode))
	case "setgid":
		file := filepath.Join(path, "file")
		err = errors.Join(os.WriteFile(file, nil, 0o600), os.Chown(file, user, user), os.Chmod(file, 0o755|os.ModeSetgid))
	case "device":
		err = unix.Mknod(filepath.Join(path, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	case "program":
		file := filepath.Join(path, "program")
		// struct vfs_cap_data, version 2, with CAP_NET_RAW
		err = errors.Join(os.WriteFile(file, nil, 0o700), unix.Setxattr(file, "security.capability",
			[]byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	case "users":
		users := filepath.Join(path, "users")
		file, dir := filepath.Join(users, "file"), filepath.Join(users, "dir")
		err = errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file, make([]byte, 1<<20), 0o600),
			os.Chown(file, user, user), os.Chown(dir, user, user), os.Chown(users, user, user))
	case "hold":
		h.holder = exec.Command("sleep", "60")
		h.holder.Dir = path
		h.holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		err = h.holder.Start()
	case "release":
		if h.holder == nil {
			return
		}
		err = h.holder.Process.Kill()
		_ = h.holder.Wait() // killed
		h.holder = nil
	}
	if err != nil {
		h.Error(err)
	}
}

// needed lists the pieces of work that fail without a capability. All other pieces, such as
// loopVolume, have to work without it.
var needed = map[string][]string{
	"CAP_SYS_ADMIN": {
		growVolume, loopExt4, growExt4, growXFS, growBtrfs, tmpfsMount, rootfsMount, rootfsInPlace,
		mountInUsers, destroyUsers, destroySticky, importRootfs, nameHolders, copyUsers, copyDevice, copyProgram,
	},
	"CAP_SYS_RESOURCE": {growExt4},
	"CAP_DAC_OVERRIDE": {mountInUsers, destroyUsers, importVolume, importRootfs},
	"CAP_CHOWN":        {importVolume, copyUsers},
	"CAP_LEASE":        {importVolume},
	"CAP_FOWNER":       {destroySticky, copyUsers},
	"CAP_FSETID":       {copyUsers, copyDevice, copyProgram},
	"CAP_MKNOD":        {copyDevice},
	"CAP_SETFCAP":      {copyProgram},
	"CAP_SYS_PTRACE":   {nameHolders},
	"CAP_NET_ADMIN":    {receiveEvents},
}

// Without a capability, the work that needs it fails with an error that names it. All other
// work succeeds.
func TestDropEachCapability(t *testing.T) {
	requireRoot(t)
	for _, c := range capabilities() {
		t.Run(c.Name, func(t *testing.T) {
			checkOutcomes(t, runWithout(t, []string{strconv.Itoa(c.number)}), c.Name)
		})
	}
}

// All work succeeds without the capabilities that are not listed as needed.
func TestNoOtherCapabilityIsNeeded(t *testing.T) {
	requireRoot(t)
	last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(last)))
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for number := range n + 1 {
		if !slices.ContainsFunc(capabilities(), func(c capability) bool { return c.number == number }) {
			others = append(others, strconv.Itoa(number))
		}
	}
	checkOutcomes(t, runWithout(t, others), "")
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("STOWAGE_REQUIRE_ROOT") == "1" {
		t.Fatal("dropping capabilities needs root, which STOWAGE_REQUIRE_ROOT=1 promises")
	}
	t.Skip("dropping capabilities needs root")
}

func checkOutcomes(t *testing.T, outcomes map[string]outcome, dropped string) {
	t.Helper()
	effective, err := effectiveCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range append(slices.Clone(needed["CAP_SYS_ADMIN"]), loopVolume, loopReadOnly, importVolume, receiveEvents) {
		if _, ok := outcomes[piece]; !ok {
			t.Errorf("%s: not tried", piece)
		}
	}
	for name, o := range outcomes {
		lacking := ""
		for _, c := range capabilities() {
			if slices.Contains(needed[c.Name], name) && (c.Name == dropped || effective&(1<<c.number) == 0) {
				lacking = c.Name
				break
			}
		}
		switch {
		case lacking == "" && o.Error != "":
			t.Errorf("%s: %s", name, o.Error)
		case lacking == "":
		case o.Error == "":
			t.Errorf("%s: works without %s", name, lacking)
		case name == receiveEvents: // this is the kernel's own error
		case !strings.Contains(o.Error, lacking):
			t.Errorf("%s: the error does not name %s: %s", name, lacking, o.Error)
		case !o.Permanent && name != nameHolders:
			t.Errorf("%s: the error is not permanent: %s", name, o.Error)
		}
	}
}
