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
	report["unfinished"] = reportOf(all.Pending)
	report["unfinished-by-state"] = all.Unfinished
	return report
}

// reportOf returns the entries of unfinished entities in a report.
func reportOf(pending []plan.Pending) map[string]any {
	details := make(map[string]any, len(pending))
	for _, p := range pending {
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
	return details
}

// reportRequest asks the loop for the entries of some volumes and filesystems with their attachments, or
// for the whole report.
type reportRequest struct {
	all bool
	of  []plan.Key
	to  chan<- map[string]any
}

func (l *loop) answerReport(r reportRequest) {
	if r.all {
		r.to <- l.report()
		return
	}
	var pending []plan.Pending
	for _, key := range r.of {
		pending = append(pending, l.core.PendingOf(key)...)
	}
	r.to <- reportOf(pending)
}
