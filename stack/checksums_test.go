package stack_test

import (
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func (w *rig) syn(src, dst netip.Addr, seq uint32) []byte {
	tcp := header.TCP(make([]byte, header.TCPMinimumSize))
	tcp.Encode(&header.TCPFields{SrcPort: 1000, DstPort: 7, SeqNum: seq, DataOffset: header.TCPMinimumSize,
		Flags: header.TCPFlagSyn, WindowSize: 1000})
	from, to := tcpip.AddrFromSlice(src.AsSlice()), tcpip.AddrFromSlice(dst.AsSlice())
	tcp.SetChecksum(^tcp.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber, from, to,
		header.TCPMinimumSize)))
	eth := append(append([]byte{}, w.nb.MAC()...), w.na.MAC()...)
	if src.Is4() {
		ip := header.IPv4(make([]byte, header.IPv4MinimumSize))
		ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(ip) + len(tcp)), TTL: 64, Protocol: splitter.ProtoTCP,
			SrcAddr: from, DstAddr: to})
		ip.SetChecksum(^ip.CalculateChecksum())
		return append(append(append(eth, 8, 0), ip...), tcp...)
	}
	ip := header.IPv6(make([]byte, header.IPv6MinimumSize))
	ip.Encode(&header.IPv6Fields{PayloadLength: uint16(len(tcp)), TransportProtocol: header.TCPProtocolNumber,
		HopLimit: 64, SrcAddr: from, DstAddr: to})
	return append(append(append(eth, 0x86, 0xdd), ip...), tcp...)
}

// fragments cuts a frame of syn into two, 16 bytes after its IP header.
func fragments(frame []byte) [][]byte {
	const cut = 16
	if frame[12] == 8 {
		list := [][]byte{append([]byte{}, frame[:34+cut]...), append(append([]byte{}, frame[:34]...), frame[34+cut:]...)}
		for i, f := range list {
			ip := header.IPv4(f[14:34])
			ip.SetTotalLength(uint16(len(f) - 14))
			ip.SetID(uint16(frame[41]))
			ip.SetFlagsFragmentOffset([]uint8{header.IPv4FlagMoreFragments, 0}[i], uint16(i*cut))
			ip.SetChecksum(0)
			ip.SetChecksum(^ip.CalculateChecksum())
		}
		return list
	}
	piece := func(offset, more byte, body []byte) []byte {
		f := append(append([]byte{}, frame[:54]...), splitter.ProtoTCP, 0, 0, offset|more, 0, 0, 0, frame[61])
		f = append(f, body...)
		ip := header.IPv6(f[14:])
		ip.SetPayloadLength(uint16(len(f) - 54))
		ip.SetNextHeader(44) // Fragment (RFC 8200, 4.5)
		return f
	}
	return [][]byte{piece(0, 1, frame[54:54+cut]), piece(cut, 0, frame[54+cut:])}
}

// RxFrame.CsumGood covers neither the IPv4 header's checksum nor the TCP checksum of a packet in fragments.
func TestWrongChecksumsAreDropped(t *testing.T) {
	w := newRig(t, stacktest.Options{})
	whole := func(f []byte) [][]byte { return [][]byte{f} }
	for _, c := range []struct {
		name     string
		src, dst netip.Addr
		off      int // offset of the byte that the test changes in the first SYN
		cut      func([]byte) [][]byte
	}{
		{"IPv4, fragments", w.a4, w.b4, 34 + 17, fragments}, {"IPv6, fragments", w.a6, w.b6, 54 + 17, fragments},
		{"IPv4 header", w.a4, w.b4, 25, whole},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := testkit.Must(w.b.Listen(netip.AddrPortFrom(c.dst, 7)))(t)
			defer l.Close()
			answered := make(chan uint32, 10)
			w.nb.Filter(func(h *splitter.Headers, _ int) bool {
				if h.TCPFlags == splitter.SYN|splitter.ACK {
					answered <- h.Ack
				}
				return true
			})
			for i, seq := range []uint32{100, 200} { // the low byte is also the ID of the fragments
				f := w.syn(c.src, c.dst, seq)
				f[c.off] ^= []byte{1, 0}[i]
				for _, p := range c.cut(f) {
					w.nb.Inject([]driver.RxFrame{{Header: p, CsumGood: len(c.cut(f)) == 1}})
				}
			}
			testkit.Equal(t, "sequence number that is acknowledged", <-answered, 201)
			w.nb.Filter(nil)
		})
	}
}

func TestWrongHeaderOfASplitFrameIsDropped(t *testing.T) {
	w := newRig(t, stacktest.Options{})
	bindRX(t, w.b, 0, 1<<20, 7, 1)
	ca, cb := w.connect(7, false)
	write(t, ca, "hello")
	skip(t, cb, 5)
	for wrong, want := range []uint64{0, 1} {
		h := w.nb.LastHeader()
		h[22] -= byte(wrong) // the TTL
		page := driver.Range{Off: w.nb.TakePosted(1, 1)[0], Len: 5}
		before := w.b.Stats().RxFrameDrops
		w.nb.Inject([]driver.RxFrame{{Queue: 1, Header: h, Payload: []driver.Range{page}, PayloadLen: 5, CsumGood: true,
			Split: true}})
		testkit.Equal(t, "frames that are dropped", w.b.Stats().RxFrameDrops-before, want)
	}
}
