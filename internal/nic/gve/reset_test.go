package gve

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

// idle checks that the driver's queues and other resources are gone, and that the device status is as after a reset.
func (c *ctl) idle(what string) {
	c.Helper()
	d := c.dev
	for i := range d.rx {
		if d.res.rx[i].live || d.res.tx[i].live {
			c.Errorf("%s: queue pair %d is there", what, i)
		}
	}
	if d.res.blocks != 0 || d.aq.running || d.aq.done != 0 || d.management.Load() != noManagement || d.stats.count != 0 {
		c.Errorf("%s: %+v, %+v", what, d.res, d.aq)
	}
	if s := d.status.Load(); s != statusLink|statusResetDone {
		c.Errorf("%s: status %#x", what, s)
	}
}

// Invariant: nic/gve: A reset by the driver or the machine leaves no state, a hang-up none of the
// device's; a driver that starts without a reset finds none either.
func TestReset(t *testing.T) {
	c := newCtl(t, queues(2))
	for name, reset := range map[string]func(){
		"driver":     c.reset,
		"machine":    func() { c.OK(c.dev.Reset()) },
		"disconnect": c.dev.Disconnected,
	} {
		for _, half := range []func(){
			func() {},
			func() { c.start() },
			func() { c.start(); c.configure(4); c.pass(opCreateTx, c.txCreate(1)) },
			func() { c.up(256) },
			func() {
				c.up(256)
				c.pass(opReportStats, uint64(8+16*32), c.alloc(4096), uint64(1))
				c.pass(opDestroyRx, uint32(1))
				c.flow(flowAdd, tcp4(80, 1), 5)
				c.rss(0, 1, make([]byte, 40), nil)
				_, err := c.dev.port.AddFlow(control.FlowRule{Proto: 17, DstPort: 9, Queue: 1})
				c.OK(err)
				c.dev.AskReset()
			},
		} {
			c.Next = 64 * slotLen
			half()
			reset()
			c.idle(name)
		}
		c.up(0)
		c.noRules()
		if _, key, table := c.queryRSS(); key[0] == 0 || table[1] != 1 {
			t.Errorf("%s: RSS of the driver before", name)
		}
	}
}

// The driver starts without a reset (kexec).
//
// Invariant: nic/gve: A reset by the driver or the machine leaves no state, a hang-up none of the
// device's; a driver that starts without a reset finds none either.
func TestRunTwice(t *testing.T) {
	c := newUp(t, 2, 256)
	c.flow(flowAdd, tcp4(80, 1), 5)
	generation := c.dev.port.Generation()
	c.start()
	if n := c.read32(regEvents); n != 0 || c.dev.res.blocks != 0 {
		t.Errorf("%d commands done, %d blocks", n, c.dev.res.blocks)
	}
	if rules, _ := c.dev.port.Flows(); len(rules) != 0 || c.dev.port.Generation() == generation {
		t.Errorf("%d rules of the driver before", len(rules))
	}
	c.configure(4)
}

// Invariant: nic/gve: A bad descriptor stops its queue only, and the device asks for a reset.
func TestFailedQueue(t *testing.T) {
	c := newUp(t, 2, 0)
	management := c.irq(4)
	c.dev.failed(true, 1, errors.New("bad descriptor"))
	if c.read32(regDeviceStatus)&statusReset == 0 || management.fired() != 1 {
		t.Error("the driver is not asked to reset")
	}
	if !strings.Contains(c.log.String(), "bad descriptor") || c.dev.Failures() != 1 {
		t.Errorf("log: %s", c.log.String())
	}
	c.pass(opDestroyTx, uint32(1))
	c.reset()
	testkit.Equal(t, "reset asked for", c.read32(regDeviceStatus)&statusReset, 0)
}

// Invariant: nic/gve: Before a ring's memory is unmapped, its queue stops.
func TestUnmappedRing(t *testing.T) {
	c := newConfigured(t, 2)
	for i := range 2 {
		c.pass(opCreateTx, c.txCreate(i))
		c.pass(opCreateRx, c.rxCreate(i, 0))
	}
	cmd := c.rxCreate(0, 0)
	c.pass(opDestroyRx, uint32(0))
	c.pass(opCreateRx, cmd)
	c.dev.Unmapping(cmd.Compl, 4096)
	testkit.Equal(t, "failed queues", c.dev.Failures(), 1)
	c.bell(rxDoorbells, 32)
	c.bell(rxDoorbells+1, 32)
	c.reset()
	c.up(0)
}

