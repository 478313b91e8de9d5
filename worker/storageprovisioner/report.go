package storageprovisioner

// maxReported caps how many unfinished entities a report lists.
const maxReported = 100

// report tells what the worker is doing, for an operator.
func (l *loop) report() map[string]any {
	counts, pending := l.core.Report(maxReported)
	report := map[string]any{
		"scope":      l.config.Scope.String(),
		"configured": l.environ != nil,
		"entities":   counts,
	}
	if len(pending) == 0 {
		return report
	}
	unfinished := make(map[string]any, len(pending))
	for _, p := range pending {
		entry := map[string]any{"operation": p.Op.String(), "state": p.Phase}
		if p.WaitsFor != "" {
			entry["waits-for"] = p.WaitsFor
		}
		if p.Failures > 0 {
			entry["failures"] = p.Failures
		}
		if !p.Due.IsZero() {
			entry["next-attempt"] = p.Due
		}
		unfinished[p.Key.String()] = entry
	}
	report["unfinished"] = unfinished
	return report
}
