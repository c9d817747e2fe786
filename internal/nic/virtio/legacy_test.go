package virtio_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

// headers has, by kind of driver, the features that the driver lacks. Only legacy has the shorter virtio_net_hdr.
var headers = map[string]uint64{"modern": 0, "no MRG_RXBUF": fMrg, "no VERSION_1": fVersion1,
	"legacy": fVersion1 | fMrg}

// soon (rawOptions.wait) is for tests that wait in vain if the NIC misreads a virtio_net_hdr.
const soon = 5 * time.Second

// Invariant: nic/virtio: virtio_net_hdr is as long as the negotiated features say, in both
// directions.
func TestHeaderIsAsLongAsFeaturesSay(t *testing.T) {
	for name, lacks := range headers {
		for _, more := range []struct {
			name string
			drop uint64
		}{
			{"", 0}, {" without offloads", fOffloads}, {" without INDIRECT_DESC", fIndirect},
			{" without EVENT_IDX", fEventIdx}, {" of 2 features", fOffloads | fIndirect | fEventIdx},
		} {
			t.Run(name+more.name, func(t *testing.T) {
				files, sw := nictest.Switch(t)
				a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, patience: patient, wait: soon})
				o := rawOptions{pairs: 1, mtu: 1500, drop: lacks | more.drop, patience: patient, wait: soon}
				b := newSuiteGuest(t, files, sw, 1, o)
				offloads := o.drop&fOffloads == 0
				for _, p := range [][2]*suiteGuest{{a, b}, {b, a}} {
					from, to := p[0], p[1]
					for _, n := range []int{0, 1, 60, 1446} {
						f := tcp(from, to, n)
						if !offloads { // such a driver neither sends nor receives partial checksums
							f = whole(t, f)
						}
						to.Post(0, 1)
						from.Send(0, f)
						got := nictest.Arrives(t, to, 0, &f)
						testkit.Equal(t, "buffers", got.Buffers, 1)
					}
					if from == b && !offloads {
						continue
					}
					f := superFrame(from, to, 20000, 1446)
					want := 14
					if offloads {
						want = 1
					}
					to.Post(0, want)
					from.Send(0, f)
					payload := 0
					for range want {
						got := to.Receive(0)
						payload += len(got.Bytes()) - len(f.Header)
						testkit.Equal(t, "super-packet", got.GSO != splitter.GSONone, offloads)
					}
					testkit.Equal(t, "payload of a super-packet", payload, 20000)
				}
				testkit.Equal(t, "errors", fmt.Sprint(b.dev.Errors()), "map[]")
			})
		}
	}
}

func whole(t *testing.T, f nictest.Frame) nictest.Frame {
	t.Helper()
	b := f.Bytes()
	var h splitter.Headers
	testkit.OK(t, splitter.Parse(b, uint32(len(b)), &h))
	splitter.FixL4(&h, f.Header, uint32(len(f.Payload)), splitter.Sum(f.Payload, 0))
	f.Partial = false
	return f
}

func superFrame(from, to *suiteGuest, payload int, mss uint16) nictest.Frame {
	f := tcp(from, to, payload)
	f.GSO, f.MSS = splitter.GSOTCPv4, mss
	return f
}

func TestHeaderInPieces(t *testing.T) {
	for name, lacks := range headers {
		t.Run(name, func(t *testing.T) {
			files, sw := nictest.Switch(t)
			a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, patience: patient, wait: soon})
			b := newSuiteGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: 1500, drop: lacks, patience: patient, wait: soon})
			for _, cuts := range [][]int{{b.hdr}, {1, b.hdr}, {4, b.hdr - 1, b.hdr + 3}, {b.hdr + 14, b.hdr + 54},
				{2, 4, 6, 8}} {
				f := tcp(b, a, 500)
				pos, pieces := 0, []virtq.Buf(nil)
				mem := append(netHeader(&f)[:b.hdr], f.Bytes()...)
				for _, end := range append(cuts, len(mem)) {
					pieces = append(pieces, virtq.Buf{Addr: b.Put(mem[pos:end]), Len: uint32(end - pos)})
					pos = end
				}
				a.Post(0, 1)
				b.OK(b.rings[1].Add(pieces, nil, 0))
				b.flight[0]++
				b.publish(1)
				b.Sent(0)
				nictest.Arrives(t, a, 0, &f)

				f = tcp(a, b, 500)
				addr, in := b.Alloc(len(mem) + 100)
				pos, pieces = 0, nil
				for _, end := range append(cuts, len(in)) {
					pieces = append(pieces, virtq.Buf{Addr: addr + uint64(pos), Len: uint32(end - pos)})
					pos = end
				}
				b.cookie++
				b.OK(b.rings[0].Add(nil, pieces, b.cookie))
				b.posted[0][b.cookie] = []virtq.Buf{{Addr: addr, Len: uint32(len(in))}}
				b.publish(0)
				a.Send(0, f)
				nictest.Arrives(t, b, 0, &f)
			}
			// Without MRG_RXBUF a frame takes a single chain: one with room for virtio_net_hdr only is too short.
			before := b.Port().Link().Counters().Drops[wire.DropTooBig]
			addr, _ := b.Alloc(b.hdr)
			b.cookie++
			b.OK(b.rings[0].Add(nil, []virtq.Buf{{Addr: addr, Len: uint32(b.hdr)}}, b.cookie))
			b.publish(0)
			if lacks&fMrg != 0 {
				a.Send(0, tcp(a, b, 1))
				testkit.Equal(t, "frames too big", b.Port().Link().Counters().Drops[wire.DropTooBig], before+1)
			}
			testkit.Equal(t, "errors", len(b.dev.Errors()), 0)
		})
	}
}

