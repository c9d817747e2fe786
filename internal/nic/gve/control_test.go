package gve

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/vfiouser"
)

// The device answers the first reads and commands of a driver.
func TestHandshake(t *testing.T) {
	c := newCtl(t, queues(3))
	if tx, rx := c.read32(regMaxTx), c.read32(regMaxRx); tx != 3 || rx != 3 {
		t.Errorf("%d transmit and %d receive queues", tx, rx)
	}
	testkit.Equal(t, "device status at first", c.read32(regDeviceStatus), statusLink|statusResetDone)
	for _, b := range []byte("GVE-1.0.0\n") {
		c.OK(c.dev.WriteRegion(registersBAR, regDriverVersion, []byte{b}))
	}
	if !strings.Contains(c.log.String(), "GVE-1.0.0") {
		t.Errorf("log has no driver version: %s", c.log.String())
	}
	c.start()
	testkit.Equal(t, "device status when it runs", c.read32(regDeviceStatus), statusLink)
	to := c.alloc(4096)
	c.pass(opDescribeDevice, to, uint32(1), uint32(4096))
	d := c.bytes(to, 4096)
	if mac := d[24:30]; !bytes.Equal(mac, ctlMAC[:]) {
		t.Errorf("MAC %x", mac)
	}
	if tx, rx, n, mtu := be.Uint16(d[10:]), be.Uint16(d[12:]), be.Uint16(d[14:]), be.Uint16(d[16:]); tx != 512 ||
		rx != 1024 || n != 3 || mtu != 9000 {
		t.Errorf("rings of %d and %d, %d queues, MTU %d", tx, rx, n, mtu)
	}
}

// Invariant: nic/gve: Unless MaxQueues is set, a driver may ask for twice the queues that it starts
// with, up to 16.
func TestMoreQueuesThanAtFirst(t *testing.T) {
	for _, x := range []struct{ queues, most, want int }{{3, 0, 6}, {0, 0, 8}, {8, 0, 16}, {10, 0, 16}, {4, 4, 4}, {2, 7, 7}} {
		c := newCtl(t, Options{Queues: x.queues, MaxQueues: x.most})
		c.start()
		what := fmt.Sprintf("%d queues, %d at most", x.queues, x.most)
		tx, rx := c.read32(regMaxTx), c.read32(regMaxRx)
		testkit.Equal(t, what+": most", fmt.Sprint(tx, rx), fmt.Sprint(x.want, x.want))
		to := c.alloc(4096)
		c.pass(opDescribeDevice, to, uint32(1), uint32(4096))
		testkit.Equal(t, what+": at first", be.Uint16(c.bytes(to+14, 2)), uint16(cmp.Or(x.queues, defaultQueues)))
		testkit.Equal(t, what+": vectors", c.dev.Info().IRQs[vfiouser.IRQMSIX].Count, 2*x.want+1)
		c.configure(2 * x.want)
		c.pass(opCreateTx, c.txCreate(x.want-1))
		c.pass(opCreateRx, c.rxCreate(x.want-1, 0))
		for op, cmd := range map[uint32]any{opCreateTx: c.txCreate(x.want), opCreateRx: c.rxCreate(x.want, 0)} {
			testkit.Equal(t, what+": one more", c.command(op, cmd), statusInvalidArgument)
		}
	}
}

