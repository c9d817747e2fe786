package uplink

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// putVXLAN writes the bytes that Linux's vxlan device sends for VNI 42, and cutVXLAN checks the flag I and the VNI.
func TestVXLANHeader(t *testing.T) {
	b := bytes.Repeat([]byte{0xff}, vxlanLen+3)
	putVXLAN(b, 42)
	testkit.Equal(t, "header", hex.EncodeToString(b), "0800000000002a00ffffff")
	f, why := cutVXLAN(b, 42)
	testkit.Equal(t, "why", why, none)
	testkit.Equal(t, "frame", hex.EncodeToString(f), "ffffff")
	for _, c := range []struct {
		header string
		vni    uint32
		want   reason
	}{
		{"", 0, badHeader}, {"08000000002a00", 42, badHeader}, {"0000000000002a00", 42, badHeader},
		{"f700000000002a00", 42, badHeader}, {"0800000000002b00", 42, otherVNI}, {"0800000001002a00", 42, otherVNI},
		{"08000000ffffff00", MaxVNI, none},
		{"fffffffF00002aff", 42, none}, // reserved bits are ignored (RFC 7348, 5)
	} {
		_, why := cutVXLAN(testkit.Must(hex.DecodeString(c.header))(t), c.vni)
		testkit.Equal(t, c.header, why, c.want)
	}
}

func FuzzVXLAN(f *testing.F) {
	f.Add([]byte{8, 0, 0, 0, 0, 0, 42, 0, 1, 2, 3}, uint32(42))
	f.Add([]byte{8, 0, 0, 0, 0, 0, 42}, uint32(42))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 42, 0}, uint32(42))
	f.Add([]byte{0xff, 1, 2, 3, 0xff, 0xff, 0xff, 4, 5}, uint32(MaxVNI))
	f.Fuzz(func(t *testing.T, b []byte, vni uint32) {
		frame, why := cutVXLAN(b, vni)
		if (why == none) != (len(b) >= 8 && b[0]&8 != 0 && uint32(b[4])<<16|uint32(b[5])<<8|uint32(b[6]) == vni) {
			t.Fatalf("%x: %v", b, why)
		}
		if why == none && !bytes.Equal(frame, b[8:]) {
			t.Fatalf("%x: %x", b, frame)
		}
	})
}

