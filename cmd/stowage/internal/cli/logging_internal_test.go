package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/juju/loggo"

	"github.com/stowage-io/stowage/api/user"
)

// What happens to storage is logged at the level INFO, on one line, whatever the texts contain.
func TestAuditLines(t *testing.T) {
	level := loggo.GetLogger(auditModule).LogLevel()
	t.Cleanup(func() { loggo.GetLogger(auditModule).SetLogLevel(level) })
	event := user.StorageEvent{
		Time: time.Date(2025, 1, 2, 3, 4, 5, 6e6, time.UTC), Storage: "data", Number: 7, Type: "error", Entity: "volume 0/1", Text: "gone\x1b[2J\n", By: "alice",
	}
	for _, test := range []struct {
		level loggo.Level
		json  bool
		want  string
	}{
		{loggo.WARNING, false, ""},
		{loggo.INFO, false, "2025-01-02T03:04:05Z INFO stowage.audit storage data: volume 0/1: error: gone\\x1b[2J\\n, requested by alice\n"},
		{loggo.DEBUG, true, `{"time":"2025-01-02T03:04:05.006Z","level":"INFO","logger":"stowage.audit",` +
			`"message":"storage data: volume 0/1: error: gone\\x1b[2J\\n, requested by alice","event":{"time":"2025-01-02T03:04:05.006Z","storage":"data",` +
			`"number":7,"type":"error","entity":"volume 0/1","text":"gone\u001b[2J\n","by":"alice"}}` + "\n"},
	} {
		loggo.GetLogger(auditModule).SetLogLevel(test.level)
		var out strings.Builder
		logs := &logWriter{out: &out, json: test.json}
		logs.audit(event)
		if out.String() != test.want {
			t.Errorf("at %s:\n%swant\n%s", test.level, out.String(), test.want)
		}
	}
}
