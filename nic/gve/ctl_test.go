package gve

import (
	"bytes"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/wire"
)

// ctl drives a device's control plane as a driver does: registers, admin queue, doorbells, over memory of its own.
type ctl struct {
	testing.TB
	dev   *Device
	space *dma.Space
	fd    int    // of mem, a memfd
	mem   []byte // all that the device is shown, from ctlBase on
	used  uint64 // of mem, by alloc
	ring  uint64 // IOVA of the admin queue
	slots uint32
	count uint32 // commands given so far
	said  bytes.Buffer
}

const (
	ctlBase = 1 << 32
	ctlSize = 8 << 20
)

var ctlMAC = wire.MAC{2, 0, 0, 0, 0, 1}

func newCtl(t testing.TB, o Options) *ctl {
	t.Helper()
	checkNoFDs(t)
	return newBareCtl(t, o)
}

// newBareCtl does not look for descriptors that are left: a fuzzing process has its own.
func newBareCtl(t testing.TB, o Options) *ctl {
	t.Helper()
	c := &ctl{TB: t, slots: 64}
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	c.must(err)
	c.fd = fd
	t.Cleanup(func() { _ = unix.Close(fd) })
	c.must(unix.Ftruncate(fd, ctlSize))
	c.mem, err = unix.Mmap(fd, 0, ctlSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	c.must(err)
	t.Cleanup(func() { _ = unix.Munmap(c.mem) })
	c.space = dma.NewSpace("guest", dma.NewFiles())
	c.must(c.space.Add(dma.Map{IOVA: ctlBase, Size: ctlSize, FD: fd}))
	t.Cleanup(func() { _ = c.space.Close() })
	o.Port.Name, o.Port.MAC, o.Port.MTU = "a", ctlMAC, 9000
	o.Port.Log = slog.New(slog.NewTextHandler(&c.said, nil))
	c.dev, err = New(o, c.space)
	c.must(err)
	t.Cleanup(c.dev.Close)
	c.ring = c.alloc(64 * slotLen)
	return c
}

func checkNoFDs(t testing.TB) {
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		testkit.OK(t, err)
		return len(names)
	}
	before := count()
	t.Cleanup(func() {
		if after := count(); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func (c *ctl) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// alloc gives memory, zeroed, on pages of its own.
func (c *ctl) alloc(n int) uint64 {
	c.Helper()
	at := c.used
	c.used += (uint64(n) + 4095) &^ 4095
	if c.used > ctlSize {
		c.Fatal("guest memory is used up")
	}
	clear(c.mem[at:c.used])
	return ctlBase + at
}

func (c *ctl) at(iova uint64, n int) []byte { return c.mem[iova-ctlBase:][:n] }

// put allocates memory with b in it.
func (c *ctl) put(b []byte) uint64 {
	at := c.alloc(len(b))
	copy(c.at(at, len(b)), b)
	return at
}

func (c *ctl) read32(off uint64) uint32 {
	c.Helper()
	var b [4]byte
	c.must(c.dev.ReadRegion(registersBAR, off, b[:]))
	return be.Uint32(b[:])
}

func (c *ctl) write32(off uint64, v uint32) {
	c.Helper()
	c.must(c.dev.WriteRegion(registersBAR, off, be.AppendUint32(nil, v)))
}

// bell writes a doorbell.
func (c *ctl) bell(index, v uint32) {
	c.Helper()
	c.must(c.dev.WriteRegion(doorbellsBAR, 4*uint64(index), le.AppendUint32(nil, v)))
}

// start starts the admin queue (gve_adminq_alloc).
func (c *ctl) start() {
	c.Helper()
	c.must(c.dev.WriteRegion(registersBAR, regLength, be.AppendUint16(nil, uint16(c.slots*slotLen))))
	c.write32(regBaseHi, uint32(c.ring>>32))
	c.write32(regBaseLo, uint32(c.ring))
	c.write32(regDriverStatus, driverRun)
	c.count = 0
}

// reset resets the device as the driver does (gve_adminq_release).
func (c *ctl) reset() {
	c.Helper()
	c.write32(regDriverStatus, driverReset)
	if c.read32(regDeviceStatus)&statusResetDone == 0 {
		c.Fatal("the device is not reset")
	}
	if n := c.read32(regEvents); n != 0 {
		c.Fatalf("event counter %d after reset", n)
	}
}

// slot writes a command to the next slot, without a doorbell.
func (c *ctl) slot(op uint32, b *body) (done func() status) {
	s := c.at(c.ring+uint64(c.count%c.slots)*slotLen, slotLen)
	be.PutUint32(s[0:], op)
	be.PutUint32(s[4:], 0)
	copy(s[8:], b[:])
	c.count++
	return func() status { return status(be.Uint32(s[slotStatus:])) }
}

// command has one command carried out.
func (c *ctl) command(op uint32, b *body) status {
	c.Helper()
	st := c.slot(op, b)
	c.write32(regDoorbell, c.count)
	if n := c.read32(regEvents); n != c.count {
		c.Fatalf("%s: event counter %d, not %d", commandName(op), n, c.count)
	}
	return st()
}

// pass is command for one that must pass.
func (c *ctl) pass(op uint32, b *body) {
	c.Helper()
	if st := c.command(op, b); st != statusPassed {
		c.Fatalf("%s: %v\n%s", commandName(op), st, c.said.String())
	}
}

// words makes a body of big-endian values, each as long as its type.
func words(vs ...any) *body {
	var b body
	at := b[:0]
	for _, v := range vs {
		switch v := v.(type) {
		case uint8:
			at = append(at, v)
		case uint16:
			at = be.AppendUint16(at, v)
		case uint32:
			at = be.AppendUint32(at, v)
		case uint64:
			at = be.AppendUint64(at, v)
		}
	}
	return &b
}

// configure configures resources for n notification blocks, and returns where the doorbells' indices are.
func (c *ctl) configure(n int) uint64 {
	c.Helper()
	b := new(body)
	cmd := configureCommand{irqs: c.alloc(64 * n), count: uint32(n), stride: 64, format: formatDQORDA}
	cmd.encode(b)
	c.pass(opConfigureResources, b)
	return cmd.irqs
}

// txCreate and rxCreate make good commands.
func (c *ctl) txCreate(id int) txCommand {
	return txCommand{id: uint32(id), resources: c.alloc(resourcesLen), ring: c.alloc(256 * txDescLen), pages: rawAddresses,
		block: uint32(id), compl: c.alloc(256 * txComplLen), size: 256, complSize: 256}
}

func (c *ctl) rxCreate(id int, header uint16) rxCommand {
	return rxCommand{id: uint32(id), block: uint32(len(c.dev.rx) + id), resources: c.alloc(resourcesLen),
		compl: c.alloc(64 * rxComplLen),
		ring:  c.alloc(64 * rxBufLen), pages: rawAddresses, complSize: 64, buf: packetBuffer, size: 64, rsc: 1, header: header}
}

func (c *ctl) tx(cmd txCommand) status {
	c.Helper()
	var b body
	cmd.encode(&b)
	return c.command(opCreateTx, &b)
}

func (c *ctl) rx(cmd rxCommand) status {
	c.Helper()
	var b body
	cmd.encode(&b)
	return c.command(opCreateRx, &b)
}

// up brings everything up: handshake, resources, all queues.
func (c *ctl) up(header uint16) {
	c.Helper()
	c.start()
	n := len(c.dev.rx)
	c.configure(2 * n)
	for i := range n {
		if st := c.tx(c.txCreate(i)); st != statusPassed {
			c.Fatalf("tx %d: %v\n%s", i, st, c.said.String())
		}
		if st := c.rx(c.rxCreate(i, header)); st != statusPassed {
			c.Fatalf("rx %d: %v\n%s", i, st, c.said.String())
		}
	}
}

// event is an eventfd that a test looks into.
type event struct{ fd int }

// irq gives a vector an eventfd.
func (c *ctl) irq(vector int) *event {
	c.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	c.must(err)
	mine, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	c.must(err)
	c.Cleanup(func() { _ = unix.Close(mine) })
	c.must(c.dev.SetIRQ(vfiouser.IRQMSIX, vector, fd))
	return &event{mine}
}

// fired says how often the event was signalled since it was last asked.
func (e *event) fired() uint64 {
	var b [8]byte
	if _, err := unix.Read(e.fd, b[:]); err != nil {
		return 0
	}
	return le.Uint64(b[:])
}

func queues(n int) Options { return Options{Queues: n, Port: nic.Config{}} }
