package stack

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

type ringNIC struct {
	NIC
	room   int
	frames []driver.TxFrame
	err    error
}

func (n *ringNIC) Transmit(_ int, f []driver.TxFrame) (int, error) {
	if n.err != nil {
		return 0, n.err
	}
	k := min(len(f), n.room)
	for i := range k {
		fr := f[i]
		fr.Header, fr.Linear, fr.Device = slices.Clone(fr.Header), slices.Clone(fr.Linear), slices.Clone(fr.Device)
		n.frames = append(n.frames, fr)
	}
	n.room -= k
	return k, nil
}

func (n *ringNIC) MAC() net.HardwareAddr { return nil }

const testISS = 0xffffff00 // sequence numbers wrap after 255 bytes

// newTxRig makes a transmit queue with one flow. Bytes from deviceFrom on are in the GPU, each 100 at a
// separate offset.
func newTxRig(ipv6 bool, una, deviceFrom, total int) (*txQueue, *ringNIC, *flow) {
	n := &ringNIC{room: 1000}
	s := &Stack{nic: n}
	s.flows = flows{s: s, m: map[flowKey]*flow{}, kick: make(chan struct{}, 1)}
	b := &txBinding{}
	b.refs.Store(1 << 30)
	f := &flow{iss: testISS, issKnown: true, una: 0, nxt: uint64(total)}
	f.wrote(deviceFrom)
	f.openSend(b)
	for off := deviceFrom; off < total; off += 100 {
		m := min(100, total-off)
		f.addPart(0, uint64(off)*1000, m)
		f.cutPart(m)
	}
	f.closeSend(total - deviceFrom)
	f.una = uint64(una)
	f.complete()
	q := &txQueue{s: s}
	var h txHeader
	h.set(testPacket(ipv6, 0, 0, nil))
	f.key = h.flowKey()
	s.flows.m[f.key] = f
	return q, n, f
}

func testPacket(ipv6 bool, pos, n int, gso *stack.GSO) *stack.PacketBuffer {
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(pos + i)
	}
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{ReserveHeaderBytes: 128, Payload: buffer.MakeWithData(payload)})
	if gso != nil {
		p.GSOOptions = *gso
	}
	p.TransportProtocolNumber = header.TCPProtocolNumber
	t := header.TCP(p.TransportHeader().Push(header.TCPMinimumSize + 12))
	t.Encode(&header.TCPFields{SrcPort: 7, DstPort: 9, SeqNum: testISS + 1 + uint32(pos), AckNum: 5, DataOffset: 32,
		Flags: header.TCPFlagAck | header.TCPFlagPsh})
	for i := 20; i < 32; i++ {
		t[i] = header.TCPOptionNOP
	}
	if ipv6 {
		p.NetworkProtocolNumber = header.IPv6ProtocolNumber
		header.IPv6(p.NetworkHeader().Push(header.IPv6MinimumSize)).Encode(&header.IPv6Fields{
			PayloadLength: uint16(32 + n), TransportProtocol: header.TCPProtocolNumber, HopLimit: 64,
			SrcAddr: tcpip.AddrFrom16([16]byte{0xfd, 15: 1}), DstAddr: tcpip.AddrFrom16([16]byte{0xfd, 15: 2}),
		})
	} else {
		p.NetworkProtocolNumber = header.IPv4ProtocolNumber
		ip := header.IPv4(p.NetworkHeader().Push(header.IPv4MinimumSize))
		ip.Encode(&header.IPv4Fields{
			TotalLength: uint16(52 + n), Protocol: uint8(header.TCPProtocolNumber), TTL: 64,
			SrcAddr: tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), DstAddr: tcpip.AddrFrom4([4]byte{10, 0, 0, 2}),
		})
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	eth := header.Ethernet(p.LinkHeader().Push(header.EthernetMinimumSize))
	eth.Encode(&header.EthernetFields{Type: p.NetworkProtocolNumber})
	return p
}

