package control

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	// Window is how many sequence numbers of a session, up to the newest, the dispatcher remembers to recognize
	// repeats. It refuses older requests with ESTALE: it may have handled them.
	Window = 64
	// MaxSessions bounds the stored sessions. A new one replaces the one that was unused for the longest time.
	MaxSessions = 8
	// maxText bounds an error's text in a reply, in bytes.
	maxText = 256
)

// Dispatcher is a port's end of the control channel. Its methods are safe for concurrent use.
//
// While it stores a session, it handles each request of that session once. It answers a repeat with the stored reply
// and the present generation, or not at all while it still handles the request; a request older than Window, with
// ESTALE. A session serves only to recognize repeats: what commands have set up belongs to the port, until device
// reset.
type Dispatcher struct {
	h Handler

	mu       sync.Mutex
	sessions map[uint32]*session // under mu
	clock    uint64              // under mu: requests so far, also repeated ones

	requests, repeats, stale, malformed, failed atomic.Uint64
}

type session struct {
	used   uint64
	newest uint32
	slots  [Window]slot // by sequence number mod Window
}

type slot struct {
	state slotState
	seq   uint32
	reply []byte
}

type slotState uint8

const (
	slotEmpty slotState = iota
	slotBusy            // the handler runs
	slotDone
)

// NewDispatcher returns a port's dispatcher.
func NewDispatcher(h Handler) *Dispatcher {
	return &Dispatcher{h: h, sessions: make(map[uint32]*session)}
}

// DispatcherStats counts frames.
type DispatcherStats struct {
	Requests  uint64 // new requests
	Failed    uint64 // of Requests: answered with an error
	Repeats   uint64 // recognized repeats
	Stale     uint64 // older than Window
	Malformed uint64 // not requests of this version of the protocol, or not to MAC
}

// Stats returns the counters.
func (d *Dispatcher) Stats() DispatcherStats {
	return DispatcherStats{
		Requests: d.requests.Load(), Failed: d.failed.Load(), Repeats: d.repeats.Load(), Stale: d.stale.Load(),
		Malformed: d.malformed.Load(),
	}
}

// Reset drops all sessions and their replies. Call it at device reset, after the handler's state has a new
// generation.
func (d *Dispatcher) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.sessions)
}

// Handle processes a control frame, with its Ethernet header, and returns the frame of the reply, for receive
// queue 0. It returns nil if the frame is not a request, has session 0 or another destination than MAC, or repeats a
// request that is still being handled. Handle writes the reply to the storage of the slice reply if that holds MaxFrame
// bytes. It does not keep frame, and returns after the Handler has returned.
func (d *Dispatcher) Handle(frame, reply []byte) []byte {
	reply = reply[:0]
	var f Frame
	err := f.Parse(frame)
	if err == nil && f.Dst != MAC {
		d.malformed.Add(1)
		return nil
	}
	if err != nil || f.Kind != KindRequest || f.Session == 0 {
		d.malformed.Add(1)
		if f.Kind != KindRequest || f.Session == 0 {
			return nil
		}
		return d.answer(&f, nil, err).Append(reply)
	}
	s, old, run := d.begin(&f)
	if !run {
		if old == nil {
			return nil
		}
		return d.refresh(append(reply, old...), &f)
	}
	if s == nil {
		return d.answer(&f, nil, errStale).Append(reply)
	}
	d.requests.Add(1)
	data, err := handle(d.h, f.Class, f.Command, f.Data, make([]byte, 0, MaxData))
	if err != nil {
		d.failed.Add(1)
	}
	reply = d.answer(&f, data, err).Append(reply)
	d.end(s, f.Seq, reply)
	return reply
}

var errStale = &textError{"this request is older than those that are remembered", syscall.ESTALE}

// For a request older than Window, run is true and s is nil. If run is false, old is the stored reply, or nil
// if there is none yet.
func (d *Dispatcher) begin(f *Frame) (s *session, old []byte, run bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s = d.session(f.Session, f.Seq)
	if ahead := int32(f.Seq - s.newest); ahead > 0 {
		s.newest = f.Seq
	} else if ahead <= -Window {
		d.stale.Add(1)
		return nil, nil, true
	}
	sl := &s.slots[f.Seq%Window]
	if sl.state != slotEmpty && sl.seq == f.Seq {
		d.repeats.Add(1)
		return nil, sl.reply, false
	}
	*sl = slot{state: slotBusy, seq: f.Seq}
	return s, nil, true
}

func (d *Dispatcher) session(id, seq uint32) *session {
	d.clock++
	s := d.sessions[id]
	if s == nil {
		if len(d.sessions) == MaxSessions {
			oldest := id
			for i, o := range d.sessions {
				if oldest == id || o.used < d.sessions[oldest].used {
					oldest = i
				}
			}
			delete(d.sessions, oldest)
		}
		s = &session{newest: seq}
		d.sessions[id] = s
	}
	s.used = d.clock
	return s
}

func (d *Dispatcher) end(s *session, seq uint32, reply []byte) {
	kept := append([]byte(nil), reply...)
	d.mu.Lock()
	defer d.mu.Unlock()
	if sl := &s.slots[seq%Window]; sl.state == slotBusy && sl.seq == seq {
		sl.state, sl.reply = slotDone, kept
	}
}

func (d *Dispatcher) refresh(reply []byte, f *Frame) []byte {
	var r Frame
	if r.Parse(reply) == nil {
		r.Generation, r.Dst = d.h.Generation(), f.Src
		reply = r.Append(reply[:0])
	}
	return reply
}

func (d *Dispatcher) answer(f *Frame, data []byte, err error) *Frame {
	r := &Frame{Dst: f.Src, Src: MAC, Header: f.Header, Data: data}
	r.Kind, r.Generation, r.Errno = KindReply, d.h.Generation(), 0
	if err != nil {
		r.Errno = errnoOf(err)
		text := err.Error()
		r.Data = []byte(text[:min(len(text), maxText)])
	}
	return r
}

func errnoOf(err error) syscall.Errno {
	var no syscall.Errno
	if errors.As(err, &no) && no > 0 && no <= 0xffff {
		return no
	}
	return syscall.EIO
}

// NotifyJob appends to frame the notify that a job has ended, for the driver with the MAC dst.
func (d *Dispatcher) NotifyJob(frame []byte, dst [6]byte, s *JobStatus) []byte {
	return d.notify(frame, dst, ClassJob, JobCompleted, s)
}

func (d *Dispatcher) notify(frame []byte, dst [6]byte, class Class, cmd Command, v any) []byte {
	data, _ := encode(nil, v) // cannot fail for a fixed size
	f := Frame{Dst: dst, Src: MAC, Data: data}
	f.Kind, f.Class, f.Command, f.Generation = KindNotify, class, cmd, d.h.Generation()
	return f.Append(frame)
}

// textError is an error with an errno that its text does not contain.
type textError struct {
	text  string
	errno syscall.Errno
}

func (e *textError) Error() string { return e.text }
func (e *textError) Unwrap() error { return e.errno }
