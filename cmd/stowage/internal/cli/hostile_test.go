package cli_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/core/status"
)

// Text from other users, such as the name of a process that keeps a mount busy, cannot
// control a terminal. A program that reads JSON or YAML gets the text unchanged.
// Promise S19.
// Finding N16.
func TestOutputEscapesControlCharacters(t *testing.T) {
	const hostile = "clear \x1b[2J, csi \u009b2J, bell \a, lines \r\n, bidi \u202e\u2066, tag \U000e0041, bom \ufeff"
	rows := []user.Storage{row("data", status.Error, hostile, "/srv/"+hostile)}
	b := &backend{storage: rows, events: []user.Event{event(rows...)}}
	m := newMachine(t, b)
	for _, args := range [][]string{
		{"status"}, {"status", "-o", "json"}, {"status", "-o", "yaml"}, {"attach", "data", "--wait"},
	} {
		r := m.run(t.Context(), args...)
		for _, c := range r.stdout + r.stderr {
			if c != '\n' && !unicode.IsPrint(c) {
				t.Errorf("%q: %U in\n%q", args, c, r.stdout+r.stderr)
			}
		}
		if !strings.Contains(r.stdout, "clear") {
			t.Errorf("the output of %q lacks the message: %+v", args, r)
		}
		if r.code != 0 {
			continue
		}
		var got []user.Storage
		switch args[len(args)-1] {
		case "json":
			if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || !reflect.DeepEqual(got, rows) {
				t.Errorf("read as JSON: %+v, %v", got, err)
			}
		case "yaml":
			if err := yaml.Unmarshal([]byte(r.stdout), &got); err != nil || !reflect.DeepEqual(got, rows) {
				t.Errorf("read as YAML: %+v, %v", got, err)
			}
		}
	}
}

// Reading a spec file that is a pipe can be interrupted. An endless file is refused at the
// size limit.
// Promise S10.
func TestReadEndlessFile(t *testing.T) {
	m := newMachine(t, nil)
	pipe := filepath.Join(m.dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"apply", "-f", pipe}, {"run", "--spec", pipe}} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r := m.run(ctx, args...); r.code != 1 || r.stderr != "stowage: interrupted\n" {
			t.Errorf("%q: %+v", args, r)
		}
		// The interrupted read still waits in the background; this ends it with more bytes than
		// the limit. O_RDWR keeps the pipe open even if the reader has not opened it yet.
		writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write(make([]byte, 1<<20+1)); err != nil {
			t.Error(err)
		}
		_ = writer.Close()
	}
	if r := m.run(t.Context(), "apply", "-f", "/dev/zero"); r.code != 1 || r.stderr != "stowage: /dev/zero: the file is larger than 1 MiB\n" {
		t.Errorf("%+v", r)
	}
}
