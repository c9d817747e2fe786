package stack

import (
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// This file works around a bug of gVisor's RACK. After a tail loss probe, gVisor arms no timer if it counts
// nothing as outstanding; during a recovery it counts too few of the sent segments, and never a FIN
// (tcp/snd.go: SetPipe, postXmit; tcp/rack.go: probeTimerExpired). If the probe is lost as well, this end of
// the connection may never send again.
//
// So with Options.RACK the link layer keeps the last segment of each flow with data or a FIN until it is acknowledged,
// and sends it again if for a while the flow has sent no data and no FIN and the peer has acknowledged no new data. The
// last data is kept together with a FIN that comes after it, because gVisor's SACKs do not cover a FIN.

const (
	repeatTick  = 250 * time.Millisecond
	repeatAfter = 4  // ticks of silence before the first repetition
	repeatMost  = 32 // in ticks: each repetition doubles the wait, up to this
)

// tail is the last segment with data or a FIN that a flow has sent, and a FIN without data after it, if any, until the
// peer has acknowledged both.
type tail struct {
	pkts   [2]*stack.PacketBuffer // the segment, nil: nothing is kept; a FIN without data after it, nil: none
	end    uint64                 // the stream offset after the segment and the FIN
	silent int                    // ticks since the flow sent data or a FIN, new or again, or new data was acknowledged
	wait   int                    // ticks of silence before the next repetition
	tsval  uint32                 // TSval of the segment that was sent last (RFC 7323)
}

// remember records an outgoing segment's timestamp, and keeps the segment in the tail if it has data or a FIN and no
// kept one ends later; not if it is a SYN or acknowledged, nor after the flow has ended. Under the flow's lock.
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
	if pkt == t.pkts[0] || pkt == t.pkts[1] || end < int64(t.end) || end <= int64(f.una) {
		return
	}
	i := 0
	switch {
	case n > 0 || t.pkts[0] == nil:
		f.dropTail()
	case t.pkts[1] == nil && uint64(end) == t.end: // a retransmission of the FIN
	default:
		i = 1
	}
	if t.pkts[i] != nil {
		t.pkts[i].DecRef()
	}
	t.pkts[i] = pkt.IncRef()
	t.end, t.wait = uint64(end), repeatAfter
}

// dropTail releases the packets of the tail. Under the flow's lock.
func (f *flow) dropTail() {
	for i, pkt := range f.tail.pkts {
		if pkt != nil {
			pkt.DecRef()
			f.tail.pkts[i] = nil
		}
	}
}

// refresh updates the acknowledgment, the window and the timestamp of an outgoing segment with ACK, and without SYN and
// RST, if they are older than the last sent ones. A peer drops a segment with an older timestamp (RFC 7323, 5.2). Under
// the flow's lock.
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

// silence counts a tick, and appends the tail's packets to list, each with a new reference, if they must be repeated.
func (f *flow) silence(list []*stack.PacketBuffer) []*stack.PacketBuffer {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &f.tail
	if t.pkts[0] == nil {
		return list
	}
	if t.silent++; t.silent < t.wait {
		return list
	}
	t.silent, t.wait = 0, min(2*t.wait, repeatMost)
	for _, pkt := range t.pkts {
		if pkt != nil {
			list = append(list, pkt.IncRef())
		}
	}
	return list
}

// repeater sends the tails of silent flows again, until stop is closed.
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
			_ = fs.s.link.queue(pkt).write(pkt) // after an error the packet is repeated later
			pkt.DecRef()
			again[i] = nil
		}
	}
}