// Without MRG_RXBUF each frame takes one chain. The chains of 19 descriptors, of 5, and of 1530 bytes are as Linux
// makes them with GUEST_TSO4, with an MTU of 9000, and otherwise.
func TestOneChainForEachFrame(t *testing.T) {
	const tso4, tso6 = 1 << 7, 1 << 8
	for _, c := range []struct {
		name  string
		drop  uint64
		sizes []uint32
		mtu   uint16
		fits  []int // payload lengths of frames that arrive; a frame above the MTU is a GSO packet
		big   []int // payload lengths of frames that are dropped
	}{
		{"19 descriptors", 0, append([]uint32{12, 4080}, slices.Repeat([]uint32{4096}, 17)...), 9000,
			[]int{1, 1448, 8946, 30000, 65000, 65495}, nil},
		{"5 descriptors", tso4 | tso6, []uint32{12, 4080, 4096, 4096, 4096}, 9000, []int{1, 1448, 8946, 30000, 65495}, nil},
		{"9 KiB", tso4 | tso6, []uint32{9216}, 9000, []int{1, 8946, 30000}, nil},
		{"1530 bytes", tso4 | tso6, []uint32{1530}, 1500, []int{1, 1446, 30000}, nil},
		{"1530 bytes for any super-packet", 0, []uint32{1530}, 1500, []int{1446}, []int{1467, 30000}},
	} {
		for _, lacks := range []uint64{fMrg, fMrg | fVersion1} {
			for _, n := range append(c.fits, c.big...) {
				t.Run(fmt.Sprintf("%s without %x, %d bytes", c.name, lacks, n), func(t *testing.T) {
					files, sw := nictest.Switch(t)
					a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 9000, wait: soon})
					b := newStockGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: c.mtu, drop: c.drop | lacks, wait: soon})
					chains, room := map[uint32][]byte{}, uint32(0)
					for i := range uint32(30) {
						var bufs []virtq.Buf
						addr, mem := b.Alloc(80 << 10)
						room = 0
						for _, n := range c.sizes {
							bufs = append(bufs, virtq.Buf{Addr: addr + uint64(room), Len: n})
							room += n
						}
						chains[i] = mem
						b.OK(b.rings[0].Add(nil, bufs, i))
					}
					b.publish(0)
					f := tcp(a, b, n)
					if n+54 > int(c.mtu) {
						f = superFrame(a, b, n, c.mtu-54)
					}
					a.Send(0, f)
					var used [rawRing]virtq.Used
					k, err := b.rings[0].Poll(used[:])
					b.OK(err)
					var payload []byte
					for _, u := range used[:k] {
						got := chains[u.Cookie][:u.Len]
						if b.hdr == 12 && le.Uint16(got[10:]) != 1 || u.Len > room {
							t.Errorf("%d bytes of %d, num_buffers %d", u.Len, room, le.Uint16(got[10:]))
						}
						payload = append(payload, got[b.hdr+len(f.Header):]...)
					}
					if slices.Contains(c.fits, n) {
						testkit.Equal(t, "the same payload", bytes.Equal(payload, f.Payload), true)
					} else {
						testkit.Equal(t, "frames", k, 0)
						testkit.Equal(t, "frames too big", b.Port().Link().Counters().Drops[wire.DropTooBig], 1)
					}
				})
			}
		}
	}
}

