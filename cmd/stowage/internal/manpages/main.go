// Manpages writes a manual page for each command of stowage into a directory:
//
//	go run ./cmd/stowage/internal/manpages DIRECTORY VERSION
//
// The pages have the date of $SOURCE_DATE_EPOCH.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra/doc"

	"github.com/stowage-io/stowage/cmd/stowage/internal/cli"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: manpages DIRECTORY VERSION")
		os.Exit(2)
	}
	root := cli.Command()
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Title: "STOWAGE", Section: "1", Source: "stowage " + os.Args[2], Manual: "Stowage"}
	if err := doc.GenManTree(root, header, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}
