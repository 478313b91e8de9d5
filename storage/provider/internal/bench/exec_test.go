//go:build linux

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/juju/errors"
)

// classic does a step the classic way: one command for the step itself, and two more after
// mounting.
func classic(ctx context.Context, s step, i *item) error {
	switch s {
	case allocate:
		return command(ctx, "fallocate", "-l", fmt.Sprintf("%dM", i.size), i.file)
	case attach:
		return classicAttach(ctx, i)
	case format:
		return command(ctx, "mkfs.ext4", i.device)
	case mount:
		return classicMount(ctx, i)
	case unmount:
		if err := command(ctx, "umount", i.mountPoint); err != nil {
			return err
		}
		return os.Remove(i.mountPoint)
	case detach:
		return command(ctx, "losetup", "-d", i.device)
	case remove:
		return command(ctx, "rm", i.file)
	}
	return errors.NotImplementedf("%s", s)
}

// classicAttach tries again when losetup fails, because losetup fails if another program takes
// or removes the free device that it has found.
func classicAttach(ctx context.Context, i *item) (err error) {
	for range 10 {
		var out []byte
		if out, err = exec.CommandContext(ctx, "losetup", "-f", "--show", i.file).Output(); err == nil {
			i.device = strings.TrimSpace(string(out))
			return nil
		}
	}
	return errors.Annotate(err, "losetup")
}

func classicMount(ctx context.Context, i *item) error {
	if err := os.Mkdir(i.mountPoint, 0o755); err != nil {
		return err
	}
	args := map[kind][]string{
		ext4:  {i.device},
		tmpfs: {"-t", "tmpfs", "-o", fmt.Sprintf("size=%dM", i.size), "tmpfs"},
		bind:  {"--bind", i.file},
	}[i.kind]
	if err := command(ctx, "mount", append(args, i.mountPoint)...); err != nil {
		return err
	}
	if err := command(ctx, "findmnt", i.mountPoint); err != nil {
		return err
	}
	return command(ctx, "df", i.mountPoint)
}

func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return errors.Annotatef(err, "%s %s: %s", name, strings.Join(args, " "), out)
}
