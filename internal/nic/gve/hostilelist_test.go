package gve

import (
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vfiouser"
)

// Addresses of the mappings that oddMaps adds. Each has mapLen bytes.
const (
	romMap      = 1 << 37
	readOnlyMap = 1 << 36
	splitMap    = 1 << 38 // two adjacent mappings, in reverse order in the file
	mapLen      = 64 << 10
)

func (c *ctl) oddMaps() {
	c.Helper()
	from, _ := c.Alloc(3 * mapLen)
	from -= c.Base
	for _, m := range []dma.Map{
		{IOVA: romMap, Size: mapLen, FD: -1, NoAccess: true},
		{IOVA: readOnlyMap, Size: mapLen, FD: c.FD, FileOffset: from, ReadOnly: true},
		{IOVA: splitMap, Size: mapLen, FD: c.FD, FileOffset: from + 2*mapLen},
		{IOVA: splitMap + mapLen, Size: mapLen, FD: c.FD, FileOffset: from + mapLen},
	} {
		c.OK(c.space.Add(m))
	}
}

// Invariant: nic/gve: A bad command is refused, and a bad admin queue stops until a reset or a new
// start.
func TestRepliesToOddMemory(t *testing.T) {
	replies := map[string]func(c *ctl, addr uint64) status{
		"describe": func(c *ctl, addr uint64) status {
			return c.command(opDescribeDevice, addr, uint32(1), uint32(4096))
		},
		"ptypes": func(c *ctl, addr uint64) status { return c.command(opGetPtypeMap, uint64(2048), addr) },
		"speed":  func(c *ctl, addr uint64) status { return c.command(opReportLinkSpeed, addr) },
		"stats":  func(c *ctl, addr uint64) status { return c.command(opReportStats, uint64(8+16*20), addr, uint64(1)) },
		"time":   func(c *ctl, addr uint64) status { return c.command(opReportTime, uint64(nicTimeLen), addr) },
		"RSS":    func(c *ctl, addr uint64) status { return c.command(opQueryRSS, uint64(4096), addr) },
		"rules": func(c *ctl, addr uint64) status {
			return c.command(opQueryFlowRules, uint32(0), uint32(0), uint64(4096), addr)
		},
		"resources": func(c *ctl, addr uint64) status {
			return c.resourcesAt(addr, func(x *txCommand) *uint64 { return &x.Resources })
		},
		"ring": func(c *ctl, addr uint64) status {
			return c.resourcesAt(addr&^4095, func(x *txCommand) *uint64 { return &x.Compl })
		},
		"doorbells": func(c *ctl, addr uint64) status {
			c.pass(opDeconfigure)
			cmd := c.resources(4)
			cmd.IRQs = addr
			return c.command(opConfigureResources, cmd)
		},
	}
	for name, reply := range replies {
		t.Run(name, func(t *testing.T) {
			for where, x := range map[string]struct {
				addr uint64
				want status
			}{
				"a ROM": {romMap, statusInvalidArgument}, "read-only": {readOnlyMap, statusInvalidArgument},
				"the end of the memory": {splitMap + 2*mapLen - 4, statusInvalidArgument},
				"across two maps":       {splitMap + mapLen - 4, statusPassed},
			} {
				c := newCtl(t, Options{Queues: 2, Timestamps: true})
				c.start()
				c.configure(4)
				c.flow(flowAdd, tcp4(80, 1), 5)
				c.oddMaps()
				want := x.want
				if name == "ring" && where == "the end of the memory" {
					want = statusPassed // the ring starts at the start of addr's page, and fits
				}
				testkit.Equal(t, where, reply(c, x.addr), want)
				c.reset()
				c.up(256)
			}
		})
	}
}

// resourcesAt sends a CREATE_TX_QUEUE whose address that field selects is addr, and returns the command's status.
func (c *ctl) resourcesAt(addr uint64, field func(*txCommand) *uint64) status {
	cmd := c.txCreate(0)
	*field(&cmd) = addr
	return c.command(opCreateTx, cmd)
}

// The device cannot use buffers in a ROM or buffers that end behind the mapped memory, nor receive buffers in
// read-only memory.
//
// Invariant: nic/gve: Bad frames are dropped, and a bad receive buffer comes back marked.
func TestBuffersInOddMemory(t *testing.T) {
	w := newWorld(t)
	g := w.Bad
	g.oddMaps()
	for name, x := range map[string]struct {
		addr   uint64
		rx, tx bool // the device can use a buffer there to receive, to send
	}{
		"ROM":         {romMap, false, false},
		"read-only":   {readOnlyMap, false, true},
		"across maps": {splitMap + mapLen - 700, true, true},
		"ends behind": {splitMap + 2*mapLen - 64, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			g.startRx(0, false)
			g.startTx(0)
			g.rxd[0].post(x.addr)
			g.rxd[0].doorbell()
			w.A.Send(0, tcp(w.A, g, 1000))
			var c rxCompl
			if g.rxd[0].next(&c); c.bad == x.rx {
				t.Errorf("received: %+v", c)
			}
			before := g.dev.tx[0].count.unmapped.get() + g.dev.tx[0].count.bad.get()
			g.txd[0].packet(txDesc{addr: x.addr, length: 1000})
			g.Sent(0)
			if bad := g.dev.tx[0].count.unmapped.get() + g.dev.tx[0].count.bad.get(); (bad == before) != x.tx {
				t.Errorf("sent: %d bad frames", bad-before)
			}
		})
	}
	w.Moves(t)
}

