package storageprovisioner

import (
	"fmt"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
)

// maxReported caps how many unfinished entities a report lists.
const maxReported = 100

// leftAloneReasons says why the worker does not provide the storage that its report counts as
// left alone.
var leftAloneReasons = map[plan.Class]string{
	plan.Foreign: "provided by the worker of the other scope",
	plan.Static:  "made with its machine",
}

// report returns the worker's report, for operators: for each unfinished entity, how far its
// operation is, what it waits for, since when, and why it failed.
func (l *loop) report() map[string]any {
	all := l.core.Report(maxReported)
	report := map[string]any{
		"scope":      l.config.Scope.String(),
		"configured": l.environ != nil,
		"entities":   all.Entities,
	}
	leftAlone := make(map[string]int)
	for class, sources := range all.LeftAlone {
		for source, n := range sources {
			leftAlone[fmt.Sprintf("%s: %s", source, leftAloneReasons[class])] = n
		}
	}
	if len(leftAlone) > 0 {
		report["left-alone"] = leftAlone
	}
	if unset := len(l.unset.byTag); unset > 0 {
		report["statuses-to-set"] = unset
	}
	if len(all.Pending) == 0 {
		return report
	}
	details := make(map[string]any, len(all.Pending))
	for _, p := range all.Pending {
		entry := map[string]any{"operation": p.Op.String(), "state": p.Phase, "since": p.Since}
		if p.WaitsFor != "" {
			entry["waits-for"] = p.WaitsFor
		}
		if p.Failures > 0 {
			entry["failures"] = p.Failures
		}
		if p.Failure != "" {
			entry["last-failure"] = p.Failure
		}
		if !p.Due.IsZero() {
			entry["next-attempt"] = p.Due
		}
		details[p.Key.String()] = entry
	}
	report["unfinished"] = details
	report["unfinished-by-state"] = all.Unfinished
	return report
}