// The test sends commands as Linux 7.2's driver does when it starts and when it is removed.
//
// Invariant: nic/gve: The device works through a driver's whole life cycle, also over vfio-user.
func TestLife(t *testing.T) {
	c := newCtl(t, queues(2))
	for range 2 { // a second time after a reset: rmmod, insmod
		c.Next = 64 * slotLen
		c.start()
		c.pass(opVerifyDriver, uint64(driverInfoLen), c.Put(driverInfo()))
		if !strings.Contains(c.log.String(), "7.2.12-cloud-amd64") {
			t.Errorf("log has no kernel: %s", c.log.String())
		}
		c.pass(opDescribeDevice, c.alloc(4096), uint32(1), uint32(4096))
		irqs := c.configure(4)
		for i := range 4 {
			testkit.Equal(t, fmt.Sprint("doorbell of block ", i), be.Uint32(c.bytes(irqs+64*uint64(i), 4)), uint32(i))
		}
		m := c.alloc(2048)
		c.pass(opGetPtypeMap, uint64(2048), m)
		for _, x := range []struct {
			h      splitter.Headers
			l3, l4 byte
		}{
			{splitter.Headers{Class: splitter.TCP}, 2, 2}, {splitter.Headers{Class: splitter.UDP, IPv6: true}, 3, 3},
			{splitter.Headers{Class: splitter.OtherIP, Proto: 1}, 2, 4},
			{splitter.Headers{Class: splitter.OtherIP, Proto: 58, IPv6: true}, 3, 4},
			{splitter.Headers{Class: splitter.OtherIP, Proto: 132}, 2, 5}, {splitter.Headers{Class: splitter.Fragment}, 2, 1},
			{splitter.Headers{Class: splitter.NotIP}, 1, 1}, {splitter.Headers{Class: splitter.Malformed}, 0, 0},
		} {
			if p := c.bytes(m+2*uint64(ptypeOf(&x.h)), 2); p[0] != x.l3 || p[1] != x.l4 {
				t.Errorf("%+v: layers %d and %d", x.h, p[0], p[1])
			}
		}
		stats := c.alloc(4096)
		c.pass(opReportStats, uint64(8+16*20), stats, uint64(20000))
		// Linux creates all transmit queues with one doorbell.
		var done []func() status
		var cmds []txCommand
		for i := range 2 {
			cmd := c.txCreate(i)
			done = append(done, c.slot(opCreateTx, cmd))
			cmds = append(cmds, cmd)
		}
		c.write32(regDoorbell, c.count)
		for i, st := range done {
			if w := be.Uint32(c.bytes(cmds[i].Resources, 4)); st() != statusPassed || w != txDoorbells+uint32(i) {
				t.Errorf("transmit queue %d: %v, doorbell %#x", i, st(), w)
			}
		}
		for i := range 2 {
			cmd := c.rxCreate(i, 0)
			c.pass(opCreateRx, cmd)
			testkit.Equal(t, fmt.Sprint("rx doorbell ", i), be.Uint32(c.bytes(cmd.Resources, 4)), rxDoorbells+uint32(i))
		}
		speed := c.alloc(8)
		c.pass(opReportLinkSpeed, speed)
		testkit.Equal(t, "link speed", be.Uint64(c.bytes(speed, 8)), linkSpeed)
		for i := range uint32(2) {
			c.pass(opDestroyRx, i)
			c.pass(opDestroyTx, i)
		}
		c.pass(opReportStats, uint64(0), uint64(0), uint64(20000))
		c.pass(opDeconfigure)
		c.reset()
	}
	testkit.Equal(t, "failed queues", c.dev.Failures(), 0)
}

// With more commands than slots, the ring wraps.
func TestAdminQueueGoesRound(t *testing.T) {
	c := newCtl(t, queues(1))
	c.start()
	to := c.alloc(8)
	for range 200 {
		c.pass(opReportLinkSpeed, to)
	}
	for range 3 { // all slots are posted before the doorbell
		for range c.slots {
			c.slot(opReportLinkSpeed, to)
		}
		c.write32(regDoorbell, c.count)
		if n := c.read32(regEvents); n != c.count {
			t.Fatalf("event counter %d, not %d", n, c.count)
		}
	}
}

// changed returns a function whose result, for a change, is a test step: it runs the command that good makes, with the
// change, and returns the status.
func changed[T any](op uint32, good func(*ctl) T) func(change func(*T)) func(*ctl) status {
	return func(change func(*T)) func(*ctl) status {
		return func(c *ctl) status {
			cmd := good(c)
			change(&cmd)
			return c.command(op, cmd)
		}
	}
}