func TestBufferShorterThanHeader(t *testing.T) {
	for name, lacks := range headers {
		t.Run(name, func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 1, mtu: 9000, drop: lacks})
			fault := w.Bad.fault(0)
			addr, _ := w.Bad.Alloc(16)
			w.Bad.OK(w.Bad.rings[0].Add(nil, []virtq.Buf{{Addr: addr, Len: uint32(w.Bad.hdr - 1)}}, 0))
			w.Bad.publish(0)
			w.A.Send(0, tcp(w.A, w.Bad, 1))
			w.Bad.broken(0, fault)
			w.Moves(t)
		})
	}
}

func TestLegacyDriverHasCommandsAndSplit(t *testing.T) {
	for name, lacks := range headers {
		t.Run(name, func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 2, mtu: 9000, p2p: true, drop: lacks})
			w.Bad.Post(0, 1)
			w.Bad.ask(7, 1)
			testkit.Equal(t, "answer", w.Bad.answer().Seq, 7)
			nictest.SplitTo(t, w.Bad, 1, 2000)
			for _, n := range []int{0, 1, 4096} {
				f := tcp(w.A, w.Bad, n)
				w.Bad.Post(1, 1)
				w.A.Send(0, f)
				got := nictest.Arrives(t, w.Bad, 1, &f)
				if !got.Split || got.Dirty || len(got.Header) != len(f.Header) {
					t.Errorf("frame of %d: split %v, %d bytes of header, dirty %v", n, got.Split, len(got.Header), got.Dirty)
				}
			}
			fault := w.Bad.fault(2)
			addr, _ := w.Bad.Alloc(512)
			w.Bad.OK(w.Bad.rings[2].Add(nil, []virtq.Buf{{Addr: addr, Len: uint32(w.Bad.hdr + 255)},
				{Addr: w.Bad.PayloadPage(), Len: 4096}}, 0))
			w.Bad.publish(2)
			w.A.Send(0, tcp(w.A, w.Bad, 10))
			w.Bad.broken(2, fault)
			w.Moves(t)
		})
	}
}

// A frontend may set the negotiated features while the rings run.
func TestFeaturesOfRunningRings(t *testing.T) {
	files, sw := nictest.Switch(t)
	a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, patience: patient, wait: soon})
	b := newSuiteGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: 1500, patience: patient, wait: soon})
	for _, lacks := range []uint64{0, fVersion1 | fMrg, fMrg, fVersion1 | fMrg} {
		b.negotiate(rawOptions{drop: lacks})
		f, back := tcp(a, b, 60), tcp(b, a, 60)
		b.Post(0, 1)
		a.Send(0, f)
		nictest.Arrives(t, b, 0, &f)
		a.Post(0, 1)
		b.Send(0, back)
		nictest.Arrives(t, a, 0, &back)
	}
}

func TestFeaturesNotOfferedAreNamed(t *testing.T) {
	g := newWorldWith(t, rawOptions{pairs: 1, mtu: 1500}).Bad
	for names, set := range map[string]uint64{
		"CTRL_VQ|CTRL_RX|CTRL_VLAN": 7 << 17, "GUEST_ANNOUNCE|MQ|CTRL_MAC_ADDR": 7 << 21, "HASH_REPORT|RSS": 1<<57 | 1<<60,
		"GSO|GUEST_UFO|HOST_UFO": 1<<6 | 1<<10 | 1<<14, "GUEST_USO4|GUEST_USO6|HOST_USO": 7 << 54, "RSC_EXT": 1 << 61,
		"RING_RESET": 1 << 40,
	} {
		if err := g.dev.SetFeatures(fVersion1 | set); err == nil || !strings.Contains(err.Error(), names+" was not offered") {
			t.Errorf("%s: %v", names, err)
		}
	}
}

// SetFeatures accepts any subset of these features. QEMU offers, and Linux accepts, sets that the specification does
// not allow (5.1.3.1): HOST_TSO4 without CSUM, GUEST_TSO4 without GUEST_CSUM.
func TestAnySetOfFeaturesIsServed(t *testing.T) {
	files, sw := nictest.Switch(t)
	g := newRawGuest(t, files, sw, 0, rawOptions{pairs: 2, mtu: 1500})
	free := uint64(fVersion1 | fMrg | fOffloads | fECNs | fMQ)
	for set := free; ; set = (set - 1) & free {
		if err := g.dev.SetFeatures(set); err != nil {
			t.Fatalf("features %#x: %v", set, err)
		}
		if l := g.Port().Limits(); !l.Csum && l.GSO != 0 || l.Csum != (set&(1<<1) != 0) {
			t.Fatalf("features %#x: %+v", set, l)
		}
		if set == 0 {
			break
		}
	}
}
