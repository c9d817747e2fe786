package stack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/splitter"
)

type receiver struct{ s *Stack }

// Receive implements driver.Receiver: it gives frames to netstack, or drops them. It copies headers before it parses
// them: the device could change the originals.
func (r receiver) Receive(frames []driver.RxFrame) {
	for i := range frames {
		if f := &frames[i]; len(f.Payload) > 0 {
			r.s.receiveSplit(f)
		} else {
			r.s.receiveWhole(f)
		}
	}
}

// Completed implements driver.Receiver.
func (r receiver) Completed(queue int, cookies []uint64) {
	if queue >= 0 && queue < len(r.s.tx) {
		r.s.tx[queue].completed(cookies)
	}
}

// Wake implements driver.Receiver.
func (r receiver) Wake() {
	if err := r.s.nic.Err(); err != nil {
		r.s.fail(err)
		return
	}
	for _, q := range r.s.tx {
		q.completed(nil)
	}
}

func (s *Stack) receiveWhole(fr *driver.RxFrame) {
	var start [splitter.MaxHeader]byte
	var h splitter.Headers
	n := copy(start[:], fr.Header)
	if err := splitter.Parse(start[:n], uint32(len(fr.Header)), &h); err != nil || h.Class == splitter.Malformed ||
		h.Tagged() || !splitter.VerifyIPv4(&h, start[:n]) {
		s.count.rxDropped.Add(1)
		return
	}
	hdrLen := int(h.HdrLen)
	if h.Class != splitter.TCP {
		hdrLen = min(int(h.FrameLen), n) // netstack needs more of an ICMP packet than its headers in one view
	}
	buf := buffer.MakeWithView(buffer.NewViewWithData(start[h.L3Off:hdrLen]))
	if int(h.FrameLen) > hdrLen {
		payload := buffer.MakeWithView(buffer.NewViewWithData(fr.Header[hdrLen:h.FrameLen]))
		buf.Merge(&payload)
	}
	if (h.Class == splitter.TCP || h.Class == splitter.UDP) && !fr.CsumGood && !s.verify(&h, start[:hdrLen], &buf) {
		buf.Release()
		s.count.rxDropped.Add(1)
		return
	}
	if h.Class == splitter.TCP {
		if f := s.flows.get(&h.Flow); f != nil {
			queue := fr.Queue
			if queue < 0 || queue >= len(s.rx) {
				queue = 0
			}
			f.mu.Lock()
			f.receive(&h, tcpWindow(start[:n], &h), int(h.FrameLen)-hdrLen, queue, gpumem.SupplyOK)
			if h.TCPFlags&splitter.SYN != 0 {
				f.scale[1] = wscale(start[h.L4Off:hdrLen]) // the peer's window scale
			}
			f.mu.Unlock()
		}
	}
	s.inject(&h, buf)
}

// verify returns false if the transport checksum of a TCP or UDP packet in host memory is wrong. Netstack does not
// check it, because the link has CapabilityRXChecksumOffload for packets that are no fragments.
func (s *Stack) verify(h *splitter.Headers, hdr []byte, buf *buffer.Buffer) bool {
	head := int(h.HdrLen)
	var sum uint16
	if n := int(h.FrameLen) - head; n > 0 {
		sum = buf.Checksum(head - int(h.L3Off))
	}
	return splitter.VerifyL4(h, hdr[:head], h.FrameLen-uint32(head), sum) != splitter.CsumBad
}

// receiveSplit receives a frame with payload in device memory; the first bytes of the payload may be in host memory.
// receiveSplit owns the pages of the payload.
func (s *Stack) receiveSplit(fr *driver.RxFrame) {
	var l *shadowQueue
	if fr.Queue >= 0 && fr.Queue < len(s.rx) {
		l = s.rx[fr.Queue].Load()
	}
	if l == nil {
		s.count.rxDropped.Add(1) // the pages' owner is unknown, so they cannot be returned
		return
	}
	pool := l.binding.pool
	var hdr [splitter.MaxHeader]byte
	var h splitter.Headers
	n := copy(hdr[:], fr.Header)
	total := n + fr.PayloadLen
	err := splitter.Parse(hdr[:n], uint32(total), &h)
	payload := int(h.FrameLen) - int(h.HdrLen)
	if err != nil || h.Class != splitter.TCP || h.Tagged() || !fr.CsumGood || n < len(fr.Header) || payload > slotSize ||
		!splitter.VerifyIPv4(&h, hdr[:n]) {
		s.count.rxDropped.Add(1)
		l.discard(fr.Payload)
		return
	}
	head := min(n-int(h.HdrLen), payload) // payload that the device left in host memory
	device := payload - head
	var slot uint32 = junkSlot
	v := junk
	if f := s.flows.get(&h.Flow); f != nil {
		pages := pool.Supply(len(fr.Payload))
		f.mu.Lock()
		v = f.receive(&h, tcpWindow(hdr[:n], &h), payload, fr.Queue, pages)
		if v == deliver && device > 0 {
			var ok bool
			if slot, ok = l.take(fr.Payload, device); ok {
				f.keep(h.Seq, payload, l, slot)
				if head > 0 {
					f.keepLinear(h.Seq, head)
				}
			} else {
				v = refuse
			}
		}
		f.mu.Unlock()
	}
	if slot == junkSlot {
		l.discard(fr.Payload)
		if v == refuse {
			s.count.rxRefused.Add(1)
			return
		}
	}
	buf := buffer.MakeWithView(buffer.NewViewWithData(hdr[h.L3Off:h.HdrLen]))
	if head > 0 {
		b := buffer.MakeWithView(buffer.NewViewWithData(hdr[h.HdrLen : int(h.HdrLen)+head]))
		buf.Merge(&b)
	}
	if device > 0 {
		b := buffer.MakeWithView(l.view(slot, device))
		buf.Merge(&b) // not Append, which may copy bytes of the view, and so read the payload
	}
	s.inject(&h, buf)
}

// inject gives a packet to netstack, on the goroutine on which the NIC calls Receive. The caller holds no lock of the
// stack: netstack may send an answer before inject returns.
func (s *Stack) inject(h *splitter.Headers, buf buffer.Buffer) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buf})
	s.link.unverified.Store(h.Class == splitter.Fragment)
	if d := s.link.Dispatcher(); d != nil {
		d.DeliverNetworkPacket(tcpip.NetworkProtocolNumber(h.EtherType), pkt)
	}
	pkt.DecRef()
}

func tcpWindow(hdr []byte, h *splitter.Headers) uint32 {
	return uint32(binary.BigEndian.Uint16(hdr[h.L4Off+header.TCPWinSizeOffset:]))
}