func streamOf(frames ...[]byte) (b []byte) {
	for _, f := range frames {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	return b
}

func TestStreamIsCutIntoFrames(t *testing.T) {
	long := bytes.Repeat([]byte{7}, streamMax)
	all := streamOf([]byte("one"), nil, long, bytes.Repeat([]byte{2}, 1500), long, []byte("three"))
	for _, step := range []int{1, 2, 3, 5, 1000, 1504, 65536, len(all)} {
		c := newCutter(1500)
		testkit.Equal(t, "buffer", len(c.buf), 64<<10)
		got, dropped := feed(t, c, all, step)
		testkit.Equal(t, "dropped", dropped, 2)
		if want := [][]byte{[]byte("one"), nil, bytes.Repeat([]byte{2}, 1500), []byte("three")}; !same(got, want) {
			t.Errorf("in steps of %d: %d frames", step, len(got))
		}
	}
	c := newCutter(1500)
	c.filled(copy(c.room(), []byte{0, 1, 0x10, 1}))
	if _, _, _, err := c.next(); err == nil {
		t.Error("a frame beyond QEMU's bound")
	}
}

func same(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func feed(t testing.TB, c *cutter, b []byte, step int) (got [][]byte, dropped int) {
	t.Helper()
	for len(b) > 0 {
		room := c.room()
		if len(room) == 0 {
			t.Fatal("no room for more")
		}
		n := copy(room, b[:min(step, len(b))])
		c.filled(n)
		b = b[n:]
		for {
			f, why, more, err := c.next()
			if err != nil {
				return got, dropped
			}
			if !more {
				break
			}
			if why != none {
				dropped++
			} else {
				got = append(got, bytes.Clone(f))
			}
		}
	}
	return got, dropped
}

func FuzzStream(f *testing.F) {
	f.Add(streamOf([]byte("frame"), nil, []byte("other")), uint16(3))
	f.Add(streamOf(bytes.Repeat([]byte{1}, 70000), []byte("x")), uint16(1000))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint16(1))
	f.Add([]byte{0, 0, 0, 9, 1}, uint16(2))
	f.Fuzz(func(t *testing.T, b []byte, step uint16) {
		whole, lost := feed(t, newCutter(1500), b, max(len(b), 1))
		got, dropped := feed(t, newCutter(1500), b, int(step)+1)
		if !same(whole, got) || lost != dropped {
			t.Fatalf("%d frames and %d dropped, or %d and %d", len(whole), lost, len(got), dropped)
		}
	})
}

func TestVnetHeader(t *testing.T) {
	for _, c := range []struct {
		header string
		want   splitter.Meta
		why    reason
	}{
		{"000000000000000000000000", splitter.Meta{}, none},
		{"020000000000000000000000", splitter.Meta{Csum: splitter.CsumGood}, none},
		{"010000000000220010000000", splitter.Meta{Csum: splitter.CsumPartial, CsumStart: 34, CsumOffset: 16}, none},
		{"01014200a805220010000000", splitter.Meta{Csum: splitter.CsumPartial, CsumStart: 34, CsumOffset: 16,
			GSOType: splitter.GSOTCPv4, GSOSize: 1448}, none},
		{"01844200a805220010000000", splitter.Meta{Csum: splitter.CsumPartial, CsumStart: 34, CsumOffset: 16,
			GSOType: splitter.GSOTCPv6, GSOSize: 1448, ECN: true}, none},
		{"00014200a805220010000000", splitter.Meta{}, badHeader}, // GSO without a partial checksum
		{"01034200a805220010000000", splitter.Meta{}, badHeader}, // UFO
		{"01054200a805220010000000", splitter.Meta{}, badHeader}, // USO
	} {
		var m splitter.Meta
		why := readVnet((*[vnetLen]byte)(testkit.Must(hex.DecodeString(c.header))(t)), &m)
		testkit.Equal(t, c.header, why, c.why)
		if why == none {
			testkit.Equal(t, c.header, m, c.want)
		}
	}
}

// Whether a tap's GSO packet is too long for the uplink depends on its longest segment.
func TestGSOPacketIsJudgedByItsLongestSegment(t *testing.T) {
	q := &inbox{longest: 1514, skip: vnetLen, worker: wire.NewWorker(), free: newFrames(vnetLen + maxSuper)}
	s := &inSlot{f: <-q.free}
	for _, c := range []struct {
		payload int
		mss     uint16
		why     reason
	}{
		{1460, 1460, none}, {20000, 1460, none}, {20000, 1461, tooLong}, {1460, 65535, none}, {1461, 65535, tooLong},
		{1, 9000, none}, {0, 65535, none}, {1460, 0, none}, {1461, 0, tooLong},
	} {
		h := []byte{1, 1, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0}
		if c.mss == 0 {
			h[1] = 0
		}
		binary.LittleEndian.PutUint16(h[4:], c.mss)
		s.f.n = copy(s.f.b, append(h, tcp(wire.MAC{2, 1}, wire.MAC{2, 2}, c.payload)...))
		var p wire.Packet
		testkit.Equal(t, fmt.Sprintf("%d bytes with an MSS of %d", c.payload, c.mss), q.describe(s, &p), c.why)
	}
}

func FuzzVnet(f *testing.F) {
	f.Add([]byte{1, 1, 0x42, 0, 0xa8, 5, 0x22, 0, 0x10, 0, 0, 0})
	f.Add([]byte{0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h [vnetLen]byte
		copy(h[:], b)
		var m splitter.Meta
		if readVnet(&h, &m) == none && m.GSOType != splitter.GSONone && m.Csum != splitter.CsumPartial {
			t.Fatalf("%x: %+v", h, m)
		}
	})
}

func controlMessage(level, kind int, data []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(len(data))))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	copy(b[16:], data)
	return b
}

func TestSizeOfDatagramsThatCameAsOne(t *testing.T) {
	size := binary.NativeEndian.AppendUint32(nil, 1458)
	gro := controlMessage(unix.SOL_UDP, unix.UDP_GRO, size)
	other := controlMessage(unix.SOL_SOCKET, unix.SO_TIMESTAMP, size)
	testkit.Equal(t, "one message", cutSize(gro, 5000), 1458)
	testkit.Equal(t, "behind another", cutSize(append(bytes.Clone(other), gro...), 5000), 1458)
	testkit.Equal(t, "no message", cutSize(nil, 5000), 5000)
	testkit.Equal(t, "another", cutSize(other, 5000), 5000)
	testkit.Equal(t, "0 bytes", cutSize(nil, 0), 1)
	zero := controlMessage(unix.SOL_UDP, unix.UDP_GRO, make([]byte, 4))
	testkit.Equal(t, "of 0 bytes each", cutSize(zero, 5000), 5000)
}

func FuzzCutSize(f *testing.F) {
	f.Add(controlMessage(unix.SOL_UDP, unix.UDP_GRO, []byte{1, 2, 0, 0}), 5000)
	f.Add(controlMessage(unix.SOL_UDP, unix.UDP_GRO, []byte{0xff, 0xff, 0xff, 0xff}), 1)
	f.Add(controlMessage(unix.SOL_UDP, unix.UDP_GRO, []byte{1})[:17], 0)
	f.Fuzz(func(t *testing.T, oob []byte, n int) {
		if cutSize(oob, n) < 1 {
			t.Fatal("no datagram gets shorter")
		}
	})
}
