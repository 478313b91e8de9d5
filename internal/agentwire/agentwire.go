// Package agentwire has what both sides of the agent API share. Package apiserver/agentapi
// describes the protocol.
package agentwire

import (
	"encoding/json"
	"io"
	"time"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/apiserver/params"
	"github.com/stowage-io/stowage/core/task"
	"github.com/stowage-io/stowage/storage"
)

// Prefix precedes the name of a method in the path of its requests.
const Prefix = "/v1/agent/"

// StreamMethod is the name of the method that opens a stream. All other names are those of the
// accessors' methods.
const StreamMethod = "Stream"

// The limits on sizes, in bytes.
const (
	// MaxRequest bounds the body of a call.
	MaxRequest = 16 << 20
	// MaxAnswer bounds the answer to a call, and a message of a server on a stream.
	MaxAnswer = 64 << 20
	// MaxMessage bounds a message of an agent on a stream.
	MaxMessage = 64 << 10
)

const (
	// KeepAlive is the time between two messages on a stream in each direction, if there is
	// nothing else to send.
	KeepAlive = 5 * time.Second
	// MissedKeepAlives is how many of these times may pass without a message before the
	// receiver gives the stream up.
	MissedKeepAlives = 3
)

// Call is the body of a call.
type Call[A any] struct {
	Args []A `json:"args"`
}

// Answer is the body of an answer: a result, or an error.
type Answer[R any] struct {
	Error  *params.Error `json:"error,omitempty"`
	Result R             `json:"result"`
}

// BlockDeviceChanges is the argument of UpdateMachineBlockDevices.
type BlockDeviceChanges struct {
	Changed []storage.BlockDevice `json:"changed"`
	Gone    []string              `json:"gone"`
}

// TaskBegin is the argument of BeginTask.
type TaskBegin struct {
	ID    string `json:"id"`
	Claim string `json:"claim"`
}

// TaskAnswer is the argument of AnswerTask: a result, or an error.
type TaskAnswer struct {
	ID     string        `json:"id"`
	Error  *params.Error `json:"error,omitempty"`
	Result task.Result   `json:"result"`
}

// Type says what a message on a stream means.
type Type string

const (
	// Hello is the first message of a server. It has the Methods that the agent may call.
	Hello Type = "hello"
	// Start is an agent's request to start a watcher: its number, Method and Args.
	Start Type = "start"
	// Started is the answer to Start; the other answer is Ended.
	Started Type = "started"
	// Event is an event of a watcher.
	Event Type = "event"
	// Ack says that the agent has taken the last event of a watcher.
	Ack Type = "ack"
	// Stop is an agent's request to stop a watcher. It has no answer.
	Stop Type = "stop"
	// Ended says that a watcher has ended by itself, or could not be started.
	Ended Type = "ended"
	// Alive says only that the sender is there.
	Alive Type = "alive"
)

// Message is a message on a stream, in either direction.
type Message struct {
	Type Type `json:"type"`
	// Watcher is the number of the watcher that the message is about. An agent chooses it, and
	// uses it once on each stream.
	Watcher uint64          `json:"watcher,omitempty"`
	Method  string          `json:"method,omitempty"`
	Args    []string        `json:"args,omitempty"`
	Event   json.RawMessage `json:"event,omitempty"`
	Error   *params.Error   `json:"error,omitempty"`
	Methods []string        `json:"methods,omitempty"`
}

// Reader reads the messages of a stream.
type Reader struct {
	limited io.LimitedReader
	decoder *json.Decoder
	max     int64
}

// NewReader returns a reader of messages of up to max bytes each.
func NewReader(from io.Reader, max int64) *Reader {
	r := &Reader{limited: io.LimitedReader{R: from}, max: max}
	r.decoder = json.NewDecoder(&r.limited)
	return r
}

// Next returns the next message. The error is io.EOF at the end of the stream.
func (r *Reader) Next() (Message, error) {
	var message Message
	r.limited.N = r.max
	err := r.decoder.Decode(&message)
	if err != nil && r.limited.N <= 0 {
		return message, errors.NewNotValid(nil, "a message of the stream is too large")
	}
	return message, err
}
