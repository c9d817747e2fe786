package stacktest

import (
	"bytes"
	"encoding/binary"
	"slices"

	"vnic.dev/vnic/splitter"
)

// wire sends a packet to the peer: it cuts GSO packets (Options.Cut), drops packets and segments that keep refuses,
// completes the checksums of others (Options.Checksums), and repeats, reorders and, if they are TCP, drops some at
// random.
func (n *NIC) wire(p packet, keep func(*splitter.Headers, int) bool) {
	parts := []packet{p}
	if n.o.Cut && p.mss > 0 {
		parts = cut(p)
	}
	var out, late []packet
	for _, p := range parts {
		var h splitter.Headers
		_ = splitter.Parse(p.header, uint32(len(p.header)+len(p.payload)), &h)
		if keep != nil && !keep(&h, len(p.payload)) {
			n.mu.Lock()
			n.lost++
			n.mu.Unlock()
			continue
		}
		if n.o.Checksums {
			complete(&h, &p)
		}
		n.mu.Lock()
		loss, dup, reorder := n.rng.Float64() < n.o.Loss, n.rng.Float64() < n.o.Dup, n.rng.Float64() < n.o.Reorder
		after := 1 + n.rng.IntN(8)
		if loss {
			n.lost++
		}
		n.mu.Unlock()
		if loss && h.Class == splitter.TCP { // TCP alone: neighbour discovery would retry only after a second
			continue
		}
		switch {
		case reorder:
			p.after = after
			late = append(late, p)
		default:
			out = append(out, p)
		}
		if dup {
			d := p
			d.header = slices.Clone(p.header)
			out = append(out, d)
		}
	}
	to := n.peer
	to.mu.Lock()
	for _, p := range out {
		to.inbox = append(to.inbox, p)
		for i := 0; i < len(to.delayed); {
			if to.delayed[i].after--; to.delayed[i].after > 0 {
				i++
				continue
			}
			to.inbox = append(to.inbox, to.delayed[i])
			to.delayed = slices.Delete(to.delayed, i, i+1)
		}
	}
	to.delayed = append(to.delayed, late...)
	to.mu.Unlock()
	to.kick()
}

// complete completes the partial checksum of a TCP or UDP packet.
func complete(h *splitter.Headers, p *packet) {
	if start, offset, ok := splitter.CsumPlace(h); ok {
		sum := splitter.Add(splitter.Sum(p.header[start:], 0), splitter.Sum(p.payload, 0))
		splitter.PutCsum(p.header[start+offset:], sum, h.Class == splitter.UDP)
	}
}

func valid(h *splitter.Headers, p *packet) bool {
	return splitter.VerifyL4(h, p.header, uint32(len(p.payload)), splitter.Sum(p.payload, 0)) == splitter.CsumGood
}

func cut(p packet) []packet {
	var h splitter.Headers
	if err := splitter.Parse(p.header, uint32(len(p.header)+len(p.payload)), &h); err != nil || h.Class != splitter.TCP {
		panic("stacktest: a super-packet that is not TCP")
	}
	l4 := int(h.L4Off)
	var out []packet
	for off := 0; off < len(p.payload); off += p.mss {
		s := packet{header: slices.Clone(p.header), payload: p.payload[off:min(off+p.mss, len(p.payload))]}
		binary.BigEndian.PutUint32(s.header[l4+4:], h.Seq+uint32(off))
		if off+p.mss < len(p.payload) {
			s.header[l4+13] &^= splitter.PSH | splitter.FIN
		}
		setLen(s.header, &h, len(s.payload))
		out = append(out, s)
	}
	return out
}

// setLen writes the IP length of a segment with this many bytes of payload, and updates the IPv4 header's checksum and
// TCP's partial one.
func setLen(hdr []byte, h *splitter.Headers, payload int) {
	ip := hdr[h.L3Off:]
	if h.IPv6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40+payload))
	} else {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+payload))
	}
	splitter.FixIPv4(h, hdr)
	splitter.FixPartial(h, hdr, uint32(payload))
}

// merge joins successive segments of a connection that have contiguous payload, the same acknowledgment and TCP
// options, and no flags but ACK and PSH; PSH ends a joined segment, which has less than 65,000 bytes of payload.
func merge(in []packet) []packet {
	var out []packet
	var last splitter.Headers
	for _, p := range in {
		var h splitter.Headers
		_ = splitter.Parse(p.header, uint32(len(p.header)+len(p.payload)), &h)
		if k := len(out) - 1; k >= 0 && h.Class == splitter.TCP && last.Class == splitter.TCP && h.Flow == last.Flow &&
			len(p.payload) > 0 && len(out[k].payload) > 0 && len(out[k].payload)+len(p.payload) < 65000 &&
			h.Seq == last.Seq+uint32(len(out[k].payload)) && last.TCPFlags == splitter.ACK &&
			len(p.header) == len(out[k].header) &&
			h.TCPFlags&^splitter.PSH == splitter.ACK &&
			bytes.Equal(p.header[h.L4Off+20:], out[k].header[h.L4Off+20:]) && h.Ack == last.Ack {
			o := &out[k]
			o.payload = append(slices.Clone(o.payload), p.payload...)
			o.header[h.L4Off+13] |= h.TCPFlags
			setLen(o.header, &h, len(o.payload))
			last.TCPFlags = h.TCPFlags
			continue
		}
		p.header = slices.Clone(p.header)
		out = append(out, p)
		last = h
	}
	return out
}
