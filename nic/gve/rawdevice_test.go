package gve

import (
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/vfiouser"
)

// rawDevice is what a rawGuest knows of the device whose registers it writes: where doorbells are, and the admin queue.
type rawDevice struct {
	*Device
	adminq       []byte
	count        uint32 // commands
	resources    uint64 // where the device writes a queue's doorbell
	irqs, rx, tx map[int]uint32
	liveRx       map[int]bool
	liveTx       map[int]bool
	word         [4]byte
}

const rawSlots = 64

// addDevice makes a device, and brings it up as the driver does: handshake, then resources.
func (g *rawGuest) addDevice(conf nic.Config) {
	g.t.Helper()
	dev, err := New(Options{Port: nic.Config{Name: conf.Name, MAC: conf.MAC, MTU: conf.MTU, GPUs: conf.GPUs},
		Queues: g.o.pairs}, g.space)
	g.must(err)
	g.t.Cleanup(dev.Close)
	d := &rawDevice{Device: dev, irqs: map[int]uint32{}, rx: map[int]uint32{}, tx: map[int]uint32{},
		liveRx: map[int]bool{}, liveTx: map[int]bool{}}
	g.dev, g.port, g.rx, g.tx = d, dev.port, dev.rx, dev.tx
	var at uint64
	at, d.adminq = g.alloc(rawSlots * slotLen)
	g.write(regLength, be.AppendUint16(nil, rawSlots*slotLen))
	g.write(regBaseHi, be.AppendUint32(nil, uint32(at>>32)))
	g.write(regBaseLo, be.AppendUint32(nil, uint32(at)))
	g.write(regDriverStatus, be.AppendUint32(nil, driverRun))
	n := 2 * g.o.pairs
	irqs, mem := g.alloc(64 * n)
	c := configureCommand{irqs: irqs, count: uint32(n), stride: 64, format: formatDQORDA}
	var b body
	c.encode(&b)
	g.command(opConfigureResources, &b)
	for i := range n {
		d.irqs[i] = be.Uint32(mem[64*i:])
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		g.must(err)
		g.t.Cleanup(func() { _ = unix.Close(fd) })
		g.irq.raised = append(g.irq.raised, fd)
		g.giveIRQ(i)
	}
	d.resources, _ = g.alloc(resourcesLen)
}

// giveIRQ gives the device the eventfd of a vector.
func (g *rawGuest) giveIRQ(vector int) {
	g.t.Helper()
	fd, err := unix.FcntlInt(uintptr(g.irq.raised[vector]), unix.F_DUPFD_CLOEXEC, 0)
	g.must(err)
	g.must(g.dev.SetIRQ(vfiouser.IRQMSIX, vector, fd))
}

func (g *rawGuest) write(reg uint64, b []byte) {
	g.t.Helper()
	g.must(g.dev.WriteRegion(registersBAR, reg, b))
}

// bell writes a doorbell.
func (g *rawGuest) bell(index, v uint32) {
	le.PutUint32(g.dev.word[:], v)
	testkit.OK(g.t, g.dev.WriteRegion(doorbellsBAR, 4*uint64(index), g.dev.word[:]))
}

// command has a command carried out, which must pass.
func (g *rawGuest) command(op uint32, b *body) {
	g.t.Helper()
	d := g.dev
	s := d.adminq[d.count%rawSlots*slotLen:][:slotLen]
	be.PutUint32(s[0:], op)
	be.PutUint32(s[4:], 0)
	copy(s[8:], b[:])
	d.count++
	g.write(regDoorbell, be.AppendUint32(nil, d.count))
	if st := status(be.Uint32(s[4:])); st != statusPassed {
		g.t.Fatalf("command %#x: %v", op, st)
	}
}

func (g *rawGuest) createRx(p rxParams) {
	g.t.Helper()
	var b body
	if d := g.dev; d.liveRx[p.id] {
		g.command(opDestroyRx, words(uint32(p.id)))
	}
	c := rxCommand{id: uint32(p.id), block: uint32(p.notify), resources: g.dev.resources, compl: p.compl, ring: p.desc,
		pages:     rawAddresses,
		complSize: uint16(p.complSize), buf: uint16(p.bufSize), size: uint16(p.size), rsc: pick(p.rsc, 1),
		header: uint16(p.headerSize)}
	c.encode(&b)
	g.command(opCreateRx, &b)
	g.dev.liveRx[p.id], g.dev.rx[p.id] = true, be.Uint32(g.mem[g.dev.resources:])
}

func (g *rawGuest) createTx(p txParams) {
	g.t.Helper()
	var b body
	if d := g.dev; d.liveTx[p.id] {
		g.command(opDestroyTx, words(uint32(p.id)))
	}
	c := txCommand{id: uint32(p.id), resources: g.dev.resources, ring: p.desc, pages: rawAddresses,
		block: uint32(p.notify), compl: p.compl,
		size: uint16(p.size), complSize: uint16(p.complSize)}
	c.encode(&b)
	g.command(opCreateTx, &b)
	g.dev.liveTx[p.id], g.dev.tx[p.id] = true, be.Uint32(g.mem[g.dev.resources:])
}
