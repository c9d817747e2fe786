package splitter

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// frame describes a frame for its method build. build calls no function of the package, so that a fault of the package
// shows in tests.
type frame struct {
	tags     []uint16 // EtherTypes of the tags, outermost first; the TCI of tag i is 0x2000 + i
	src, dst string
	ipOpts   int    // length of the IPv4 options in bytes
	ext      []byte // numbers of IPv6 extension headers, of 8 bytes each
	fragOff  uint16 // IPv4: flags and offset field
	id       uint16
	proto    uint8
	sport    uint16
	dport    uint16
	seq      uint32
	ack      uint32
	flags    uint8
	tcpOpts  int
	payload  []byte
	padding  int
}

func (f *frame) build() []byte {
	src, dst := netip.MustParseAddr(f.src), netip.MustParseAddr(f.dst)
	b := []byte{0x02, 0, 0, 0, 0, 0xbb, 0x02, 0, 0, 0, 0, 0xaa}
	for i, t := range f.tags {
		b = binary.BigEndian.AppendUint16(b, t)
		b = binary.BigEndian.AppendUint16(b, 0x2000+uint16(i))
	}
	l4 := f.transport()
	if src.Is4() {
		b = append(b, 0x08, 0x00)
		ip := make([]byte, 20+f.ipOpts)
		ip[0] = 0x40 | byte(len(ip)/4)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		binary.BigEndian.PutUint16(ip[4:], f.id)
		binary.BigEndian.PutUint16(ip[6:], f.fragOff)
		ip[8], ip[9] = 64, f.proto
		copy(ip[12:], src.AsSlice())
		copy(ip[16:], dst.AsSlice())
		for i := 20; i < len(ip); i++ {
			ip[i] = 1 // no operation
		}
		binary.BigEndian.PutUint16(ip[10:], ^naive(ip))
		b = append(b, ip...)
	} else {
		b = append(b, 0x86, 0xdd)
		ip := make([]byte, 40)
		ip[0] = 0x60
		binary.BigEndian.PutUint16(ip[4:], uint16(8*len(f.ext)+len(l4)))
		next := append(append([]byte{}, f.ext...), f.proto)
		ip[6], ip[7] = next[0], 64
		copy(ip[8:], src.AsSlice())
		copy(ip[24:], dst.AsSlice())
		for i, e := range f.ext {
			h := []byte{next[i+1], 0, 1, 4, 0, 0, 0, 0} // PadN of 6
			if e == extRouting {
				h[2], h[3] = 4, 0
			} else if e == extFragment {
				h = []byte{next[i+1], 0, 0, 1, 0, 0, 0, 7}
			}
			ip = append(ip, h...)
		}
		b = append(b, ip...)
	}
	b = append(b, l4...)
	return append(b, make([]byte, f.padding)...)
}

func (f *frame) transport() []byte {
	var l4 []byte
	csum := 0
	switch f.proto {
	case ProtoTCP:
		l4 = make([]byte, 20+f.tcpOpts, 20+f.tcpOpts+len(f.payload))
		binary.BigEndian.PutUint32(l4[4:], f.seq)
		binary.BigEndian.PutUint32(l4[8:], f.ack)
		l4[12], l4[13] = byte(len(l4)/4)<<4, f.flags
		l4[15] = 0xff
		for i := 20; i < len(l4); i++ {
			l4[i] = 1
		}
		csum = 16
	case ProtoUDP:
		l4 = make([]byte, 8, 8+len(f.payload))
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(f.payload)))
		csum = 6
	default:
		return f.payload
	}
	binary.BigEndian.PutUint16(l4[0:], f.sport)
	binary.BigEndian.PutUint16(l4[2:], f.dport)
	l4 = append(l4, f.payload...)
	sum := ^naive(append(f.pseudo(len(l4)), l4...))
	if sum == 0 && f.proto == ProtoUDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[csum:], sum)
	return l4
}

func (f *frame) pseudo(n int) []byte {
	p := append([]byte{}, netip.MustParseAddr(f.src).AsSlice()...)
	p = append(p, netip.MustParseAddr(f.dst).AsSlice()...)
	p = binary.BigEndian.AppendUint32(p, uint32(n))
	return append(p, 0, 0, 0, f.proto)
}

func naive(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		if s += w; s > 0xffff {
			s -= 0xffff
		}
	}
	return uint16(s)
}

func parsed(t testing.TB, b []byte) (h Headers) {
	t.Helper()
	testkit.OK(t, Parse(b, uint32(len(b)), &h))
	return h
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + 1)
	}
	return b
}

func tcp4(payload int) frame {
	return frame{src: "10.0.0.1", dst: "10.0.0.2", proto: ProtoTCP, sport: 40000, dport: 5201, seq: 0xfffffe00, ack: 77,
		id: 0xfffe, flags: ACK, tcpOpts: 12, payload: pattern(payload)}
}

func tcp6(payload int) frame {
	f := tcp4(payload)
	f.src, f.dst = "fd00::1", "fd00::2"
	return f
}

func udp(f frame) frame {
	f.proto = ProtoUDP
	return f
}
