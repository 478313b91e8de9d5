package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/juju/errors"
)

// classic does a step the classic way: one command for the step itself. Mounting runs two more
// commands, which check that the mount exists and how large it is.
func classic(ctx context.Context, s step, t *item) error {
	switch s {
	case allocate:
		return errors.Trace(command(ctx, "fallocate", "-l", fmt.Sprintf("%dM", t.size), t.file))
	case attach:
		out, err := exec.CommandContext(ctx, "losetup", "-f", "--show", t.file).Output()
		t.device = strings.TrimSpace(string(out))
		return errors.Annotate(err, "losetup")
	case format:
		return errors.Trace(command(ctx, "mkfs.ext4", t.device))
	case mount:
		return errors.Trace(classicMount(ctx, t, t.device))
	case unmount:
		return errors.Trace(classicUnmount(ctx, t))
	case detach:
		return errors.Trace(command(ctx, "losetup", "-d", t.device))
	case remove:
		return errors.Trace(command(ctx, "rm", t.file))
	}
	return errors.NotImplementedf("%s", s)
}

func classicTmpfs(ctx context.Context, s step, t *item) error {
	if s == unmount {
		return errors.Trace(classicUnmount(ctx, t))
	}
	return errors.Trace(classicMount(ctx, t, "-t", "tmpfs", "-o", fmt.Sprintf("size=%dM", t.size), "tmpfs"))
}

func classicBind(ctx context.Context, s step, t *item) error {
	if s == unmount {
		return errors.Trace(classicUnmount(ctx, t))
	}
	return errors.Trace(classicMount(ctx, t, "--bind", t.file))
}

func classicMount(ctx context.Context, t *item, args ...string) error {
	if err := os.Mkdir(t.mountPoint, 0o755); err != nil {
		return errors.Trace(err)
	}
	if err := command(ctx, "mount", append(args, t.mountPoint)...); err != nil {
		return errors.Trace(err)
	}
	if err := command(ctx, "findmnt", t.mountPoint); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(command(ctx, "df", t.mountPoint))
}

func classicUnmount(ctx context.Context, t *item) error {
	if err := command(ctx, "umount", t.mountPoint); err != nil {
		return errors.Trace(err)
	}
	return errors.Trace(os.Remove(t.mountPoint))
}

func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	return errors.Annotatef(err, "%s %s: %s", name, strings.Join(args, " "), out)
}
