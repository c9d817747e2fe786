package stack

import (
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// This file works around a bug of gVisor's RACK. After a tail loss probe it arms no timer if it counts
// nothing as outstanding; during a recovery it counts too few of the sent segments, and never a FIN
// (tcp/snd.go: SetPipe, postXmit; tcp/rack.go: probeTimerExpired). If the probe is lost as well, this end of
// the connection is silent forever.
//
// So with Options.RACK the link layer keeps the last segment of each flow until it is acknowledged, and sends it
// again if the flow has sent nothing for a while. The last data is kept together with the FIN, because a SACK does not
// cover a FIN.

const (
	repeatTick  = 250 * time.Millisecond
	repeatAfter = 4  // ticks of silence
	repeatMost  = 32 // each repetition doubles the wait up to this
)

// tail is the last segment of a flow that the peer has not acknowledged, and the FIN after it.
type tail struct {
	pkts   [2]*stack.PacketBuffer // the segment, nil: all is acknowledged; a FIN without data after it, nil: none
	end    uint64                 // the stream offset after the segment and the FIN
	silent int                    // ticks since the flow sent data or a FIN, or the peer acknowledged bytes
	wait   int                    // ticks of silence before the next repetition
	tsval  uint32                 // the last timestamp (RFC 7323)
}

// remember keeps an outgoing segment in the tail, if it ends the stream that the flow has sent so far. Under
// the flow's lock.
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

// Under the flow's lock.
func (f *flow) dropTail() {
	for i, pkt := range f.tail.pkts {
		if pkt != nil {
			pkt.DecRef()
			f.tail.pkts[i] = nil
		}
	}
}

// refresh updates the acknowledgment and the timestamp of an older segment. A peer drops a segment with an
// older timestamp (RFC 7323, 5.2). Under the flow's lock.
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

// silence counts a tick, and appends the tail's packets to list if they must be repeated.
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
			_ = fs.s.link.queue(pkt).write(pkt) // the next repetition follows
			pkt.DecRef()
			again[i] = nil
		}
	}
}
