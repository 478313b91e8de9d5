package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/juju/loggo"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
)

// auditModule is the module of the messages that say what happens to storage.
const auditModule = "stowage.audit"

// logWriter writes each log message as one line to its current output.
type logWriter struct {
	json bool

	mu  sync.Mutex
	out io.Writer
}

func (w *logWriter) setOutput(out io.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = out
}

// logLine is a log message as an object.
type logLine struct {
	Time    time.Time `json:"time"`
	Level   string    `json:"level"`
	Logger  string    `json:"logger"`
	Message string    `json:"message"`
	// Event is set if the message says what happened to storage.
	Event *user.StorageEvent `json:"event,omitempty"`
}

// Write implements loggo.Writer, which cannot return an error.
func (w *logWriter) Write(entry loggo.Entry) {
	w.write(logLine{Time: entry.Timestamp.UTC().Truncate(time.Millisecond), Level: entry.Level.String(), Logger: entry.Module, Message: entry.Message})
}

// audit writes what happened to storage, unless the level of the module is above INFO.
func (w *logWriter) audit(e user.StorageEvent) {
	if !loggo.GetLogger(auditModule).IsInfoEnabled() {
		return
	}
	message := fmt.Sprintf("storage %s: %s", e.Storage, table.Event(e))
	if e.By != "" {
		message += ", requested by " + e.By
	}
	w.write(logLine{Time: e.Time.UTC(), Level: loggo.INFO.String(), Logger: auditModule, Message: message, Event: &e})
}

func (w *logWriter) write(line logLine) {
	text := fmt.Sprintf("%s %s %s %s", line.Time.Format(time.RFC3339), line.Level, line.Logger, table.Escape(line.Message))
	if w.json {
		data, err := json.Marshal(line)
		if err != nil {
			return // a time beyond the year 9999: nothing else can fail
		}
		text = table.EscapeJSON(string(data))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintln(w.out, text)
}
