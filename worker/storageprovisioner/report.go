package storageprovisioner

// maxReported caps how many unfinished entities a report lists.
const maxReported = 100

// report tells what the worker is doing, for an operator: of what is not done, how
// far it is, what it waits for, since when, and why it failed.
func (l *loop) report() map[string]any {
	entities, unfinished, pending := l.core.Report(maxReported)
	report := map[string]any{
		"scope":      l.config.Scope.String(),
		"configured": l.environ != nil,
		"entities":   entities,
	}
	if unset := len(l.unset.byTag); unset > 0 {
		report["statuses-to-set"] = unset
	}
	if len(pending) == 0 {
		return report
	}
	details := make(map[string]any, len(pending))
	for _, p := range pending {
		entry := map[string]any{"operation": p.Op.String(), "state": p.Phase, "since": p.Since}
		if p.WaitsFor != "" {
			entry["waits-for"] = p.WaitsFor
		}
		if p.Failures > 0 {
			entry["failures"] = p.Failures
			entry["last-failure"] = p.Failure
		}
		if !p.Due.IsZero() {
			entry["next-attempt"] = p.Due
		}
		details[p.Key.String()] = entry
	}
	report["unfinished"] = details
	report["unfinished-by-state"] = unfinished
	return report
}
