package wire

import (
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// The From of a received packet is the Serial of its sender's link, whatever the sender wrote to From.
func TestPacketsSayWhoSentThem(t *testing.T) {
	late := Impairment{Seed: 1, Reorder: .5, HoldMax: time.Millisecond}
	for name, c := range map[string]struct {
		up, down Impairment
		lim      Limits
		spec     spec
		change   func(*Packet)
		packets  int // how many packets arrive for one that is sent
	}{
		"whole":     {spec: spec{n: 100}, packets: 1},
		"cut":       {spec: spec{n: 5000, mss: 1000}, packets: 5},
		"completed": {spec: spec{n: 100, udp: true, csum: splitter.CsumPartial}, packets: 1},
		"completed at another place": {spec: spec{n: 100, udp: true}, packets: 1, change: func(p *Packet) {
			p.Header[12], p.Header[13] = 0x88, 0x47
			_ = splitter.Parse(p.Header, p.Len(), &p.Meta.Headers)
			partial(p, 60, 0)
		}},
		"flooded":              {spec: spec{n: 100}, packets: 1, change: func(p *Packet) { p.Dst[0] |= 1 }},
		"held on the way up":   {up: late, spec: spec{n: 20000, mss: 1000}, packets: 20},
		"held on the way down": {down: late, spec: spec{n: 20000, mss: 1000}, packets: 20},
	} {
		// In a synctest bubble the clock stands still while the receiver has no buffers; otherwise the link might give up
		// held packets after maxTries.
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSwitch(t)
				a, b := newHost(t, s, 1, LinkOptions{Up: c.up}), newHost(t, s, 2, LinkOptions{Down: c.down})
				other := newHost(t, s, 3, LinkOptions{Up: c.up})
				other.mac = a.mac
				s.table.learn(b.mac.key(), b.link.id)
				for _, h := range []*host{a, other} {
					if h.link.Serial() == 0 {
						t.Fatal("a link without a number")
					}
					p := h.packet(b.mac, c.spec)
					if c.change != nil {
						c.change(p)
					}
					p.From = b.link.Serial()
					b.post(0)
					h.send(p)
					b.post(-1)
					if p.Dst[0]&1 != 0 { // a flood does not wait for busy ports: send it once more
						p.Verdict.Kind = Busy
					}
					for p.Verdict.Kind == Busy {
						h.sendAll(p)
					}
					var got []received
					testkit.Eventually(t, "all arrives", func() bool {
						got = append(got, b.take()...)
						return len(got) == c.packets
					})
					for _, r := range got {
						testkit.Equal(t, "sender", r.from, h.link.Serial())
					}
					a.take()
					other.take()
				}
			})
		})
	}
}