// Invariant: nic/gve: A bad command is refused, and a bad admin queue stops until a reset or a new
// start.
func TestRefusals(t *testing.T) {
	tx := changed(opCreateTx, func(c *ctl) txCommand { return c.txCreate(0) })
	rx := changed(opCreateRx, func(c *ctl) rxCommand { return c.rxCreate(0, 0) })
	configure := changed(opConfigureResources, func(c *ctl) configureCommand {
		c.pass(opDeconfigure)
		return c.resources(4)
	})
	command := func(op uint32, vs ...any) func(c *ctl) status {
		return func(c *ctl) status { return c.command(op, vs...) }
	}
	nowhere := uint64(0xdead000)
	end := uint64(ctlBase + ctlSize - 4)
	for _, r := range []struct {
		name string
		do   func(c *ctl) status
		want status
	}{
		{"no such command", command(0x77), statusUnimplemented},
		{"command 0", command(0), statusUnimplemented},
		{"page list", command(3), statusUnimplemented},
		{"driver parameter", command(0xb), statusUnimplemented},
		{"timestamp: not offered", command(0x11, uint64(40), uint64(ctlBase)), statusUnimplemented},
		{"describe: version", command(opDescribeDevice, uint64(ctlBase), uint32(2), uint32(4096)), statusUnimplemented},
		{"describe: no room", command(opDescribeDevice, uint64(ctlBase), uint32(1), uint32(40)), statusResourceExhausted},
		{"describe: nowhere", command(opDescribeDevice, nowhere, uint32(1), uint32(4096)), statusInvalidArgument},
		{"describe: beyond the end", command(opDescribeDevice, end, uint32(1), uint32(4096)), statusInvalidArgument},
		{"describe: wraps", command(opDescribeDevice, ^uint64(0)-3, uint32(1), uint32(4096)), statusInvalidArgument},
		{"verify: length", command(opVerifyDriver, uint64(300), uint64(ctlBase)), statusInvalidArgument},
		{"verify: nowhere", command(opVerifyDriver, uint64(304), nowhere), statusInvalidArgument},
		{"verify: no DQO", func(c *ctl) status { return c.command(opVerifyDriver, uint64(304), c.alloc(304)) },
			statusFailedPrecondition},
		{"ptypes: length", command(opGetPtypeMap, uint64(2047), uint64(ctlBase)), statusInvalidArgument},
		{"ptypes: nowhere", command(opGetPtypeMap, uint64(2048), nowhere), statusInvalidArgument},
		{"speed: nowhere", command(opReportLinkSpeed, end), statusInvalidArgument},
		{"stats: too short", command(opReportStats, uint64(7), uint64(ctlBase), uint64(1)), statusInvalidArgument},
		{"stats: too long", command(opReportStats, uint64(1)<<40, uint64(ctlBase), uint64(1)), statusInvalidArgument},
		{"stats: nowhere", command(opReportStats, uint64(64), nowhere, uint64(1)), statusInvalidArgument},
		{"configure: twice", func(c *ctl) status { return c.command(opConfigureResources, c.resources(1)) },
			statusAlreadyExists},
		{"configure: format", configure(func(c *configureCommand) { c.Format = 1 }), statusUnimplemented},
		{"configure: none", configure(func(c *configureCommand) { c.Count = 0 }), statusInvalidArgument},
		{"configure: many", configure(func(c *configureCommand) { c.Count = 5 }), statusInvalidArgument},
		{"configure: very many", configure(func(c *configureCommand) { c.Count = ^uint32(0) }), statusInvalidArgument},
		{"configure: stride 0", configure(func(c *configureCommand) { c.Stride = 0 }), statusInvalidArgument},
		{"configure: stride", configure(func(c *configureCommand) { c.Stride = 1 << 31 }), statusInvalidArgument},
		{"configure: base", configure(func(c *configureCommand) { c.Base = 2 }), statusInvalidArgument},
		{"configure: nowhere", configure(func(c *configureCommand) { c.IRQs = end }), statusInvalidArgument},
		{"deconfigure: twice", func(c *ctl) status {
			c.pass(opDeconfigure)
			return c.command(opDeconfigure)
		}, statusFailedPrecondition},
		{"tx: not configured", func(c *ctl) status {
			c.pass(opDeconfigure)
			return c.command(opCreateTx, c.txCreate(0))
		}, statusFailedPrecondition},
		{"tx: id", tx(func(c *txCommand) { c.ID = 2 }), statusInvalidArgument},
		{"tx: big id", tx(func(c *txCommand) { c.ID = 1 << 31 }), statusInvalidArgument},
		{"tx: page list", tx(func(c *txCommand) { c.Pages = 1 }), statusUnimplemented},
		{"tx: block", tx(func(c *txCommand) { c.Block = 4 }), statusInvalidArgument},
		{"tx: ring of 0", tx(func(c *txCommand) { c.Size, c.ComplSize = 0, 0 }), statusInvalidArgument},
		{"tx: ring of 32", tx(func(c *txCommand) { c.Size, c.ComplSize = 32, 32 }), statusInvalidArgument},
		{"tx: ring of 100", tx(func(c *txCommand) { c.Size, c.ComplSize = 100, 100 }), statusInvalidArgument},
		{"tx: ring of 8192", tx(func(c *txCommand) { c.Size, c.ComplSize = 8192, 8192 }), statusInvalidArgument},
		{"tx: completions", tx(func(c *txCommand) { c.ComplSize = 64 }), statusInvalidArgument},
		{"tx: ring nowhere", tx(func(c *txCommand) { c.Ring = nowhere }), statusInvalidArgument},
		{"tx: ring beyond the end", tx(func(c *txCommand) { c.Ring = end &^ 15 }), statusInvalidArgument},
		{"tx: completions nowhere", tx(func(c *txCommand) { c.Compl = nowhere }), statusInvalidArgument},
		{"tx: resources nowhere", tx(func(c *txCommand) { c.Resources = end }), statusInvalidArgument},
		{"tx: twice", func(c *ctl) status {
			tx(func(*txCommand) {})(c)
			return tx(func(*txCommand) {})(c)
		}, statusAlreadyExists},
		{"rx: id", rx(func(c *rxCommand) { c.ID = 2 }), statusInvalidArgument},
		{"rx: block", rx(func(c *rxCommand) { c.Block = 1 << 20 }), statusInvalidArgument},
		{"rx: ring of 32", rx(func(c *rxCommand) { c.Size, c.ComplSize = 32, 32 }), statusInvalidArgument},
		{"rx: completions", rx(func(c *rxCommand) { c.ComplSize = 128 }), statusInvalidArgument},
		{"rx: no buffer", rx(func(c *rxCommand) { c.Buf = 0 }), statusInvalidArgument},
		{"rx: big buffer", rx(func(c *rxCommand) { c.Buf = 0xffff }), statusInvalidArgument},
		{"rx: short headers", rx(func(c *rxCommand) { c.Header = 128 }), statusInvalidArgument},
		{"rx: long headers", rx(func(c *rxCommand) { c.Header = 1024 }), statusInvalidArgument},
		{"rx: ring nowhere", rx(func(c *rxCommand) { c.Ring = nowhere }), statusInvalidArgument},
		{"rx: completions nowhere", rx(func(c *rxCommand) { c.Compl = nowhere }), statusInvalidArgument},
		{"rx: resources nowhere", rx(func(c *rxCommand) { c.Resources = nowhere }), statusInvalidArgument},
		{"destroy: not there", command(opDestroyTx, uint32(1)), statusNotFound},
		{"destroy: no such queue", command(opDestroyRx, uint32(1<<31)), statusNotFound},
		{"extended: inner", command(opExtended, uint32(0x102), uint32(92), uint64(ctlBase)), statusUnimplemented},
		{"extended: length", command(opExtended, uint32(0x101), uint32(91), uint64(ctlBase)), statusInvalidArgument},
		{"extended: nowhere", command(opExtended, uint32(0x101), uint32(92), nowhere), statusInvalidArgument},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := newConfigured(t, 2)
			testkit.Equal(t, "status", r.do(c), r.want)
			c.reset()
			c.up(256)
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"many queues":     {Queues: 17},
		"less than none":  {Queues: -1},
		"most too many":   {Queues: 4, MaxQueues: 17},
		"most too few":    {Queues: 4, MaxQueues: 3},
		"odd ring":        {RxRing: 1000},
		"long ring":       {TxRing: 8192},
		"beyond the most": {RxRing: 1024, MaxRxRing: 512},
		"small MTU":       {Port: nic.Config{MTU: 60}},
	} {
		if o.Port.MTU == 0 {
			o.Port.MTU = 1500
		}
		if d, err := New(o, newCtl(t, queues(1)).space); err == nil {
			t.Errorf("%s: no error", name)
			d.Close()
		}
	}
}

