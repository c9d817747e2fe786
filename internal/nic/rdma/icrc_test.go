package rdma

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// icrcByBits computes the invariant CRC of a frame without VLAN tag by annex A17.3.3 and chapter 7.8.1, bit by
// bit. frame has all bytes but the ICRC.
func icrcByBits(frame []byte) uint32 {
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, frame[14:]...)
	l3, l4 := b[8:], b[8+20:]
	if frame[12] == 0x86 {
		l4 = b[8+40:]
		l3[0] |= 0x0f
		l3[1], l3[2], l3[3], l3[7] = 0xff, 0xff, 0xff, 0xff
	} else {
		l3[1], l3[8], l3[10], l3[11] = 0xff, 0xff, 0xff, 0xff
	}
	l4[6], l4[7], l4[8+4] = 0xff, 0xff, 0xff
	crc := ^uint32(0)
	for _, c := range b {
		for i := range 8 {
			bit := uint32(c)>>i&1 ^ crc&1
			crc >>= 1
			if bit == 1 {
				crc ^= 0xedb88320
			}
		}
	}
	return ^crc
}

// sumOf computes the ICRC of a frame as this package does.
func sumOf(t *testing.T, frame []byte) uint32 {
	t.Helper()
	var h splitter.Headers
	if r := splitter.Parse(frame, uint32(len(frame)+icrcLen), &h); h.Class != splitter.UDP {
		t.Fatalf("not UDP: %v %+v", r, h)
	}
	var mem scratch
	return invariant(&mem, &h, frame[:h.HdrLen], frame[h.HdrLen:])
}

// captured are frames with an ICRC of other implementations, from Scapy's tests (test/contrib/roce.uts): the
// first is Haggai Eran's example of a UC SEND, the second was captured on a ConnectX-4 Lx. They belong to other
// transports than this package's, so only the ICRC is checked.
var captured = map[string]string{
	"UC SEND": "248a07a8fa22 248a07a8fa22 0800 4501 0040 0478 4000 40 11 b4d5 c0a80007 c0a80007 c000 12b7 002c aca2" +
		"24 60 ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3",
	"CNP of a ConnectX-4 Lx": "e41d2dab2bc2 7cfe90643b32 0800 45c2 003c 718c 4000 40 11 9161 0a001101 0a001201" +
		"0000 12b7 0028" +
		"0000 81 00 ffff 40000118 00000000 0000000000000000 0000000000000000 82fd002a",
}

// Invariant: nic/rdma: The ICRC is the one that other implementations compute, and a NIC of another vendor sends.
func TestICRCOfOthers(t *testing.T) {
	for name, s := range captured {
		b := testkit.Must(hex.DecodeString(strings.ReplaceAll(s, " ", "")))(t)
		frame, want := b[:len(b)-icrcLen], binary.LittleEndian.Uint32(b[len(b)-icrcLen:])
		if got := sumOf(t, frame); got != want {
			t.Errorf("%s: %#08x, not %#08x", name, got, want)
		}
		if got := icrcByBits(frame); got != want {
			t.Errorf("%s: bit by bit: %#08x, not %#08x", name, got, want)
		}
		// A change in a byte that routers change leaves the ICRC as it is. A change in another byte does not.
		const tos, ttl, ipSum, udpSum, resv8a = 15, 22, 24, 40, 46
		changes := map[int]bool{tos: true, ttl: true, ipSum: true, ipSum + 1: true, udpSum: true, udpSum + 1: true,
			resv8a: true}
		for i := 14; i < len(frame); i++ {
			if i == 14 || i == 16 || i == 17 || i == 20 || i == 21 || i == 23 || i == 38 || i == 39 {
				continue // another IP version, length or protocol, or a fragment: not the same frame any more
			}
			frame[i] ^= 0x10
			if same := sumOf(t, frame) == want; same != changes[i] {
				t.Errorf("%s: with byte %d changed the ICRC is the same: %v", name, i, same)
			}
			frame[i] ^= 0x10
		}
	}
}
