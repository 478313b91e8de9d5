package admission

// FillOpening takes every place for sessions that are being opened. The function that it returns gives
// them back.
func (h *Handler) FillOpening() (empty func()) {
	for range maxOpening {
		h.opening <- struct{}{}
	}
	return func() {
		for range maxOpening {
			<-h.opening
		}
	}
}
