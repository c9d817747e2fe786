package nictest

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/wire"
)

// Quiet is a wire.Tap that only counts.
type Quiet struct{ sent, came atomic.Int64 }

// Sending implements wire.Tap.
func (*Quiet) Sending(*wire.Packet) uint64 { return 0 }

// Sent implements wire.Tap.
func (q *Quiet) Sent(*wire.Worker, *wire.Packet, uint64) { q.sent.Add(1) }

// Received implements wire.Tap.
func (q *Quiet) Received(*wire.Worker, *wire.Packet, wire.Placement) { q.came.Add(1) }

// Seen returns the numbers of calls of Sent and Received.
func (q *Quiet) Seen() (sent, came int64) { return q.sent.Load(), q.came.Load() }

// tapLog is a wire.Tap that records received packets, and the verdicts of sent ones, except Busy.
type tapLog struct {
	mu    sync.Mutex
	begun int
	sent  []wire.Verdict
	came  []arrival
}

type arrival struct {
	verdict wire.Verdict
	place   wire.Placement // without Payload
	payload []byte         // bytes at the place's Payload
	header  []byte
	offs    []uint64    // offsets, in their GPU's memory, of the payload's segments in GPU memory
	kind    dma.MemKind // kind of memory of the first segment
}

func (w *tapLog) Sending(*wire.Packet) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	return uint64(w.begun)
}

func (w *tapLog) Sent(_ *wire.Worker, p *wire.Packet, _ uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.Verdict.Kind != wire.Busy {
		w.sent = append(w.sent, wire.Verdict{Kind: p.Verdict.Kind, Reason: p.Verdict.Reason})
	}
}

func (w *tapLog) Received(worker *wire.Worker, p *wire.Packet, place wire.Placement) {
	a := arrival{verdict: p.Verdict, place: place, header: bytes.Clone(p.Header),
		payload: make([]byte, dma.Len(place.Payload))}
	if _, err := worker.Copier.Read(a.payload, place.Payload); err != nil {
		panic(err)
	}
	for i, s := range place.Payload {
		if i == 0 {
			a.kind, _ = s.MemKind()
		}
		if s.GPU() >= 0 {
			a.offs = append(a.offs, s.Region.FileOffset()+s.Off)
		}
	}
	a.place.Payload = nil
	w.mu.Lock()
	defer w.mu.Unlock()
	w.came = append(w.came, a)
}

func (w *tapLog) take() (sent []wire.Verdict, came []arrival) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent, came = w.sent, w.came
	w.sent, w.came = nil, nil
	return sent, came
}

// Invariant: wire: A tap sees each attempt to send a packet, and each piece that arrives, once,
// with the segments that the link lost and, if the port reports it, the place of its payload.
func tap(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{})
	var from, to tapLog
	a.Port().Link().SetTap(&from)
	b.Port().Link().SetTap(&to)
	SplitTo(t, b, 1, 2000)
	f := Make(b.MAC(), a.MAC(), Spec{Payload: 5000})
	b.Post(1, 2)
	a.SendGPU(0, f)
	Arrives(t, b, 1, &f)
	sent, _ := from.take()
	_, came := to.take()
	if len(sent) != 1 || sent[0].Kind != wire.Taken || len(came) != 1 {
		t.Fatalf("sent %v, came %v", sent, came)
	}
	want := wire.Placement{Queue: 1, Split: true, HeaderLen: uint32(len(f.Header))}
	if c := came[0]; c.verdict.Kind != wire.Taken || c.place.Queue != want.Queue || !c.place.Split ||
		c.place.HeaderLen != want.HeaderLen ||
		c.place.Bounced || c.place.Unsplit ||
		!bytes.Equal(c.payload, f.Payload) || c.kind != dma.GPU || len(c.offs) == 0 {
		t.Errorf("%d bytes of payload in %v at %#x: %+v", len(c.payload), c.kind, c.offs, c.place)
	}

	f = Make(b.MAC(), a.MAC(), Spec{Port: 2001, Payload: 3000}) // no rule matches
	b.Post(0, 1)
	arrives(t, a, b, 0, f)
	_, came = to.take()
	if len(came) != 1 || came[0].place.Queue != 0 || came[0].place.Split || came[0].kind != dma.Host ||
		!bytes.Equal(came[0].payload, f.Payload) {
		t.Errorf("%+v", came)
	}

	b.Port().SetCarrier(false)
	a.Send(0, f)
	b.Port().SetCarrier(true)
	a.Port().SetCarrier(false)
	a.Send(0, f)
	a.Port().SetCarrier(true)
	sent, _ = from.take()
	_, came = to.take()
	if len(sent) != 3 || sent[1] != wire.Drop(wire.DropDisabled) || sent[2] != wire.Drop(wire.DropStopped) ||
		len(came) != 1 || came[0].verdict != wire.Drop(wire.DropDisabled) || came[0].place.Queue != -1 {
		t.Errorf("sent %v, came %+v", sent, came)
	}

	a.Post(0, 1)
	a.Send(0, hello(a))
	a.Receive(0)
	a.Port().Link().SetTap(nil)
	b.Port().Link().SetTap(nil)
	b.Post(0, 1)
	a.Send(0, f)
	b.Receive(0)
	if sent, came := from.take(); len(sent) != 0 || len(came) != 0 {
		t.Errorf("of the control channel, or after it was taken away: sent %v, came %v", sent, came)
	}
}

// Invariant: wire: A tap sees each attempt to send a packet, and each piece that arrives, once,
// with the segments that the link lost and, if the port reports it, the place of its payload.
func tapBounced(t *testing.T, lab Lab, _ Traits) {
	a, b := lab(t, Options{NoP2P: true})
	var to tapLog
	b.Port().Link().SetTap(&to)
	SplitTo(t, b, 1, 2000)
	f := Make(b.MAC(), a.MAC(), Spec{Payload: 5000})
	b.Post(1, 2)
	a.SendGPU(0, f)
	b.Receive(1)
	_, came := to.take()
	if len(came) != 1 || !came[0].place.Bounced || came[0].kind != dma.GPU || !bytes.Equal(came[0].payload, f.Payload) {
		t.Errorf("%+v", came)
	}
}
