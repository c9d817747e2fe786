package capture

import (
	"bytes"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Invariant: wire/capture: With both ends in one record, a frame is in the file only once.
func TestFrameIsThereOnceWithBothEnds(t *testing.T) {
	sw := newSwitch(t)
	a, b, d := newHost(t, sw, 0, wire.LinkOptions{}), newHost(t, sw, 1, wire.LinkOptions{}),
		newHost(t, sw, 2, wire.LinkOptions{})
	hello(a, b, d)
	var out bytes.Buffer
	c := attached(t, &out, Options{Once: true}, a, b, d)
	p := a.tcp(b.mac, a.gpu, 0x1f00, 1000, 0, 0)
	a.send(p)
	a.send(a.arp())
	b.send(b.tcp(a.mac, nil, 0, 0, 0, 0))
	frames := 0
	b.place = func(p *wire.Packet) (wire.Verdict, wire.Placement) {
		if frames++; frames == 2 {
			return wire.Drop(wire.DropNoBuffer), wire.Nowhere
		}
		b.seg[0] = b.gpu.Segment(uint64(frames)*0x1000, p.PayloadLen)
		return wire.Verdict{Kind: wire.Taken}, wire.Placement{Queue: 1, Split: true, HeaderLen: 54, Payload: b.seg[:]}
	}
	b.noGSO = true
	a.send(a.tcp(b.mac, a.ram, 0x2000, 3000, 1448, 1000))
	a.send(a.tcp(wire.MAC{2, 9, 9, 9, 9, 9}, nil, 0, 0, 0, 0)) // to an unknown address: it is flooded
	b.busy = true
	a.send(p) // a real sender would retry: the capture leaves this attempt out
	testkit.OK(t, c.Close())
	a.send(p)
	got, _ := read(t, &out)
	want := []struct{ iface, comment string }{
		{"A-tx", "1000 bytes of payload from GPU 0, frag 0x1f00+256, 0x2000+744; to B: queue 3, split: 54 bytes in the " +
			"header buffer, 1000 bytes of payload to GPU 1, frag 0x7ffc0+64 and GPU 1 outside of registered buffers, " +
			"frag 0x80000+936"},
		{"A-tx", "to B: queue 3, whole; to C: queue 3, whole"},
		{"B-tx", "to A: queue 3, whole"},
		{"A-tx", "super-packet of 3 segments of 1448 bytes; 3000 bytes of payload from host memory; to B as 3 frames: " +
			"queue 1, split: 54 bytes in the header buffer, 1552 bytes of payload to GPU 1, frag 0x1000+1448, 0x3000+104" +
			", 1 of the frames dropped: no-buffer"},
	}
	for i, w := range want {
		if i >= len(got) {
			t.Fatalf("%d frames of %d", len(got), len(want))
		}
		testkit.Equal(t, "interface", got[i].iface, w.iface)
		testkit.Equal(t, "comment", got[i].comment, w.comment)
	}
	if s := c.Stats(); s.Packets != uint64(len(got)) || s.Missed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestFloodToManyIsThereOnce(t *testing.T) {
	hosts := eight(t)
	var out bytes.Buffer
	c := attached(t, &out, Options{Once: true}, hosts...)
	hosts[0].send(hosts[0].arp())
	testkit.OK(t, c.Close())
	got, _ := read(t, &out)
	if len(got) != 1 || !bytes.HasSuffix([]byte(got[0].comment), []byte("; and to others")) {
		t.Errorf("%v", got)
	}
}

func TestFramesUnderLoadAreThereOnce(t *testing.T) {
	hosts := eight(t)
	var out bytes.Buffer
	c := attached(t, &out, Options{Once: true, Records: 1 << 15}, hosts...)
	sent := load(t, hosts, 200)
	testkit.OK(t, c.Close())
	got, _ := read(t, &out)
	for _, f := range got {
		if f.iface[len(f.iface)-3:] != "-tx" || !bytes.Contains([]byte(f.comment), []byte("to ")) {
			t.Fatalf("%+v", f)
		}
	}
	if s := c.Stats(); uint64(len(got))+s.Missed != sent {
		t.Errorf("%d sent, %d in the file: %+v", sent, len(got), s)
	}
}
