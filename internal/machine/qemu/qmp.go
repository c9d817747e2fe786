package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// qmp is a client of QEMU's machine protocol (QEMU docs/interop/qmp-spec.rst): one JSON object per line, one
// command at a time.
type qmp struct {
	conn   net.Conn
	events chan qmpEvent // watched events, except what finds it full; closed when reading ends

	replies chan qmpReply // the last reply; closed before events
	mu      sync.Mutex
	id      uint64 // under mu
}

type qmpEvent struct {
	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
		Device string `json:"device"`
	} `json:"data"`
}

const (
	eventShutdown = "SHUTDOWN"
	eventStop     = "STOP"
	eventDeleted  = "DEVICE_DELETED"            // completely removed
	eventKept     = "DEVICE_UNPLUG_GUEST_ERROR" // the guest refused to release it
)

// watched reports whether a Machine handles an event. It does not handle events of parts of a device, which name no
// device.
func (e *qmpEvent) watched() bool {
	switch e.Event {
	case eventShutdown, eventStop:
		return true
	case eventDeleted, eventKept:
		return e.Data.Device != ""
	}
	return false
}

type qmpReply struct {
	ID     *uint64         `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

// Commands of a Machine.
const (
	commandCapabilities = "qmp_capabilities"
	commandStatus       = "query-status"
	commandQuit         = "quit"
	commandUnplug       = "device_del"
)

// maxQMP bounds a line from QEMU, in bytes; reading ends at a longer one.
const maxQMP = 1 << 20

var errQMPClosed = errors.New("QMP: connection closed")

// newQMP returns a client that reads conn until conn ends; the caller closes conn. The first command must be
// qmp_capabilities.
func newQMP(conn net.Conn) *qmp {
	q := &qmp{conn: conn, events: make(chan qmpEvent, 16), replies: make(chan qmpReply, 1)}
	go q.read()
	return q
}

func (q *qmp) read() {
	defer close(q.events)
	defer close(q.replies)
	s := bufio.NewScanner(q.conn)
	s.Buffer(nil, maxQMP)
	for s.Scan() {
		var line struct {
			qmpEvent
			qmpReply
		}
		if json.Unmarshal(s.Bytes(), &line) != nil {
			continue
		}
		switch {
		case line.watched():
			select {
			case q.events <- line.qmpEvent:
			default: // the event is dropped
			}
		case line.Return != nil || line.Error != nil:
			select {
			case <-q.replies: // that no command has taken
			default:
			}
			q.replies <- line.qmpReply
		}
	}
}

// do runs a command, with args unless args is nil, and returns its result. It waits for its turn, and skips replies to
// earlier commands, whose context had ended.
func (q *qmp) do(ctx context.Context, command string, args any) (json.RawMessage, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.id++
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(limits.Monitor.Here())
	}
	_ = q.conn.SetWriteDeadline(deadline)
	b, err := json.Marshal(struct {
		Execute string `json:"execute"`
		ID      uint64 `json:"id"`
		Args    any    `json:"arguments,omitempty"`
	}{command, q.id, args})
	if err != nil {
		return nil, err
	}
	if _, err := q.conn.Write(append(b, '\n')); err != nil {
		return nil, fmt.Errorf("QMP %s: %w", command, err)
	}
	for {
		select {
		case r, open := <-q.replies:
			switch {
			case !open:
				return nil, errQMPClosed
			case r.ID == nil || *r.ID != q.id:
				continue
			case r.Error != nil:
				return nil, fmt.Errorf("QMP %s: %s: %s", command, r.Error.Class, r.Error.Desc)
			}
			return r.Return, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("QMP %s: %w", command, ctx.Err())
		}
	}
}
