// Package command runs the stowage command as its users do: the built binary, in separate
// processes.
package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stowage-io/stowage/api/user"
)

// Build builds the command in a directory, and returns its path.
func Build(dir string) (string, error) {
	binary := filepath.Join(dir, "stowage")
	build := exec.Command("go", "build", "-o", binary, "github.com/stowage-io/stowage/cmd/stowage")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the command: %w\n%s", err, out)
	}
	return binary, nil
}

// Stowage is a built command and the data directory of its agent.
type Stowage struct {
	Binary  string
	DataDir string
	// StartProcess starts the agent's process; nil: (*exec.Cmd).Start.
	StartProcess func(*exec.Cmd) error
}

// Result is the result of a command.
type Result struct {
	Command        string
	Stdout, Stderr string
	Code           int
}

// All returns the result as a terminal shows it.
func (r Result) All() string {
	return fmt.Sprintf("$ %s\n%s%s[exit status %d]\n", r.Command, r.Stdout, r.Stderr, r.Code)
}

// Run runs a command to its end. It returns an error if the context ends first, but not if the
// command fails.
func (s Stowage) Run(ctx context.Context, args ...string) (Result, error) {
	r := Result{Command: "stowage " + strings.Join(args, " ")}
	cmd := exec.CommandContext(ctx, s.Binary, args...)
	cmd.Env = append(os.Environ(), "STOWAGE_DIR="+s.DataDir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r.Stdout, r.Stderr = stdout.String(), stderr.String()
	if ctx.Err() != nil {
		return r, fmt.Errorf("%s: %w\n%s%s", r.Command, ctx.Err(), r.Stdout, r.Stderr)
	}
	if cmd.ProcessState == nil {
		return r, err
	}
	r.Code = cmd.ProcessState.ExitCode()
	return r, nil
}

// Storage is an object in the output of `status -o json`, and Orphan one in that of `orphans -o
// json`.
type (
	Storage = user.Storage
	Orphan  = user.Orphan
)

// Status returns all storage by name.
func (s Stowage) Status(ctx context.Context) (map[string]Storage, error) {
	list, err := show[Storage](ctx, s, "status")
	if err != nil {
		return nil, err
	}
	return byName(list), nil
}

// Poll returns what Status returns, but asks the agent on its socket. It is for loops that ask
// often: a process for each question takes most of their CPU time.
func (s Stowage) Poll(ctx context.Context) (map[string]Storage, error) {
	client, err := user.NewClient(user.Config{URL: "http://stowage", Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.DataDir, "stowage.sock"))
		},
		DisableKeepAlives: true,
	}})
	if err != nil {
		return nil, err
	}
	all, err := client.Storage(ctx, nil)
	if err != nil {
		return nil, err
	}
	return byName(all), nil
}

func byName(list []Storage) map[string]Storage {
	all := make(map[string]Storage)
	for _, s := range list {
		all[s.Name] = s
	}
	return all
}

// Orphans returns the orphans, and other objects of providers that belong to no storage.
func (s Stowage) Orphans(ctx context.Context) ([]Orphan, error) {
	return show[Orphan](ctx, s, "orphans")
}

// show runs a command that prints a list, and returns the list.
func show[T any](ctx context.Context, s Stowage, verb string) ([]T, error) {
	r, err := s.Run(ctx, verb, "-o", "json")
	if err != nil {
		return nil, err
	}
	if r.Code != 0 {
		return nil, errors.New(r.All())
	}
	decoder := json.NewDecoder(strings.NewReader(r.Stdout))
	decoder.DisallowUnknownFields()
	var list []T
	if err := decoder.Decode(&list); err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, r.Stdout)
	}
	return list, nil
}
