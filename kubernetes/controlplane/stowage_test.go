package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/kubernetes/internal/connection"
)

// installation is a stowage server with the agents of two machines, node-1 and node-2, and a context
// to use it with.
type installation struct {
	dir, binary, provisioner string
	address                  string
	server                   *process
	agents                   map[string]*process
	client                   *user.Client
}

var machines = []string{"node-1", "node-2"}

func (s *installation) path(name string) string { return filepath.Join(s.dir, name) }

// run runs a command of stowage for the server, and returns its output.
func (s *installation) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.binary, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.path("config"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("stowage %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// token makes a token, and returns the file that has it.
func (s *installation) token(ctx context.Context, role string) (string, error) {
	text, err := s.run(ctx, "token", "create", "--data-dir", s.path("server"), "--role", role)
	if err != nil {
		return "", err
	}
	file := s.path("token-" + role)
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// startStowage builds the commands, and starts a server and agents.
func startStowage(ctx context.Context, dir string) (*installation, error) {
	s := &installation{dir: dir, binary: filepath.Join(dir, "stowage"), provisioner: filepath.Join(dir, "stowage-provisioner"), agents: map[string]*process{}}
	for binary, where := range map[string][2]string{
		s.binary:      {"../..", "./cmd/stowage"},
		s.provisioner: {"..", "./cmd/stowage-provisioner"},
	} {
		build := exec.CommandContext(ctx, "go", "-C", where[0], "build", "-p=1", "-o", binary, where[1])
		if out, err := build.CombinedOutput(); err != nil {
			return s, fmt.Errorf("building %s: %w: %s", where[1], err, out)
		}
	}
	port, err := freePort()
	if err != nil {
		return s, err
	}
	s.address = "127.0.0.1:" + port
	s.server, err = start(s.dir, "stowage-server", nil, s.binary, "server", "--data-dir", s.path("server"), "--listen", s.address)
	if err != nil {
		return s, err
	}
	if s.client, err = connection.OpenSocket(filepath.Join(s.path("server"), "stowage.sock")); err != nil {
		return s, err
	}
	if err := await(ctx, func(ctx context.Context) (bool, error) { _, err := s.client.Machines(ctx); return err == nil, nil }); err != nil {
		return s, fmt.Errorf("the server is not ready: %w: %s", err, s.server.tail())
	}
	for _, name := range machines {
		token, err := s.token(ctx, "machine")
		if err != nil {
			return s, err
		}
		if err := s.startAgent(name, "--token-file", token); err != nil {
			return s, err
		}
		if err := s.up(ctx, name); err != nil {
			return s, err
		}
	}
	token, err := s.token(ctx, "admin")
	if err != nil {
		return s, err
	}
	_, err = s.run(ctx, "login", "https://"+s.address, "--name", "kubernetes", "--as", "test", "--token-file", token)
	return s, err
}

func (s *installation) startAgent(name string, flags ...string) (err error) {
	args := append([]string{"agent", "--data-dir", s.path(name), "--machine", name, "--server", "https://" + s.address}, flags...)
	s.agents[name], err = start(s.dir, name, nil, s.binary, args...)
	return err
}

// up waits until the agent of a machine is connected, and its space is known.
func (s *installation) up(ctx context.Context, name string) error {
	err := await(ctx, func(ctx context.Context) (bool, error) {
		all, err := s.client.Machines(ctx)
		for _, m := range all {
			if m.Name == name && m.Status == user.MachineUp && len(m.Space) > 0 {
				return true, nil
			}
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("machine %s is not up: %w: %s", name, err, s.agents[name].tail())
	}
	return nil
}

func (s *installation) stop() error {
	var failed []error
	for _, agent := range s.agents {
		failed = append(failed, agent.stop())
	}
	if s.client != nil {
		s.client.Close()
	}
	if s.server != nil {
		failed = append(failed, s.server.stop())
	}
	return errors.Join(failed...)
}

// leftovers returns the storage, mounts and loop devices that are below the directory.
func (s *installation) leftovers(ctx context.Context) ([]string, error) {
	all, err := s.client.Storage(ctx, nil)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, storage := range all {
		left = append(left, "storage "+storage.Name)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], s.dir+"/") {
			left = append(left, "mount "+fields[4])
		}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		backing, err := os.ReadFile(file) // it is gone if the device is
		if err == nil && strings.HasPrefix(string(backing), s.dir+"/") {
			left = append(left, "loop device of "+strings.TrimSpace(string(backing)))
		}
	}
	return left, nil
}