func TestNothingBeforeRun(t *testing.T) {
	c := newCtl(t, queues(1))
	c.slot(opDescribeDevice, uint64(ctlBase), uint32(1), uint32(4096))
	c.write32(regDoorbell, 1)
	testkit.Equal(c, "commands done", c.read32(regEvents), 0)
	for i := range uint32(0x1000) {
		c.bell(4*i, 1)
	}
	c.OK(c.dev.WriteRegion(doorbellsBAR, 2, make([]byte, 4))) // not aligned
}

// Invariant: nic/gve: A bad command is refused, and a bad admin queue stops until a reset or a new
// start.
func TestBadAdminQueue(t *testing.T) {
	for name, spoil := range map[string]func(c *ctl){
		"jump":       func(c *ctl) { c.start(); c.write32(regDoorbell, 65) },
		"jump back":  func(c *ctl) { c.start(); c.write32(regDoorbell, ^uint32(0)) },
		"nowhere":    func(c *ctl) { c.ring = 0x1000; c.start(); c.write32(regDoorbell, 1) },
		"at the end": func(c *ctl) { c.ring = ctlBase + ctlSize - 32; c.start(); c.write32(regDoorbell, 1) },
		"wraps":      func(c *ctl) { c.ring = ^uint64(0) - 63; c.start(); c.write32(regDoorbell, 2) },
		"no length":  func(c *ctl) { c.slots = 0; c.start(); c.write32(regDoorbell, 1) },
		"odd length": func(c *ctl) { c.slots = 3; c.start(); c.write32(regDoorbell, 1) },
		"memory is gone": func(c *ctl) {
			c.up(0)
			c.dev.Unmapping(ctlBase, ctlSize)
			c.OK(c.space.Remove(ctlBase, ctlSize))
			c.dev.MemoryChanged()
			c.write32(regDoorbell, c.count+1)
			c.OK(c.space.Add(c.all()))
			c.dev.MemoryChanged()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCtl(t, queues(1))
			good := c.ring
			spoil(c)
			before := c.read32(regEvents)
			c.write32(regDoorbell, before+1)
			testkit.Equal(c, "commands done", c.read32(regEvents), before)
			c.ring, c.slots = good, 64
			c.reset()
			c.up(0)
		})
	}
}

