package gve

import (
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// describedOptions returns the ids of the options in the reply of DESCRIBE_DEVICE, and the mask of option DQO_RDA.
func (c *ctl) describedOptions() (ids []uint16, mask uint32) {
	c.Helper()
	to := c.alloc(4096)
	c.pass(opDescribeDevice, to, uint32(descriptorVersion), uint32(4096))
	d := c.bytes(to, 4096)
	rest := d[descriptorLen:be.Uint16(d[32:])]
	for range be.Uint16(d[30:]) {
		id, n := be.Uint16(rest), be.Uint16(rest[2:])
		if id == optDQORDA {
			mask = be.Uint32(rest[optionHeadLen:])
		}
		ids = append(ids, id)
		rest = rest[optionHeadLen+n:]
	}
	testkit.Equal(c, "bytes behind the options", len(rest), 0)
	return ids, mask
}

// The device offers its clock to the driver only with Options.Timestamps.
func TestNICTime(t *testing.T) {
	for _, on := range []bool{false, true} {
		c := newCtl(t, Options{Queues: 1, Timestamps: on})
		c.start()
		ids, mask := c.describedOptions()
		offered := false
		for _, id := range ids {
			offered = offered || id == optNICTimestamp
		}
		if offered != on || (mask&supNICTimestamp != 0) != on {
			t.Errorf("options %#x, mask %#x", ids, mask)
		}
		to := c.alloc(nicTimeLen)
		if !on {
			testkit.Equal(t, "not offered", c.command(opReportTime, uint64(nicTimeLen), to), statusUnimplemented)
			continue
		}
		var last uint64
		for range 3 {
			b := c.bytes(to, nicTimeLen)
			for i := range b {
				b[i] = poison
			}
			c.pass(opReportTime, uint64(nicTimeLen), to)
			now := be.Uint64(b)
			if now < last || now < 1e18 || [32]byte(b[8:]) != [32]byte{} {
				t.Errorf("%d after %d: %x", now, last, b)
			}
			last = now
		}
		testkit.Equal(t, "length", c.command(opReportTime, uint64(39), to), statusInvalidArgument)
		testkit.Equal(t, "nowhere", c.command(opReportTime, uint64(nicTimeLen), uint64(0xdead000)), statusInvalidArgument)
	}
}

// Invariant: nic/gve: A receive timestamp is that of the frame's batch, and without the option no
// clock is read.
func TestReceiveTimestamps(t *testing.T) {
	w := newWorld(t)
	g, q := w.B, w.B.dev.rx[0]
	g.Port().SetCoalescing(false)
	worker := wire.NewWorker()
	deliver := func(frames int) (cs []rxCompl) {
		t.Helper()
		g.startRx(0, false)
		g.Post(0, frames)
		nictest.DeliverFlow(t, g, worker, frames, 100)
		for range frames {
			var c rxCompl
			g.rxd[0].next(&c)
			cs = append(cs, c)
		}
		return cs
	}
	for _, c := range deliver(2) {
		if c.stamped || c.stamp != 0 {
			t.Errorf("without a clock: %+v", c)
		}
	}
	now, reads := int64(0x1_2345_6789), 0
	q.Lock()
	q.clock = func() int64 { reads++; return now }
	q.Unlock()
	for i := range 3 {
		for _, c := range deliver(3) {
			if !c.stamped || c.stamp != uint32(now) {
				t.Errorf("at %#x: %+v", now, c)
			}
		}
		testkit.Equal(t, "reads of the clock", reads, i+1)
		now += 1 << 33 / 3
	}
}
