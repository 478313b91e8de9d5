package member

import (
	"go.uber.org/zap/zapcore"
)

// logCore passes etcd's messages on. Those that do not end the process are for debugging: etcd
// also reports what is normal as an error, such as its own end and a member that is being restarted.
type logCore struct{ logger Logger }

func (logCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (c logCore) With([]zapcore.Field) zapcore.Core { return c }

func (c logCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c logCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range fields {
		field.AddTo(encoder)
	}
	log := c.logger.Debugf
	if entry.Level > zapcore.ErrorLevel {
		log = c.logger.Warningf
	}
	log("etcd: %s %v", entry.Message, encoder.Fields)
	return nil
}

func (logCore) Sync() error { return nil }
