package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are those of commands that have none of their own, by their paths.
var examples = map[string]string{
	"stowage":                 "stowage run --spec storage.yaml\nstowage status --watch\nstowage create data --size 1G --mount /srv/data --wait",
	"stowage adopt":           "stowage adopt data --as data-old",
	"stowage adopt-dir":       "stowage adopt-dir --moved --data-dir /srv/stowage",
	"stowage agent":           "stowage agent --server https://server-1:7117 --token-file /etc/stowage/token",
	"stowage backup":          "stowage backup /var/backups/stowage.state",
	"stowage claim":           "stowage claim logs --size 1G --kind filesystem --selector tier=fast --wait",
	"stowage claims":          "stowage claims -o json",
	"stowage context":         "stowage context",
	"stowage context list":    "stowage context list",
	"stowage context remove":  "stowage context remove production",
	"stowage context use":     "stowage context use production",
	"stowage delete":          "stowage delete 0b7d0f52-5c1c-4b8f-8f1d-6c3f5d7a9e10",
	"stowage detach":          "stowage detach data --wait",
	"stowage events":          "stowage events data\nstowage events --watch -o json",
	"stowage format":          "stowage format data\nstowage format data --yes",
	"stowage import":          "stowage import photos /srv/photos --pool rootfs --mount /srv/photos",
	"stowage login":           "stowage login https://server-1:7117 --token TOKEN --name production",
	"stowage machine":         "stowage machine drain web-1",
	"stowage machine drain":   "stowage machine drain web-1 --wait",
	"stowage machine fence":   "stowage machine fence web-1 --confirmed",
	"stowage machine label":   "stowage machine label web-1 zone=a disk-",
	"stowage machine remove":  "stowage machine remove web-1 --lost data,logs",
	"stowage machine undrain": "stowage machine undrain web-1",
	"stowage machines":        "stowage machines -o json",
	"stowage move":            "stowage move data --to web-2 --wait",
	"stowage offer":           "stowage offer logs",
	"stowage orphans":         "stowage orphans",
	"stowage pools":           "stowage pools",
	"stowage pools add":       "stowage pools add fast loop fs=xfs",
	"stowage pools list":      "stowage pools list -o yaml",
	"stowage pools remove":    "stowage pools remove fast",
	"stowage recover":         "stowage recover\nstowage recover --yes",
	"stowage report":          "stowage report",
	"stowage rename":          "stowage rename data old-data",
	"stowage resize":          "stowage resize data 2G --wait\nstowage resize data +512M",
	"stowage restore":         "stowage restore /var/backups/stowage.state",
	"stowage retry":           "stowage retry data\nstowage retry --all",
	"stowage server":          "stowage server --listen 0.0.0.0:7117",
	"stowage server remove":   "stowage server remove server-3",
	"stowage servers":         "stowage servers",
	"stowage snapshot":        "stowage snapshot list",
	"stowage snapshot create": "stowage snapshot create monday data --wait",
	"stowage snapshot delete": "stowage snapshot delete monday",
	"stowage snapshot list":   "stowage snapshot list -o json",
	"stowage token":           "stowage token",
	"stowage token create":    "stowage token create --role machine --machine web-1 --ttl 1h",
	"stowage token list":      "stowage token list",
	"stowage token remove":    "stowage token remove 3f0c",
	"stowage unclaim":         "stowage unclaim logs --wait",
	"stowage user":            "stowage user",
	"stowage user list":       "stowage user list",
	"stowage user remove":     "stowage user remove alice",
	"stowage version":         "stowage version",
}

// addExamples adds the examples to a command and those below it.
func addExamples(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		addExamples(sub)
	}
	if text := examples[cmd.CommandPath()]; cmd.Example == "" && text != "" {
		cmd.Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
}
