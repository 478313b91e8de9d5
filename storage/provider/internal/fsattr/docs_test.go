package fsattr_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stowage-io/stowage/storage/provider/internal/mkfs"
	"github.com/stowage-io/stowage/storage/provider/internal/mount"
)

var code = regexp.MustCompile("`([^`]+)`")

// sections returns the code words in the first column of a page's tables, by the heading
// above the table.
func sections(t *testing.T, page string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string][]string)
	heading := ""
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			heading = strings.TrimSpace(text)
		}
		line, ok := strings.CutPrefix(line, "| ")
		if !ok {
			continue
		}
		column, _, _ := strings.Cut(line, " | ")
		for _, match := range code.FindAllStringSubmatch(column, -1) {
			named[heading] = append(named[heading], strings.ReplaceAll(match[1], `\|`, "|"))
		}
	}
	return named
}

func TestDocsListAllowedOptions(t *testing.T) {
	const page = "../../../../docs/reference/filesystems.md"
	named := sections(t, page)
	check := func(heading string, want []string) {
		t.Helper()
		if !slices.Equal(named[heading], want) {
			t.Errorf("%s, %s:\ngot  %q\nwant %q", page, heading, named[heading], want)
		}
	}
	check("Filesystems on volumes", []string{"fs", "mkfs-options", "mount-options", "uuid"})
	check("Types", mkfs.Names())
	checkMounted := func(name string) {
		t.Helper()
		var mounted []string
		for _, o := range mount.Options(name) {
			mounted = append(mounted, o.String())
		}
		check(name+", mounted", mounted)
	}
	for _, kind := range mkfs.Types() {
		var made []string
		for _, o := range kind.Options() {
			made = append(made, o.String())
		}
		check(kind.Name+", made", made)
		checkMounted(kind.Name)
	}
	checkMounted("tmpfs")
	checkMounted("rootfs")
}
