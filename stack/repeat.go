package stack

import (
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// This file works around a fault of gVisor's RACK. After a tail loss probe it arms no timer if it
// counts nothing as outstanding, and of what is sent during a recovery it counts too little, of a
// FIN nothing (tcp/snd.go: SetPipe, postXmit; tcp/rack.go: probeTimerExpired). If the probe is lost
// as well, that end of the connection is silent forever.
//
// So the link layer keeps the last segment of each flow until it is acknowledged, and sends it once
// more when the flow has sent nothing for a while. A segment that comes twice is nothing new to a
// peer, and its answer sets netstack going again. The answer to a FIN alone does not, where data
// before it is missing, as no SACK tells of a FIN: so the last data is kept beside it.

const (
	repeatTick  = 250 * time.Millisecond
	repeatAfter = 4  // ticks of silence; netstack's own timers are shorter at first
	repeatMost  = 32 // ticks: each repetition doubles them up to here
)

// tail is what a flow has sent last and the peer has not acknowledged: a segment, and the FIN behind it.
type tail struct {
	pkt    *stack.PacketBuffer // nil: all is acknowledged
	fin    *stack.PacketBuffer // a FIN without data behind pkt; nil: none
	end    uint64              // of the segment, a FIN included
	silent int                 // ticks without data or FIN, or without progress
	wait   int                 // ticks
	tsval  uint32              // of the last segment sent, a timestamp (RFC 7323)
}

// remember keeps an outgoing segment with n bytes of payload, if it is the last. Under the flow's lock.
func (f *flow) remember(pkt *stack.PacketBuffer, tcp header.TCP, n int) {
	if o := tcpOption(tcp, header.TCPOptionTS, header.TCPOptionTSLength); o != nil {
		f.tail.tsval = binary.BigEndian.Uint32(o)
	}
	end := f.txOffset(tcp.SequenceNumber()) + int64(n)
	if tcp.Flags().Contains(header.TCPFlagFin) {
		end++
	} else if n == 0 {
		return
	}
	if f.ended || tcp.Flags().Contains(header.TCPFlagSyn) {
		return
	}
	t := &f.tail
	t.silent = 0
	if pkt == t.pkt || pkt == t.fin || end < int64(t.end) || end <= int64(f.una) {
		return
	}
	switch {
	case n > 0 || t.pkt == nil:
		f.dropTail()
		t.pkt = pkt.IncRef()
	case t.fin == nil && uint64(end) == t.end: // the FIN that is kept, anew
		t.pkt.DecRef()
		t.pkt = pkt.IncRef()
	default:
		if t.fin != nil {
			t.fin.DecRef()
		}
		t.fin = pkt.IncRef()
	}
	t.end, t.wait = uint64(end), repeatAfter
}

// dropTail is called when the last segment needs no repetition any more. Under the flow's lock.
func (f *flow) dropTail() {
	t := &f.tail
	if t.pkt != nil {
		t.pkt.DecRef()
		t.pkt = nil
	}
	if t.fin != nil {
		t.fin.DecRef()
		t.fin = nil
	}
}

// refresh brings an outgoing segment up to date that was made some time ago, as netstack would if it sent it now: an
// older acknowledgement is nothing to a peer, but a segment with an older timestamp it drops (RFC 7323, 5.2). Under the
// flow's lock.
func (f *flow) refresh(tcp header.TCP) {
	if !f.irsKnown || tcp.Flags()&(header.TCPFlagAck|header.TCPFlagSyn|header.TCPFlagRst) != header.TCPFlagAck {
		return
	}
	if f.rxOffset(tcp.AckNumber()) < int64(f.acked) {
		tcp.SetAckNumber(f.irs + 1 + uint32(f.acked))
		tcp.SetWindowSize(uint16(f.adv))
	}
	if o := tcpOption(tcp, header.TCPOptionTS, header.TCPOptionTSLength); o != nil &&
		int32(binary.BigEndian.Uint32(o)-f.tail.tsval) < 0 {
		binary.BigEndian.PutUint32(o, f.tail.tsval)
	}
}

// silence counts a tick, and adds what is to be sent again to list, if that is now.
func (f *flow) silence(list []*stack.PacketBuffer) []*stack.PacketBuffer {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &f.tail
	if t.pkt == nil {
		return list
	}
	if t.silent++; t.silent < t.wait {
		return list
	}
	t.silent, t.wait = 0, min(2*t.wait, repeatMost)
	list = append(list, t.pkt.IncRef())
	if t.fin != nil {
		list = append(list, t.fin.IncRef())
	}
	return list
}

// repeater sends tails again.
func (fs *flows) repeater(stop <-chan struct{}) {
	tick := time.NewTicker(repeatTick)
	defer tick.Stop()
	var again []*stack.PacketBuffer
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		again = again[:0]
		fs.mu.RLock()
		for _, f := range fs.m {
			again = f.silence(again)
		}
		fs.mu.RUnlock()
		for i, pkt := range again {
			_ = fs.s.link.queue(pkt).write(pkt) // else it is repeated later
			pkt.DecRef()
			again[i] = nil
		}
	}
}