// checkFrames checks the headers of frames, and that the frames carry bytes [from, to) of the stream in order, from
// deviceFrom on in device memory.
func checkFrames(t *testing.T, frames []driver.TxFrame, from, to, deviceFrom int) {
	t.Helper()
	pos := from
	for i, f := range frames {
		n := len(f.Linear)
		for _, r := range f.Device {
			n += int(r.Len)
		}
		var h splitter.Headers
		if err := splitter.Parse(f.Header, uint32(len(f.Header)+n), &h); err != nil || h.Class != splitter.TCP ||
			int(h.HdrLen) != len(f.Header) ||
			int(h.FrameLen) != len(f.Header)+n {
			t.Fatalf("frame %d of %d payload: %+v, %v", i, n, h, err)
		}
		testkit.Equal(t, fmt.Sprintf("seq of frame %d", i), h.Seq-testISS-1, uint32(pos))
		if last := i == len(frames)-1; (h.TCPFlags&splitter.PSH != 0) != last {
			t.Errorf("frame %d of %d: flags %#x", i, len(frames), h.TCPFlags)
		}
		if !splitter.VerifyIPv4(&h, f.Header) {
			t.Errorf("frame %d: IPv4 checksum", i)
		}
		sum := splitter.PseudoSum(&h, f.Header, uint32(len(f.Header)-int(h.L4Off)+n))
		if got := binary.BigEndian.Uint16(f.Header[h.L4Off+16:]); !f.NeedsCsum || f.CsumStart != h.L4Off ||
			f.CsumOffset != 16 || got != sum {
			t.Errorf("frame %d: checksum %v at %d+%d, pseudo sum %#x, want %#x", i, f.NeedsCsum, f.CsumStart, f.CsumOffset, got,
				sum)
		}
		if want := n > 1448; (f.GSOType != splitter.GSONone) != want || want &&
			(f.GSOSize != 1448 || (f.GSOType == splitter.GSOTCPv6) != h.IPv6) {
			t.Errorf("frame %d of %d bytes: gso %v %d", i, n, f.GSOType, f.GSOSize)
		}
		for _, b := range f.Linear {
			if pos >= deviceFrom || b != byte(pos) {
				t.Fatalf("frame %d: byte %d is linear, %#x", i, pos, b)
			}
			pos++
		}
		for _, r := range f.Device {
			for j := range int(r.Len) {
				base := (pos-deviceFrom)/100*100 + deviceFrom
				if pos < deviceFrom || r.Off+uint64(j) != uint64(base)*1000+uint64(pos-base) {
					t.Fatalf("frame %d: byte %d at %d", i, pos, r.Off+uint64(j))
				}
				pos++
			}
		}
	}
	testkit.Equal(t, "end of the frames", pos, to)
}

func TestTransmitPlacesPayload(t *testing.T) {
	gso := stack.GSO{Type: stack.GSOTCPv4, MSS: 1448, NeedsCsum: true}
	for _, ipv6 := range []bool{false, true} {
		for _, c := range []struct {
			name                   string
			una, deviceFrom, total int
			pos, n                 int
			frames                 int
		}{
			{"linear", 0, 5000, 5000, 0, 3000, 1},
			{"device", 0, 0, 5000, 0, 1448, 1},
			{"more pieces than a frame has", 0, 0, 5000, 50, 4900, 3},
			{"linear, then device", 0, 1000, 5000, 500, 1448, 1},
			{"partly acknowledged", 700, 0, 5000, 0, 1448, 1},
			{"acknowledged up to the last byte", 1447, 0, 5000, 0, 1448, 1},
			{"a super-packet, partly acknowledged", 2222, 600, 9000, 300, 8000, 4},
		} {
			t.Run(c.name, func(t *testing.T) {
				q, n, f := newTxRig(ipv6, c.una, c.deviceFrom, c.total)
				pkt := testPacket(ipv6, c.pos, c.n, &gso)
				defer pkt.DecRef()
				if err := q.write(pkt); err != nil {
					t.Fatal(err)
				}
				checkFrames(t, n.frames, max(c.pos, c.una), c.pos+c.n, c.deviceFrom)
				testkit.Equal(t, "frames", len(n.frames), c.frames)
				returnAll(t, q, n, f)
			})
		}
	}
}

// A stack without GSO and RACK cuts netstack's packets into frames of one segment.
func TestTransmitCuts(t *testing.T) {
	gso := stack.GSO{Type: stack.GSOTCPv4, MSS: 1448, NeedsCsum: true}
	for _, ipv6 := range []bool{false, true} {
		for _, c := range []struct {
			name                   string
			una, deviceFrom, total int
			pos, n                 int
			room                   int
			frames                 int
		}{
			{"linear", 0, 5000, 5000, 0, 3000, 9, 3},
			{"device, and the last segment is full", 0, 0, 9000, 0, 4 * 1448, 9, 4},
			{"both, partly acknowledged", 2222, 3000, 9000, 300, 8000, 9, 5},
			{"a full ring", 0, 1000, 9000, 0, 9000, 2, 7},
		} {
			t.Run(fmt.Sprintf("%s/v6=%v", c.name, ipv6), func(t *testing.T) {
				q, n, f := newTxRig(ipv6, c.una, c.deviceFrom, c.total)
				q.s.cut = true
				n.room = c.room
				pkt := testPacket(ipv6, c.pos, c.n, &gso)
				defer pkt.DecRef()
				if err := q.write(pkt); err != nil {
					t.Fatal(err)
				}
				for q.backlog.len() > 0 {
					n.room = c.room
					q.completed(nil)
				}
				checkFrames(t, n.frames, max(c.pos, c.una), c.pos+c.n, c.deviceFrom)
				testkit.Equal(t, "frames", len(n.frames), c.frames)
				testkit.Equal(t, "what one segment has", f.mss, 1448)
				returnAll(t, q, n, f)
			})
		}
	}
}

