package agentapi

// SetLimits sets how many streams there may be, and how many watchers on each.
func (h *Handler) SetLimits(streams, watchers int) { h.maxStreams, h.maxWatchers = streams, watchers }
