package signature

import (
	"strings"
	"testing"
)

func FuzzParseExport(f *testing.F) {
	f.Add("DEVNAME=/dev/loop3\nLABEL=my\\ data\nUUID=f4c3b2a1-0011-2233-4455-66778899aabb\nVERSION=1.0\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n" +
		"MINIMUM_IO_SIZE=512\nPHYSICAL_SECTOR_SIZE=512\nLOGICAL_SECTOR_SIZE=512\n")
	f.Add("PTUUID=33\nPTTYPE=gpt\nMINIMUM_IO_SIZE=512\nPHYSICAL_SECTOR_SIZE=512\nLOGICAL_SECTOR_SIZE=512\n")
	f.Add("LOGICAL_SECTOR_SIZE=512\nPTTYPE=dos")
	f.Add("=\n==\nPTTYPE=")
	f.Fuzz(func(t *testing.T, out string) {
		if got, err := parseExport(out); err == nil && !strings.Contains(out, "LOGICAL_SECTOR_SIZE=") {
			t.Errorf("%q is accepted as the output for a readable device: %+v", out, got)
		}
		// A type on the last line is found, whatever the other lines are.
		for _, key := range []string{"TYPE", "PTTYPE", "USAGE"} {
			got, err := parseExport(out + "\n" + key + "=x\n")
			if err == nil && got.Type == "" {
				t.Errorf("%q is accepted as blank in spite of %s", out, key)
			}
		}
	})
}
