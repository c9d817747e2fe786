package wire

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Packets pass at the configured rate, after a pause a tenth of a second's or stormLeast at once.
func TestStormIsBounded(t *testing.T) {
	now := int64(1e15)
	var s storm
	s.init(1000, func() int64 { return now })
	passed := func(n int) (k int) {
		for range n {
			if s.pass() {
				k++
			}
		}
		return k
	}
	testkit.Equal(t, "at once", passed(5000), 100)
	now += 1e9 / 1000
	testkit.Equal(t, "a millisecond later", passed(10), 1)
	total := 0
	for range 1000 { // for one second ten times as many as the rate
		now += 1e6
		total += passed(10)
	}
	testkit.Equal(t, "in a second", total, 1000)
	now += 1e12
	testkit.Equal(t, "after a pause", passed(5000), 100)
	s.init(1, func() int64 { return now })
	now += 1e12
	testkit.Equal(t, "at the least rate", passed(100), stormLeast)
	var none storm
	none.init(0, nil)
	testkit.Equal(t, "without a bound", none.pass(), true)
}

// A port that sends too many broadcasts and multicasts loses those beyond its limit, and no other frames. Another port
// without a limit loses none.
func TestStormsAreTheirPortsOwn(t *testing.T) {
	s := newSwitch(t)
	a, b := newHost(t, s, 1, LinkOptions{Storm: 1}), newHost(t, s, 2, LinkOptions{})
	c := newHost(t, s, 3, LinkOptions{})
	c.send(c.arp(broadcast))
	a.take()
	b.take()
	var batch []*Packet
	for i := range 3 * stormLeast {
		batch = append(batch, a.arp([]MAC{broadcast, {1, 0, 0x5e, 0, 0, 1}, c.mac}[i%3]))
	}
	a.send(batch...)
	groups, ones := 0, 0
	for i, p := range batch {
		switch {
		case i%3 == 2:
			taken(t, p)
			ones++
		case p.Verdict.Kind == Taken:
			groups++
		default:
			dropped(t, p, DropStorm)
		}
	}
	testkit.Equal(t, "to groups", groups, stormLeast)
	testkit.Equal(t, "that b got", len(b.take()), groups)
	testkit.Equal(t, "that c got", len(c.take()), groups+ones)
	testkit.Equal(t, "counted", a.link.Counters().Drops[DropStorm], stormLeast)
	for range 2 * stormLeast {
		taken(t, c.sent(c.arp(broadcast)))
	}
	testkit.Equal(t, "of c's that b got", len(b.take()), 2*stormLeast)
}