// An armed vector without an eventfd latches an interrupt, which is raised when the frontend sets an eventfd.
//
// Invariant: nic/gve: An armed queue vector fires at most once until it is armed again, or its
// eventfd is replaced during a signal; interrupts that are due meanwhile are raised as one.
func TestQueueWithoutEventFD(t *testing.T) {
	w := newWorld(t)
	g := w.Bad
	for v := range 2 * g.o.pairs {
		g.OK(g.dev.SetIRQ(vfiouser.IRQMSIX, v, -1)) // as if the vector had never had an eventfd
		g.bell(irqDoorbells+uint32(v), usecs(20))
	}
	d := g.rxd[0]
	for i := range 50 {
		addr, _ := g.Alloc(4096)
		d.post(addr)
		d.doorbell()
		w.A.Send(0, tcp(w.A, g, 100+i))
		var c rxCompl
		testkit.Eventually(t, "the frame is there", func() bool { return d.poll(&c) })
		w.A.Post(0, 1)
		f := tcp(g, w.A, 100+i)
		g.Add(0, &f, false)
		g.Show(0)
		arrives(t, w.A, 0, &f)
	}
	e := g.irq(g.o.pairs)
	waitEvent(t, e)
	g.irqs[g.o.pairs] = e
	w.Moves(t)
}

// No queue fails when the memory of the stats report is unmapped or becomes a ROM.
func TestStatsReportLosesItsMemory(t *testing.T) {
	c := newUp(t, 2, 0)
	c.oddMaps()
	addr := uint64(splitMap + mapLen - 40) // the report lies across two mappings
	const room = 8 + 16*20
	c.pass(opReportStats, uint64(room), addr, uint64(100))
	s := &c.dev.stats
	put := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.put()
	}
	put()
	c.dev.Unmapping(splitMap+mapLen, mapLen)
	c.OK(c.space.Remove(splitMap+mapLen, mapLen))
	put()
	c.OK(c.space.Add(dma.Map{IOVA: splitMap + mapLen, Size: mapLen, FD: -1, NoAccess: true}))
	put()
	testkit.Equal(t, "queues failed", c.dev.Failures(), 0)
	c.reset()
	c.up(0)
}

// Invariant: nic/gve: After an unmapping has returned, nothing is written to that memory.
func TestUnmappingRacesTheDatapath(t *testing.T) {
	w := newWorld(t)
	g := w.Bad
	from, mem := g.Alloc(mapLen)
	m := dma.Map{IOVA: splitMap, Size: mapLen, FD: g.FD, FileOffset: from - g.Base}
	d := g.rxd[0]
	for range 200 {
		g.OK(g.space.Add(m))
		for i := range uint64(16) {
			d.post(splitMap + i*4096)
		}
		g.dev.rx[0].doorbell(d.posted & d.mask)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 16 {
				w.A.Send(0, tcp(w.A, g, 3000))
			}
		}()
		g.dev.Unmapping(splitMap, mapLen)
		g.OK(g.space.Remove(splitMap, mapLen))
		for i := range mem { // only the guest uses it now
			mem[i] = poison
		}
		<-done
		for i := range mem {
			if mem[i] != poison {
				t.Fatalf("byte %d was written behind the unmapping", i)
			}
		}
		g.startRx(0, false)
		d = g.rxd[0]
		g.Next, w.A.Next = 24<<20, 24<<20
	}
	w.Moves(t)
}

// The driver may write any values to interrupt doorbells, in any order.
func TestAnyInterruptDoorbell(t *testing.T) {
	c := newConfigured(t, 1)
	e := c.irq(0)
	for i := range uint32(2000) {
		c.bell(irqDoorbells, i*0x9e3779b9)
		c.dev.vectors.fire(0)
		c.bell(irqDoorbells+1, ^(i * 0x9e3779b9))
		c.dev.vectors.fire(1) // it has no eventfd
	}
	e.fired()
	c.bell(irqDoorbells, irqEnable)
	e.fired()
	c.bell(irqDoorbells, irqEnable)
	c.dev.vectors.fire(0)
	testkit.Equal(t, "interrupts", e.fired(), 1)
}
