package cli_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
)

var update = flag.Bool("update", false, "rewrite "+commandPage)

const commandPage = "../../../../docs/reference/command-line.md"

const pageHead = `# Command line

What ` + "`stowage --help`" + ` and the ` + "`--help`" + ` of each command print. This page is generated:
` + "`make generate`" + `.
`

var subcommandLine = regexp.MustCompile(`(?m)^  ([a-z-]+) `)

// help returns what a command prints with --help.
func help(t *testing.T, command []string) string {
	t.Helper()
	var out, errs bytes.Buffer
	code := cli.Main(context.Background(), append(command, "--help"), cli.Env{
		Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" },
	})
	if code != 0 {
		t.Fatalf("%q --help: exit status %d: %s", command, code, errs.String())
	}
	return out.String()
}

// describe adds the help of a command and of its subcommands to a page.
func describe(t *testing.T, page *strings.Builder, command []string) {
	t.Helper()
	text := help(t, command)
	fmt.Fprintf(page, "\n## %s\n\n```text\n%s```\n", strings.Join(append([]string{"stowage"}, command...), " "), text)
	for _, sub := range subcommandsIn(text) {
		describe(t, page, append(command[:len(command):len(command)], sub))
	}
}

// subcommandsIn returns the subcommands that a help text lists.
func subcommandsIn(text string) (names []string) {
	_, available, _ := strings.Cut(text, "Available Commands:\n")
	available, _, _ = strings.Cut(available, "\n\n")
	for _, match := range subcommandLine.FindAllStringSubmatch(available, -1) {
		if match[1] != "help" {
			names = append(names, match[1])
		}
	}
	return names
}

func TestCommandLinePageIsCurrent(t *testing.T) {
	var page strings.Builder
	page.WriteString(pageHead)
	describe(t, &page, nil)
	if *update {
		if err := os.WriteFile(commandPage, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(commandPage)
	if err != nil {
		t.Fatal(err)
	}
	if page.String() != string(kept) {
		t.Errorf("%s is out of date: make generate", commandPage)
	}
	for _, command := range []string{"## stowage run\n", "## stowage pools add\n", "--time-limit"} {
		if !strings.Contains(page.String(), command) {
			t.Errorf("the page has no %q", command)
		}
	}
}
