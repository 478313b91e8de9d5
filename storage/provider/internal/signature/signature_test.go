package signature

import (
	"testing"
)

func TestParseExport(t *testing.T) {
	const limits = "MINIMUM_IO_SIZE=512\nPHYSICAL_SECTOR_SIZE=512\nLOGICAL_SECTOR_SIZE=512\n"
	for _, test := range []struct {
		about, out string
		want       Signature
	}{
		{"blank", "DEVNAME=/dev/x\n" + limits, Signature{}},
		{"a blank partition", "PART_ENTRY_SCHEME=gpt\nPART_ENTRY_UUID=1\n" + limits, Signature{}},
		{"a filesystem", "LABEL=my\\ data\nUUID=7f\nTYPE=ext4\nUSAGE=filesystem\n" + limits, Signature{"ext4", "7f", "my\\ data"}},
		{"a partition table", "PTUUID=33\nPTTYPE=gpt\n" + limits, Signature{Type: "gpt", UUID: "33"}},
		{"a type without a name", "USAGE=raid\n" + limits, Signature{Type: "raid"}},
	} {
		got, err := parseExport(test.out)
		if err != nil || got != test.want {
			t.Errorf("%s: got %+v, %v", test.about, got, err)
		}
	}
	if _, err := parseExport("DEVNAME=/dev/x\n"); err == nil {
		t.Error("output without LOGICAL_SECTOR_SIZE is accepted as blank")
	}
}
