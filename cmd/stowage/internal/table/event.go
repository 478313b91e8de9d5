package table

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/stowage-io/stowage/api/user"
)

// Event describes what happened to storage, in a line.
func Event(e user.StorageEvent) string {
	entity, machine, text := Escape(e.Entity), Escape(e.Machine), Escape(e.Text)
	with := func(before, what string) string {
		if what == "" {
			return ""
		}
		return before + what
	}
	switch e.Type {
	case "added":
		return "added, " + Size(e.SizeMiB) + with(", for machine ", machine) + with(", on ", text)
	case "attach-wanted":
		return "to be attached to machine " + machine
	case "move-wanted":
		return "to be moved to machine " + machine
	case "detach-wanted":
		return "to be detached"
	case "resize-wanted":
		return fmt.Sprintf("to be resized from %s to %s", Size(e.FormerMiB), Size(e.SizeMiB))
	case "remove-wanted":
		return "to be removed"
	case "release-wanted":
		return "to be released"
	case "retry-wanted":
		return "to be tried again"
	case "format-wanted":
		return "to be formatted"
	case "claimed":
		return "claimed by " + text
	case "unclaimed":
		return "claim " + text + " deleted"
	case "offered":
		return "offered to claims"
	case "labelled":
		return "labels " + cmp.Or(text, "removed")
	case "mount-wanted":
		return "to be mounted at " + text
	case "mount-options-wanted":
		return "to be mounted with " + cmp.Or(text, "no options")
	case "renamed":
		return "renamed from " + text
	case "renamed-to":
		return "renamed to " + text
	case "from":
		return "to get the contents of " + text
	case "snapshot-wanted":
		return "snapshot " + text + " to be made"
	case "snapshot-delete-wanted":
		return "snapshot " + text + " to be deleted"
	case "snapshot-made":
		return "snapshot " + text + " made, " + Size(e.SizeMiB)
	case "snapshot-deleted":
		return "snapshot " + text + " deleted"
	case "snapshot-error":
		return "error: snapshot " + text
	case "made", "imported":
		return fmt.Sprintf("%s %s, %s%s", entity, e.Type, Size(e.SizeMiB), with(", ", text))
	case "grown":
		return fmt.Sprintf("%s grown from %s to %s", entity, Size(e.FormerMiB), Size(e.SizeMiB))
	case "attached":
		return entity + " attached to machine " + machine + with(", ", text)
	case "detached":
		return entity + " detached from machine " + machine
	case "destroyed", "released", "removed":
		return strings.TrimSpace(entity + " " + e.Type)
	case "error":
		return entity + ": error: " + text
	case "recovered":
		return entity + " works again" + with(": ", text)
	case "status":
		return entity + ": " + text
	}
	return Escape(e.Type) + with(" ", entity) + with(", machine ", machine) + with(": ", text)
}
