package control

import (
	"bytes"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
)

var driverMAC = [6]byte{2, 0, 0, 0, 0, 9}

func request(session, seq uint32, class Class, cmd Command, data []byte) []byte {
	f := Frame{Dst: MAC, Src: driverMAC, Data: data}
	f.Kind, f.Class, f.Command, f.Session, f.Seq = KindRequest, class, cmd, session, seq
	return f.Append(nil)
}

func answerOf(t *testing.T, d *Dispatcher, frame []byte) *Frame {
	t.Helper()
	reply := d.Handle(frame, nil)
	if reply == nil {
		return nil
	}
	f := new(Frame)
	if err := f.Parse(reply); err != nil {
		t.Fatalf("reply %x: %v", reply, err)
	}
	if f.Kind != KindReply || f.Src != MAC || f.Dst != [6]byte(frame[6:]) || len(reply) > MaxFrame {
		t.Fatalf("reply %x", reply)
	}
	return f
}

// Invariant: control: While the NIC stores a client's session, it handles each request of the
// session at most once, over a link that loses and doubles frames.
func TestRepeatGetsTheSameReply(t *testing.T) {
	p := newPort()
	d := NewDispatcher(p)
	buf := Buffer{Size: 4096}
	frame := request(1, 1, ClassBuffer, BufferRegister, enc(buf))
	first := d.Handle(frame, make([]byte, 0, MaxFrame))
	if got := d.Handle(frame, nil); !bytes.Equal(got, first) || p.count("buffer") != 1 {
		t.Fatalf("%x, then %x; handled %d times", first, got, p.count("buffer"))
	}
	clear(first)
	f := answerOf(t, d, frame)
	if f.Errno != 0 || !bytes.Equal(f.Data, []byte{1, 0, 0, 0}) {
		t.Fatalf("%+v", f)
	}
	p.s.Generation = 80
	if f := answerOf(t, d, frame); f.Generation != 80 {
		t.Fatalf("the generation of a repeat is %d", f.Generation)
	}
	answerOf(t, d, request(2, 1, ClassBuffer, BufferRegister, enc(buf)))
	if p.count("buffer") != 2 {
		t.Fatal("another session's request was taken for a repeat")
	}
	d.Reset()
	answerOf(t, d, frame)
	if p.count("buffer") != 3 {
		t.Fatal("a reply outlived reset")
	}
	f = answerOf(t, d, request(1, 2, ClassSplit, SplitSet, []byte{1}))
	if f.Errno != syscall.EINVAL || d.Stats().Failed != 1 {
		t.Fatalf("data that is too short: %+v, %+v", f, d.Stats())
	}
}

func TestRepeatOfOneInHandIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort()
		p.block = make(chan struct{})
		d := NewDispatcher(p)
		frame := request(1, 1, ClassSplit, SplitSet, enc(Split{Queue: 1, On: true}))
		done := make(chan []byte, 1)
		go func() { done <- d.Handle(frame, nil) }()
		synctest.Wait()
		if got := d.Handle(frame, nil); got != nil {
			t.Fatalf("answered %x", got)
		}
		if f := answerOf(t, d, request(1, 2, ClassInfo, InfoHello, nil)); f.Errno != 0 {
			t.Fatal(f.Errno)
		}
		close(p.block)
		if got := d.Handle(frame, nil); got != nil && !bytes.Equal(got, <-done) {
			t.Fatalf("answered %x", got)
		}
	})
}

func TestOldRequestsAreRefused(t *testing.T) {
	for _, start := range []uint32{0, 1000, 0xfffffff0} { // sequence numbers from the last one on wrap
		p := newPort()
		d := NewDispatcher(p)
		hello := func(n uint32) *Frame { return answerOf(t, d, request(1, start+n, ClassInfo, InfoHello, nil)) }
		for _, n := range []uint32{3, 1, 2, 0, Window - 1} {
			if f := hello(n); f.Errno != 0 {
				t.Fatalf("request %d: %v", n, f.Errno)
			}
		}
		if p.count("info") != 5 {
			t.Fatalf("handled %d", p.count("info"))
		}
		hello(Window)
		if f := hello(0); f.Errno != syscall.ESTALE {
			t.Fatalf("an old request: %v", f.Errno)
		}
		if f := hello(1); f.Errno != 0 || p.count("info") != 6 {
			t.Fatalf("the oldest that is kept: %v, handled %d", f.Errno, p.count("info"))
		}
	}
}

func TestSessionsAreBounded(t *testing.T) {
	p := newPort()
	d := NewDispatcher(p)
	for s := range uint32(1000) {
		answerOf(t, d, request(s+1, 1, ClassInfo, InfoHello, nil))
		answerOf(t, d, request(1, 1+s, ClassInfo, InfoHello, nil))
	}
	if len(d.sessions) != MaxSessions || d.sessions[1] == nil || d.sessions[1000] == nil {
		t.Fatalf("%d sessions", len(d.sessions))
	}
	// The first request of session 1 came twice.
	if s := d.Stats(); s.Repeats != 1 || s.Requests != 1999 {
		t.Fatalf("%+v", s)
	}
}

// Invariant: control: While the NIC stores a client's session, it handles each request of the
// session at most once, over a link that loses and doubles frames.
func FuzzDispatcher(f *testing.F) {
	var all []byte
	rest := request(0x01020304, 1000, ClassGPU, GPUList, []byte{1, 0, 0, 0})
	for _, b := range append(goldenFrames(f), rest) {
		f.Add(append([]byte{byte(len(b)), byte(len(b) >> 8)}, b...))
		all = append(append(all, byte(len(b)), byte(len(b)>>8)), b...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, in []byte) {
		p := newPort()
		d := NewDispatcher(p)
		for len(in) >= 2 {
			n := min(int(in[0])|int(in[1])<<8, len(in)-2)
			frame := in[2 : 2+n]
			in = in[2+n:]
			before := slices.Clone(frame)
			if n >= EthernetLen {
				answerOf(t, d, frame)
			} else if d.Handle(frame, nil) != nil {
				t.Fatal("an answer to nothing")
			}
			if !bytes.Equal(before, frame) {
				t.Fatal("the frame was changed")
			}
		}
		p.s.check(t, &p.info)
		if f := answerOf(t, d, request(0xfeedface, 1, ClassInfo, InfoHello, nil)); f.Errno != 0 {
			t.Fatal(f.Errno)
		}
	})
}