// The stats report has the device's counters at its end, four for each receive queue that exists.
func TestStatsReport(t *testing.T) {
	c := newUp(t, 2, 0)
	const room = 20
	addr := c.alloc(8 + 16*room)
	report := c.bytes(addr, 8+16*room)
	be.PutUint32(report[8+16*3:], 4) // the driver's own counter
	c.pass(opReportStats, uint64(len(report)), addr, uint64(1<<40))
	s := &c.dev.stats
	put := func() { // as when a report is due
		s.mu.Lock()
		defer s.mu.Unlock()
		s.put()
	}
	put()
	entry := func(i int) (name, queue uint32) { return be.Uint32(report[8+16*i:]), be.Uint32(report[8+16*i+4:]) }
	for i := range 8 {
		if name, queue := entry(12 + i); name != uint32(65+i%4) || queue != uint32(i/4) {
			t.Errorf("counter %d: name %d of queue %d", i, name, queue)
		}
	}
	if name, _ := entry(11); name != 0 || be.Uint32(report[8+16*3:]) != 4 || be.Uint64(report) != 0 {
		t.Error("the driver's part was written")
	}
	c.pass(opDestroyRx, uint32(0))
	put()
	if name, _ := entry(12); name != 0 {
		t.Error("a queue that is gone is still reported")
	}
	if name, queue := entry(16); name != 65 || queue != 1 {
		t.Errorf("name %d of queue %d", name, queue)
	}
	c.pass(opReportStats, uint64(0), uint64(0), uint64(20000))
	clear(report)
	put()
	testkit.Equal(t, "report", strings.Trim(string(report), "\x00"), "")
	// With too little room nothing is written.
	c.pass(opReportStats, uint64(8+16*3), addr, uint64(1<<40))
	put()
	testkit.Equal(t, "report", strings.Trim(string(report), "\x00"), "")
}

// Within freshStats after a drop, the report has it, although the driver's period is longer.
func TestStatsReportIsFresh(t *testing.T) {
	c := newUp(t, 1, 0)
	const room = 4
	addr := c.alloc(8 + 16*room)
	report := c.bytes(addr, 8+16*room)
	c.pass(opReportStats, uint64(len(report)), addr, uint64(20000))
	s := &c.dev.stats
	now := time.Now()
	noBuffers := func() uint64 {
		s.mu.Lock() // the monitor writes too
		defer s.mu.Unlock()
		return be.Uint64(report[8+16*1+8:])
	}
	s.write(now)
	for i := range uint64(3) {
		if n := noBuffers(); n != i {
			t.Fatalf("%d frames without a buffer reported, not %d", n, i)
		}
		c.dev.rx[0].count.noBuffer.add(1)
		now = now.Add(freshStats)
		if next := s.write(now); next.After(now.Add(freshStats)) || !next.After(now) {
			t.Errorf("looks again after %v", next.Sub(now))
		}
	}
}

// A part of TestLife's life cycle, over vfio-user.
//
// Invariant: nic/gve: The device works through a driver's whole life cycle, also over vfio-user.
func TestOverVFIOUser(t *testing.T) {
	c := newCtl(t, queues(2))
	c.OK(c.space.Remove(ctlBase, ctlSize))
	near, far, err := vfiotest.Pair()
	c.OK(err)
	done := make(chan error, 1)
	go func() { done <- vfiouser.NewServer(c.dev, c.space, nil).Serve(context.Background(), far) }()
	cl, err := vfiotest.Connect(near)
	c.OK(err)
	c.OK(cl.MapRange(ctlBase, ctlSize, c.FD, 0, true))
	info, err := cl.Info()
	c.OK(err)
	if !info.Reset || !info.PCI {
		t.Errorf("%+v", info)
	}
	if n, err := cl.IRQCount(vfiouser.IRQMSIX); err != nil || n != 5 {
		t.Errorf("%d vectors: %v", n, err)
	}
	e, err := vfiotest.NewEvent()
	c.OK(err)
	defer e.Close()
	c.OK(cl.SetIRQ(vfiouser.IRQMSIX, 4, e))
	w32 := func(off uint64, v uint32) {
		t.Helper()
		c.OK(cl.Post(registersBAR, off, be.AppendUint32(nil, v)))
	}
	r32 := func(off uint64) uint32 {
		t.Helper()
		var b [4]byte
		c.OK(cl.Read(registersBAR, off, b[:]))
		return be.Uint32(b[:])
	}
	c.OK(cl.Post(registersBAR, regLength, []byte{0x10, 0}))
	w32(regBaseHi, uint32(c.ring>>32))
	w32(regBaseLo, uint32(c.ring))
	w32(regDriverStatus, driverRun)
	did := []func() status{c.slot(opConfigureResources, c.resources(4))}
	for i := range 2 {
		did = append(did, c.slot(opCreateRx, c.rxCreate(i, 256)), c.slot(opCreateTx, c.txCreate(i)))
	}
	w32(regDoorbell, c.count)
	testkit.Equal(t, "commands done", r32(regEvents), c.count)
	for i, st := range did {
		if st() != statusPassed {
			t.Errorf("command %d: %v", i, st())
		}
	}
	c.dev.SetLink(false)
	if n, err := e.Wait(t.Context()); err != nil || n != 1 || r32(regDeviceStatus)&statusLink != 0 {
		t.Errorf("link down: %d interrupts: %v", n, err)
	}
	c.OK(cl.Reset())
	testkit.Equal(t, "status after reset", r32(regDeviceStatus), statusResetDone)
	c.dev.SetLink(true)
	c.OK(cl.Close())
	c.OK(<-done)
	c.idle("hung up")
}