// A write changes a writable register only if the write covers the whole register; reads may have any width.
func TestRegisterAccess(t *testing.T) {
	c := newCtl(t, queues(2))
	all := make([]byte, registersLen)
	c.OK(c.dev.ReadRegion(registersBAR, 0, all))
	if be.Uint32(all[regMaxRx:]) != 2 || be.Uint32(all[0x2c:]) != 0 {
		t.Errorf("registers %x", all[:64])
	}
	var one [1]byte
	c.OK(c.dev.ReadRegion(registersBAR, regMaxTx+3, one[:]))
	testkit.Equal(t, "last byte of the number of queues", one[0], 2)
	c.OK(c.dev.WriteRegion(registersBAR, regBaseHi, []byte{1, 2, 3}))
	c.OK(c.dev.WriteRegion(registersBAR, regBaseHi+1, []byte{1, 2, 3}))
	testkit.Equal(t, "a register of which part was written", c.read32(regBaseHi), 0)
	c.OK(c.dev.WriteRegion(registersBAR, regBaseHi, []byte{1, 2, 3, 4, 5, 6, 7, 8}))
	if c.read32(regBaseHi) != 0x01020304 || c.read32(regBaseLo) != 0x05060708 {
		t.Error("two registers were not written")
	}
	c.write32(regMaxTx, 99)
	c.write32(regDeviceStatus, 0)
	if c.read32(regMaxTx) != 2 || c.read32(regDeviceStatus)&statusLink == 0 {
		t.Error("a register that is read only was written")
	}
	for off := range uint64(registersLen) {
		c.OK(c.dev.WriteRegion(registersBAR, off, []byte{0xff}))
	}
	c.OK(c.dev.WriteRegion(registersBAR, 0, bytes.Repeat([]byte{0xff}, registersLen)))
	for range 2 * maxVersion {
		c.OK(c.dev.WriteRegion(registersBAR, regDriverVersion, []byte{'v'}))
	}
	testkit.Equal(t, "bytes of a version without an end", len(c.dev.regs.version), maxVersion)
	c.reset()
	c.up(0)
}