func returnAll(t *testing.T, q *txQueue, n *ringNIC, f *flow) {
	t.Helper()
	for i := range n.frames {
		f.acknowledge(f.iss+1+uint32(f.nxt), 0)
		if len(n.frames[i].Device) > 0 && f.done.len() > 0 {
			t.Fatal("complete, although a frame is under way")
		}
		q.completed([]uint64{n.frames[i].Cookie, n.frames[i].Cookie, 1 << 60, 0})
	}
	f.acknowledge(f.iss+1+uint32(f.nxt), 0)
	if f.sends.len() > 0 || f.parts.len() > 0 || len(q.idle) != len(q.flights) {
		t.Errorf("%d sends, %d parts, %d of %d cookies left", f.sends.len(), f.parts.len(), len(q.flights)-len(q.idle),
			len(q.flights))
	}
}

// The stack does not send acknowledged bytes again: their memory may have changed.
func TestTransmitOfReleasedMemoryIsEmpty(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		for _, c := range []struct{ una, pos, n int }{{5000, 0, 1448}, {5000, 3552, 1448}, {5000, 4999, 1}, {0, -1, 1}} {
			q, n, _ := newTxRig(ipv6, c.una, 0, 6000)
			pkt := testPacket(ipv6, c.pos, c.n, nil)
			if err := q.write(pkt); err != nil || len(n.frames) != 1 {
				t.Fatal(len(n.frames), err)
			}
			pkt.DecRef()
			fr := n.frames[0]
			var h splitter.Headers
			splitter.Parse(fr.Header, uint32(len(fr.Header)), &h)
			if h.Class != splitter.TCP || int(h.FrameLen) != len(fr.Header) || len(fr.Linear)+len(fr.Device) > 0 ||
				h.Seq != testISS+uint32(c.una) || h.TCPFlags != splitter.ACK || fr.GSOType != splitter.GSONone {
				t.Errorf("%+v: %+v, %+v", c, h, fr)
			}
			if !splitter.VerifyIPv4(&h, fr.Header) {
				t.Errorf("%+v: IPv4 checksum", c)
			}
		}
	}
}

// When the ring is full the rest of a packet waits, and later continues in order.
func TestTransmitGoesOnAfterAFullRing(t *testing.T) {
	gso := stack.GSO{Type: stack.GSOTCPv4, MSS: 1448, NeedsCsum: true}
	q, n, f := newTxRig(false, 0, 0, 9000)
	n.room = 2
	for _, c := range [][2]int{{0, 4000}, {4000, 3000}, {7000, 2000}} {
		pkt := testPacket(false, c[0], c[1], &gso)
		if err := q.write(pkt); err != nil {
			t.Fatal(err)
		}
		pkt.DecRef()
	}
	if len(n.frames) != 2 || q.backlog.len() != 3 {
		t.Fatalf("%d frames, %d packets wait", len(n.frames), q.backlog.len())
	}
	n.room = 1
	q.completed([]uint64{n.frames[0].Cookie})
	if len(n.frames) != 3 || q.backlog.len() != 2 {
		t.Fatalf("%d frames, %d packets wait", len(n.frames), q.backlog.len())
	}
	checkFrames(t, n.frames[:3], 0, 4000, 0)
	n.room = 100
	f.acknowledge(f.iss+1+6900, 0)
	q.completed(nil)
	checkFrames(t, n.frames[3:4], 6900, 7000, 0)
	checkFrames(t, n.frames[4:], 7000, 9000, 0)
	n.frames = n.frames[1:]
	returnAll(t, q, n, f)
}

// A dropped frame keeps no send incomplete.
func TestTransmitDrops(t *testing.T) {
	q, n, f := newTxRig(false, 0, 0, 5000)
	n.err = syscall.EIO
	pkt := testPacket(false, 0, 4000, nil)
	defer pkt.DecRef()
	if err := q.write(pkt); err != nil || q.backlog.len() > 0 {
		t.Errorf("%v, %d packets wait", err, q.backlog.len())
	}
	n.err = nil
	returnAll(t, q, n, f)
	delete(q.s.flows.m, f.key)
	q.write(pkt)
	f.end()
	q.s.flows.m[f.key] = f
	q.write(pkt)
	if len(n.frames) > 0 || q.s.count.txDropped.Load() < 3 {
		t.Errorf("%d frames, %d dropped", len(n.frames), q.s.count.txDropped.Load())
	}
}

