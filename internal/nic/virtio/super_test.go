package virtio_test

import (
	"bytes"
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// A super-packet with a gso_size below 8 is dropped (Linux: TCP_MIN_GSO_SIZE).
func TestSuperPacketIsJudgedByItsOwnLength(t *testing.T) {
	testkit.Slow(t)
	for _, c := range []struct {
		payload int
		size    uint16
		frames  int
		reason  wire.DropReason
	}{
		{1440, 1440, 1, 0}, {1398, 1440, 1, 0}, {1, 1440, 1, 0}, {0, 1440, 1, 0}, {3000, 1440, 3, 0}, {1440, 8, 180, 0},
		{1440, 65535, 1, 0}, {1440, 9000, 1, 0}, {1, 65535, 1, 0}, {0, 65535, 1, 0}, {1440, 1441, 1, 0},
		{1461, 1461, 0, wire.DropTooBig}, {3000, 65535, 0, wire.DropTooBig}, {2000, 9000, 0, wire.DropTooBig},
		{65000, 1500, 0, wire.DropTooBig}, {1440, 7, 0, wire.DropBadGSO}, {1440, 1, 0, wire.DropBadGSO},
		{1440, 0, 0, wire.DropBadFrame},
	} {
		for _, name := range []string{"v4", "v6", "v4 with ECN", "v6 with ECN", "v4 to whom takes any",
			"v6 to whom takes any"} {
			t.Run(fmt.Sprintf("%d of %d, %s", c.payload, c.size, name), func(t *testing.T) {
				files, sw := nictest.Switch(t)
				v6, ecn, whole := name[:2] == "v6", name[2:] == " with ECN", name[2:] == " to whom takes any"
				a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, wait: soon})
				o := rawOptions{pairs: 1, mtu: 1500, drop: fOffloads, wait: soon}
				if whole {
					o.drop = 0
				}
				b := newSuiteGuest(t, files, sw, 1, o)
				want := c.frames
				if want > 1 && whole {
					want = 1
				}
				b.Post(0, want)
				f := nictest.Make(b.mac, a.mac, nictest.Spec{Payload: c.payload, V6: v6})
				f.GSO, f.MSS = splitter.GSOTCPv4, c.size
				if v6 {
					f.GSO = splitter.GSOTCPv6
				}
				bufs := a.layOut(&f, false)
				if ecn {
					a.OK(a.dev.SetFeatures(fVersion1 | fMrg | fEventIdx | fIndirect | fOffloads | fECNs))
					a.setup(1, a.base(1))
					a.At(bufs[0].Addr)[1] |= 0x80
				}
				a.OK(a.rings[1].Add(bufs, nil, 0))
				a.flight[0]++
				a.publish(1)
				a.Sent(0)
				var payload []byte
				for range want {
					got := b.Receive(0)
					g := got.Bytes()
					var h splitter.Headers
					testkit.OK(t, splitter.Parse(g, uint32(len(g)), &h))
					rest := g[h.HdrLen:]
					if !whole && splitter.VerifyL4(&h, g[:h.HdrLen], uint32(len(rest)), splitter.Sum(rest, 0)) == splitter.CsumBad {
						t.Error("a bad checksum")
					}
					payload = append(payload, rest...)
				}
				if want > 0 && !bytes.Equal(payload, f.Payload) {
					t.Errorf("%d bytes of payload came, or others", len(payload))
				}
				for _, r := range []wire.DropReason{wire.DropTooBig, wire.DropBadGSO, wire.DropBadFrame, wire.DropBadCsum} {
					n := uint64(0)
					if r == c.reason {
						n = 1
					}
					both := a.Port().Link().Counters().Drops[r] + b.Port().Link().Counters().Drops[r]
					testkit.Equal(t, fmt.Sprint("drops: ", r), both, n)
				}
			})
		}
	}
}
