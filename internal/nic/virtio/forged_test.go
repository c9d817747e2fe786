package virtio_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

type mute struct{}

func (mute) Send([]byte) error { return nil }

// Invariant: wire: Completing a partial checksum changes no byte by which a frame was judged, but
// for the checksum field of TCP or UDP.
func TestGuestCannotForgeControlFrames(t *testing.T) {
	w := newWorld(t)
	client := control.NewClient(mute{}, control.ClientOptions{MAC: w.B.mac})
	defer client.Close()
	status := make([]byte, 56)
	status[0], status[8] = 1, byte(control.JobDone)
	for _, c := range []struct {
		name       string
		src        wire.MAC
		etherType  uint16
		start, off uint16
		want       uint16 // value of the two bytes at start+off, if the NIC writes the checksum there
	}{
		{"source and type", wire.MAC{2, 0x76, 0x6e, 0x69, 0x63, 0x77}, 0x99b5, 11, 0, 0x0188},
		{"type", w.Bad.mac, 0x99b6, 12, 0, wire.EtherTypeControl},
		{"source", wire.MAC{2, 0x76, 0x6e, 0x69, 0x77, 0x77}, 0x0806, 10, 0, 0x6301},
	} {
		f := control.Frame{Dst: w.B.mac, Src: c.src}
		f.Kind, f.Class, f.Command, f.Generation = control.KindNotify, control.ClassJob, control.JobCompleted, 77
		f.Data = status
		b := append(f.Append(nil), 0, 0) // padding that gives the sum its value
		if len(b)%2 != int(c.start)%2 {
			b = append(b, 0)
		}
		binary.BigEndian.PutUint16(b[12:], c.etherType)
		binary.BigEndian.PutUint16(b[len(b)-2:], splitter.Add(^c.want, ^splitter.Sum(b[c.start:], 0)))
		if ^splitter.Sum(b[c.start:], 0) != c.want {
			t.Fatalf("%s: the sum is %#x", c.name, ^splitter.Sum(b[c.start:], 0))
		}
		w.B.Post(0, 2)
		drops := w.Bad.Port().Link().Counters().Drops[wire.DropBadCsum]
		last := tcp(w.Bad, w.B, 9)
		w.Bad.Send(0, nictest.Frame{Header: b, Partial: true, Start: c.start, Offset: c.off}, last)
		got := w.B.Receive(0)
		if client.Receive(got.Bytes()) || !bytes.Equal(got.Bytes(), last.Bytes()) {
			t.Errorf("%s: received from %x type %x", c.name, got.Header[6:12], got.Header[12:14])
			w.B.Receive(0)
		}
		testkit.Equal(t, c.name+": drops", w.Bad.Port().Link().Counters().Drops[wire.DropBadCsum], drops+1)
	}
	if g := client.Generation(); g != 0 || client.Stats() != (control.ClientStats{}) {
		t.Errorf("generation %d, %+v", g, client.Stats())
	}
	w.Moves(t)
}

// Frames with a partial checksum behind VLAN tags, PPPoE, MPLS or a routing header arrive with a complete one. For QinQ
// at a driver with offloads, the test does not check the checksum.
func TestChecksumsOfTunnelsAreCompleted(t *testing.T) {
	for name, drop := range map[string]uint64{"offloads": 0, "none": fOffloads} {
		t.Run(name, func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true})
			if drop != 0 {
				w.Bad.hang()
				w.Bad.connect(rawOptions{pairs: 3, mtu: 9000, drop: drop})
			}
			inner := nictest.Make(w.Bad.mac, w.A.mac, nictest.Spec{V6: true, Payload: 999})
			packet := inner.Bytes()[14:]
			l4 := 40
			// SRv6: a routing header before TCP (RFC 8754, 2). TCP's checksum is computed with the last segment's address.
			route := append([]byte{6, 4, 4, 1, 1, 0, 0, 0}, make([]byte, 32)...)
			copy(route[8:], packet[24:40])
			routed := append(append(bytes.Clone(packet[:40]), route...), packet[40:]...)
			routed[6], routed[39] = 43, 99
			binary.BigEndian.PutUint16(routed[4:], uint16(len(routed)-40))
			for _, c := range []struct {
				name  string
				link  []byte // bytes between the MAC addresses and inner
				inner []byte
				l4    int // offset of TCP in inner
			}{
				{"QinQ", []byte{0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x86, 0xdd}, packet, l4},
				{"three tags", []byte{0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7, 0x86, 0xdd}, packet, l4},
				{"PPPoE", []byte{0x88, 0x64, 0x11, 0, 0, 9, byte((len(packet) + 2) >> 8), byte(len(packet) + 2), 0, 0x57}, packet,
					l4},
				{"MPLS", []byte{0x88, 0x47, 0, 1, 1, 64}, packet, l4},
				{"SRv6", []byte{0x86, 0xdd}, routed, l4 + len(route)},
			} {
				head := append(append(bytes.Clone(w.Bad.mac[:]), w.A.mac[:]...), c.link...)
				off := len(head) + c.l4
				frame := append(head, c.inner...)
				w.Bad.Post(0, 1)
				w.A.Send(0, nictest.Frame{Header: frame[:off], Payload: frame[off:], Partial: true, Start: uint16(off), Offset: 16})
				got := w.Bad.Receive(0).Header
				if len(got) != len(frame) || !bytes.Equal(got[:off+16], frame[:off+16]) ||
					!bytes.Equal(got[off+18:], frame[off+18:]) {
					t.Fatalf("%s: got %x", c.name, got)
				}
				if c.name == "QinQ" && drop == 0 {
					continue
				}
				tcp := header.TCP(got[off:])
				if !tcp.IsChecksumValid(tcpip.AddrFrom16([16]byte(packet[8:24])), tcpip.AddrFrom16([16]byte(packet[24:40])),
					checksum.Checksum(tcp.Payload(), 0), uint16(len(tcp.Payload()))) {
					t.Errorf("%s: checksum %#x", c.name, tcp.Checksum())
				}
			}
		})
	}
}