// With RACK, a segment that is sent late gets the current acknowledgment, window and timestamp.
func TestLateSegmentIsBroughtUpToDate(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		q, n, f := newTxRig(ipv6, 0, 0, 2000)
		q.s.repeat = true
		f.irsKnown, f.irs = true, 0xfffffff0
		stamped := func(pos int, ack, ts uint32) *stack.PacketBuffer {
			p := testPacket(ipv6, pos, 500, nil)
			tcp := header.TCP(p.TransportHeader().Slice())
			tcp.SetAckNumber(ack)
			tcp.SetWindowSize(uint16(ts))
			header.EncodeTSOption(ts, 1, tcp[22:])
			return p
		}
		for _, v := range []struct {
			pos              int
			ack, ts          uint32
			wantAck, wantTSV uint32
		}{
			{0, 0xfffffff1, 100, 0xfffffff1, 100},
			{500, 5, 200, 5, 200},
			{0, 0xfffffff1, 100, 5, 200}, // a retransmission
			{1000, 7, 300, 7, 300},
		} {
			p := stamped(v.pos, v.ack, v.ts)
			n.frames = n.frames[:0]
			if _, all := q.transmit(p, 0); !all {
				t.Fatal("no room")
			}
			p.DecRef()
			checkFrames(t, n.frames, v.pos, v.pos+500, 0)
			tcp := header.TCP(n.frames[0].Header[q.header.l4:])
			ts := tcp.ParsedOptions().TSVal
			if tcp.AckNumber() != v.wantAck || ts != v.wantTSV || uint32(tcp.WindowSize()) != v.wantTSV {
				t.Errorf("%+v: ack %d, timestamp %d, window %d", v, tcp.AckNumber(), ts, tcp.WindowSize())
			}
		}
		if f.tail.pkts[0] == nil || f.tail.end != 1500 {
			t.Errorf("tail ends at %d", f.tail.end)
		}
		iss := uint32(testISS)
		f.acknowledge(iss+1+1499, 1)
		for i := range repeatAfter {
			list := f.silence(nil)
			if (len(list) > 0) != (i == repeatAfter-1) {
				t.Errorf("tick %d: %v", i, list)
			}
			for _, p := range list {
				p.DecRef()
			}
		}
		if f.acknowledge(iss+1+1500, 1); f.tail.pkts[0] != nil {
			t.Error("an acknowledged tail is kept")
		}
	}
}

// With RACK, the last data is repeated together with a later FIN.
func TestLastDataIsRepeatedBesideTheFIN(t *testing.T) {
	q, _, f := newTxRig(false, 0, 0, 500)
	q.s.repeat = true
	data, fin, again := testPacket(false, 0, 500, nil), testPacket(false, 500, 0, nil), testPacket(false, 500, 0, nil)
	for _, p := range []*stack.PacketBuffer{fin, again} {
		header.TCP(p.TransportHeader().Slice()).SetFlags(uint8(header.TCPFlagAck | header.TCPFlagFin))
	}
	f.finSent = true
	iss := uint32(testISS)
	repeated := func() (list []*stack.PacketBuffer) {
		for range repeatMost {
			if list = f.silence(nil); list != nil {
				break
			}
		}
		for _, p := range list {
			p.DecRef()
		}
		return list
	}
	remember := func(p *stack.PacketBuffer, n int) { f.remember(p, header.TCP(p.TransportHeader().Slice()), n) }
	remember(data, 500)
	for _, p := range []*stack.PacketBuffer{fin, again, again} {
		remember(p, 0)
		if got := repeated(); len(got) != 2 || got[0] != data || got[1] != p {
			t.Fatalf("%d segments are repeated, not the data and the FIN", len(got))
		}
	}
	f.acknowledge(iss+1+500, 1)
	if got := repeated(); len(got) == 0 || got[len(got)-1] != again {
		t.Errorf("the FIN is not repeated behind data that has arrived: %d segments", len(got))
	}
	if f.acknowledge(iss+1+501, 1); len(repeated()) != 0 {
		t.Error("what is acknowledged is repeated")
	}
	for _, p := range []*stack.PacketBuffer{data, fin, again} {
		if n := p.ReadRefs(); n != 1 {
			t.Errorf("%d references are left", n)
		}
		p.DecRef()
	}
}
