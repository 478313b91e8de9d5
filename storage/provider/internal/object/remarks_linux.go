package object

import "sync"

// Remarks are a source's notes about attached objects, by ID. They end with the process: the
// next one attaches everything again. The zero value is empty. Remarks are safe for concurrent
// use.
type Remarks struct {
	mu    sync.Mutex
	texts map[string]string
}

// Of returns the remark on an object, or "" if it has none.
func (r *Remarks) Of(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.texts[id]
}

// Set replaces the remark on an object. An empty text removes it.
func (r *Remarks) Set(id, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" {
		delete(r.texts, id)
		return
	}
	if r.texts == nil {
		r.texts = make(map[string]string)
	}
	r.texts[id] = text
}
