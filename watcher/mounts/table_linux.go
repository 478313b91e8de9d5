package mounts

import (
	"bufio"
	"bytes"
	"hash/maphash"
	"os"
	"strings"

	"github.com/juju/errors"
)

// table holds the mounts of a namespace: the path at which each is mounted, by a hash of the
// line that describes the mount in mountinfo. The line has the mount's ID, so it is unique.
type table map[uint64]string

// maxLine caps the length of a line. The longest lines are those of overlays of many
// directories.
const maxLine = 1 << 20

// readTable reads the table in a mountinfo file. The new table shares the paths of unchanged
// mounts with the last one, which may be nil.
func readTable(path string, seed maphash.Seed, last table) (table, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Trace(err)
	}
	defer file.Close()
	read := make(table, len(last))
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 0, bufio.MaxScanTokenSize), maxLine)
	for lines.Scan() {
		line := lines.Bytes()
		hash := maphash.Bytes(seed, line)
		path, ok := last[hash]
		if !ok {
			path = mountPoint(line)
		}
		read[hash] = path
	}
	if err := lines.Err(); err != nil {
		return nil, errors.Annotate(err, "reading mounts")
	}
	return read, nil
}

// addMissing adds the paths of the mounts of t that the other table lacks.
func (t table) addMissing(paths map[string]struct{}, other table) {
	for hash, path := range t {
		if _, ok := other[hash]; !ok {
			paths[path] = struct{}{}
		}
	}
}

// unescape undoes how the kernel writes paths.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountPoint returns the fifth field of a line.
func mountPoint(line []byte) string {
	for range 4 {
		_, line, _ = bytes.Cut(line, []byte(" "))
	}
	field, _, _ := bytes.Cut(line, []byte(" "))
	return unescape.Replace(string(field))
}
