package gateway

import (
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/internal/wire"
)

// Bounds of an outQueue.
const (
	outBytes    = 32 << 20 // beyond it the destination with most data loses its newest packet, or put drops its own
	destBytes   = 8 << 20  // of a destination's data packets
	destFrames  = 1024     // most data packets of a destination
	destAnswers = 64       // most other packets of a destination (isAnswer)
	maxDests    = 256      // destinations with packets here or in flight
)

// outQueue has a queue for each destination MAC. take serves the destinations in turn, a packet each.
type outQueue struct {
	dests map[wire.MAC]*dest
	turn  []*dest // the next one first; see rest
	bytes int
}

// dest is a destination's queue. rest deletes it from outQueue.dests if it is empty, has no frame in flight and is not
// in turn.
type dest struct {
	mac      wire.MAC
	data     fifo
	answers  fifo
	underWay int
	inTurn   bool

	waiters []chan struct{} // of outbox.await, in order; relieve closes them
}

func (d *dest) room(frames, bytes int) bool {
	return len(d.data.pkts) == 0 || len(d.data.pkts)+frames <= destFrames && d.data.bytes+bytes <= destBytes
}

// relieve wakes all waiters if there is no data; else the first one, if half of destFrames and of destBytes is free.
func (d *dest) relieve() {
	switch {
	case len(d.data.pkts) == 0:
		for _, w := range d.waiters {
			close(w)
		}
		d.waiters = nil
	case len(d.waiters) > 0 && d.room(destFrames/2, destBytes/2):
		close(d.waiters[0])
		d.waiters = d.waiters[1:]
	}
}

// fifo is a queue of packets, with a reference to each; pop passes it to the caller.
type fifo struct {
	pkts  []*stack.PacketBuffer
	bytes int
}

func (f *fifo) push(pkt *stack.PacketBuffer) {
	f.pkts = append(f.pkts, pkt.IncRef())
	f.bytes += pkt.Size()
}

func (f *fifo) pop() *stack.PacketBuffer {
	pkt := f.pkts[0]
	f.pkts[0] = nil
	f.pkts = f.pkts[1:]
	f.bytes -= pkt.Size()
	return pkt
}

func (f *fifo) dropNewest() (bytes int) {
	last := len(f.pkts) - 1
	pkt := f.pkts[last]
	f.pkts[last] = nil
	f.pkts = f.pkts[:last]
	n := pkt.Size()
	f.bytes -= n
	pkt.DecRef()
	return n
}

// put adds a packet; taken reports whether it did. lost is how many packets it dropped, pkt included.
func (q *outQueue) put(pkt *stack.PacketBuffer) (taken bool, lost int) {
	var mac wire.MAC
	copy(mac[:], pkt.LinkHeader().Slice())
	d := q.dests[mac]
	if d == nil {
		if len(q.dests) >= maxDests {
			return false, 1
		}
		d = &dest{mac: mac}
		q.dests[mac] = d
	}
	n := pkt.Size()
	f := &d.data
	if isAnswer(pkt) {
		if f = &d.answers; len(f.pkts) >= destAnswers {
			return false, 1
		}
	} else if len(f.pkts) >= destFrames || f.bytes+n > destBytes && f.bytes > 0 {
		return false, 1
	}
	for q.bytes+n > outBytes {
		longest := q.longest()
		if longest == nil || longest.data.bytes <= d.data.bytes {
			q.rest(d)
			return false, lost + 1
		}
		q.bytes -= longest.data.dropNewest()
		longest.relieve()
		lost++
	}
	f.push(pkt)
	q.bytes += n
	q.rest(d)
	return true, lost
}

func (q *outQueue) longest() (longest *dest) {
	for _, d := range q.dests {
		if len(d.data.pkts) > 0 && (longest == nil || d.data.bytes > longest.data.bytes) {
			longest = d
		}
	}
	return longest
}

func (q *outQueue) take() (*stack.PacketBuffer, *dest) {
	for len(q.turn) > 0 {
		d := q.turn[0]
		q.turn[0] = nil
		q.turn = q.turn[1:]
		d.inTurn = false
		f := &d.answers
		if len(f.pkts) == 0 {
			f = &d.data
		}
		if len(f.pkts) == 0 { // put has dropped its packets
			q.rest(d)
			continue
		}
		pkt := f.pop()
		q.bytes -= pkt.Size()
		d.relieve()
		d.underWay++
		q.rest(d)
		return pkt, d
	}
	return nil, nil
}

func (q *outQueue) done(d *dest) {
	d.underWay--
	q.rest(d)
}

// rest appends d to q.turn if d has packets, fewer than destUnderWay frames in flight, and is not there yet. It
// deletes d if d has neither packets nor frames in flight, and is not in q.turn.
func (q *outQueue) rest(d *dest) {
	switch some := len(d.data.pkts)+len(d.answers.pkts) > 0; {
	case some && !d.inTurn && d.underWay < destUnderWay:
		d.inTurn = true
		q.turn = append(q.turn, d)
	case !some && d.underWay == 0 && !d.inTurn:
		delete(q.dests, d.mac)
	}
}

// isAnswer reports whether a packet is ARP, ICMP (also neighbor discovery), a TCP reset or from the DHCP server's port.
// Such packets wait in dest.answers, which has its own bound and which take empties first.
func isAnswer(pkt *stack.PacketBuffer) bool {
	if pkt.NetworkProtocolNumber == header.ARPProtocolNumber {
		return true
	}
	switch b := pkt.TransportHeader().Slice(); pkt.TransportProtocolNumber {
	case header.ICMPv4ProtocolNumber, header.ICMPv6ProtocolNumber:
		return true
	case header.TCPProtocolNumber:
		return len(b) >= header.TCPMinimumSize && header.TCP(b).Flags()&header.TCPFlagRst != 0
	case header.UDPProtocolNumber:
		return len(b) >= header.UDPMinimumSize && header.UDP(b).SourcePort() == portDHCPServer
	}
	return false
}
