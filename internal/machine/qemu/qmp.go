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

// qmp is a client of QEMU's machine protocol (QEMU docs/interop/qmp-spec.rst): a JSON object a
// line. Only what a Machine needs: one command at a time, and events.
type qmp struct {
	conn   net.Conn
	events chan qmpEvent // those of watchedEvents; closed at the end
	done   chan struct{} // closed when the reader has ended

	replies chan qmpReply // the last one, from the reader
	mu      sync.Mutex    // one command at a time
	id      uint64        // of the last command, under mu
}

type qmpEvent struct {
	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
		Device string `json:"device"`
	} `json:"data"`
}

// Events that a Machine looks at.
const (
	eventShutdown = "SHUTDOWN"
	eventStop     = "STOP"
	eventDeleted  = "DEVICE_DELETED"            // of a device, when nothing of it is left
	eventKept     = "DEVICE_UNPLUG_GUEST_ERROR" // the guest did not let go of it
)

// watched says whether a Machine looks at an event. Parts of a device are deleted, too, which have no name.
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

// The commands that a Machine gives.
const (
	commandCapabilities = "qmp_capabilities"
	commandStatus       = "query-status"
	commandQuit         = "quit"
	commandUnplug       = "device_del"
)

// unplugArgs are the arguments of device_del.
type unplugArgs struct {
	ID string `json:"id"`
}

// maxQMP bounds a line from QEMU.
const maxQMP = 1 << 20

var errQMPClosed = errors.New("QMP: connection closed")

// newQMP takes over conn. The first command is qmp_capabilities.
func newQMP(conn net.Conn) *qmp {
	q := &qmp{
		conn: conn, events: make(chan qmpEvent, 16), replies: make(chan qmpReply, 1), done: make(chan struct{}),
	}
	go q.read()
	return q
}

func (q *qmp) read() {
	defer close(q.done)
	defer close(q.events)
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
			default: // none comes that often
			}
		case line.Return != nil || line.Error != nil:
			select {
			case <-q.replies: // one that is not waited for any more
			default:
			}
			q.replies <- line.qmpReply
		}
	}
}

// do runs a command, with arguments or nil, and gives what it returns. Its reply is known by its id: that of a command
// which is not waited for any more is passed over.
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
		case r := <-q.replies:
			if r.ID == nil || *r.ID != q.id {
				continue
			}
			if r.Error != nil {
				return nil, fmt.Errorf("QMP %s: %s: %s", command, r.Error.Class, r.Error.Desc)
			}
			return r.Return, nil
		case <-q.done:
			return nil, errQMPClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("QMP %s: %w", command, ctx.Err())
		}
	}
}