// Register adminq_pfn reads as the admin queue's page while the queue runs, and as 0 after a reset or while the
// device asks for one.
func TestPageOfTheAdminQueue(t *testing.T) {
	c := newCtl(t, queues(2))
	page := uint32(c.ring / 4096)
	reads := func(when string, want uint32) {
		t.Helper()
		testkit.Equal(t, when, c.read32(0x10), want)
	}
	reads("before a driver", 0)
	c.up(0)
	reads("of a driver that writes base and length", page)
	c.write32(regDriverStatus, driverReset)
	reads("after a reset", 0)
	for range 2 {
		c.write32(0x10, page)
		reads("before the queue runs", page)
		c.up(0)
		reads("of a driver that writes all three", page)
		c.write32(0x10, 0) // gve_reset of iPXE
		reads("after 0 was written", 0)
		c.idle("0 was written")
		testkit.Equal(t, "commands done", c.read32(regEvents), 0)
	}
	for name, ends := range map[string]func(){"machine": func() { c.OK(c.dev.Reset()) }, "hang-up": c.dev.Disconnected} {
		c.up(0)
		ends()
		reads("after the end by "+name, 0)
	}
	c.up(0)
	c.OK(c.dev.WriteRegion(registersBAR, 0x10, []byte{0, 0, 0}))
	reads("a part of it was written", page)
	c.dev.AskReset()
	reads("the device asks for a reset", 0)
	c.up(0) // a driver that reads 0 does not reset the device first
	reads("of the next driver", page)
}

func TestPCI(t *testing.T) {
	c := newCtl(t, queues(4))
	i := c.dev.Info()
	testkit.Equal(t, "vectors", i.IRQs[vfiouser.IRQMSIX].Count, 9)
	if !i.Reset || i.Regions[0].Size != 4096 || i.Regions[2].Size != 65536 {
		t.Errorf("%+v", i)
	}
	id := make([]byte, 64)
	c.OK(c.dev.ReadRegion(vfiouser.RegionConfig, 0, id))
	if le.Uint32(id) != 0x00421ae0 || id[8] < 1 || le.Uint32(id[0x2c:]) != 0x00581ae0 || id[11] != 2 {
		t.Errorf("identity %x", id)
	}
	if err := c.dev.ReadRegion(vfiouser.RegionROM, 0, id); err == nil {
		t.Error("a ROM was read")
	}
	if err := c.dev.WriteRegion(vfiouser.RegionVGA, 0, id); err == nil {
		t.Error("VGA was written")
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	c.OK(err)
	c.OK(c.dev.SetIRQ(vfiouser.IRQErr, 0, fd))
	c.OK(c.dev.DisableIRQs(vfiouser.IRQErr))
	for _, bad := range [][2]int{{vfiouser.IRQErr, 1}, {vfiouser.IRQINTx, 0}, {vfiouser.IRQMSIX, 9},
		{vfiouser.IRQMSIX, -1}} {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		c.OK(err)
		if c.dev.SetIRQ(bad[0], bad[1], fd) == nil {
			t.Errorf("interrupt %v was set", bad)
		}
	}
}

func TestHeaderSplit(t *testing.T) {
	c := newUp(t, 3, 0)
	split := func() (on []bool) {
		for _, s := range c.dev.port.State().Splits {
			on = append(on, s.On)
		}
		return on
	}
	if got := split(); slices.Contains(got, true) {
		t.Errorf("split %v without header buffers", got)
	}
	for i := range 3 {
		c.pass(opDestroyRx, uint32(i))
		c.pass(opCreateRx, c.rxCreate(i, 256))
	}
	if got := split(); slices.Contains(got, false) {
		t.Errorf("split %v with header buffers", got)
	}
	if err := c.dev.port.SetSplit(control.Split{Queue: 1}); err == nil {
		t.Error("a command changed what the driver has set up")
	}
	c.reset()
	if got := split(); slices.Contains(got, true) {
		t.Errorf("split %v after reset", got)
	}
}

// Invariant: nic/gve: Super-packets are received only while all queues accept them.
func TestLimits(t *testing.T) {
	c := newUp(t, 2, 256)
	if l := c.dev.port.Limits(); !l.GSO.Has(splitter.GSOTCPv4) || !l.GSO.Has(splitter.GSOTCPv6) ||
		l.GSO.Has(splitter.GSOUDPL4) || l.MaxFrame != 9014 {
		t.Errorf("%+v", l)
	}
	c.pass(opDestroyRx, uint32(1))
	cmd := c.rxCreate(1, 256)
	cmd.RSC = 0
	c.pass(opCreateRx, cmd)
	if l := c.dev.port.Limits(); l.GSO.Has(splitter.GSOTCPv4) {
		t.Errorf("%+v with a queue that does not coalesce", l)
	}
	c.pass(opDestroyRx, uint32(1))
	cmd = c.rxCreate(1, 256)
	cmd.Buf = 2048
	c.pass(opCreateRx, cmd)
	if l := c.dev.port.Limits(); l.MaxBytes != maxRSC(2048) {
		t.Errorf("%+v with a queue of small buffers", l)
	}
}
