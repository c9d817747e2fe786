package gve

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/vfiouser"
)

// ctl drives a device's control plane like a driver, in its own memory.
type ctl struct {
	*nictest.Memory
	dev   *Device
	space *dma.Space
	ring  uint64 // IOVA of the admin queue
	slots uint32
	count uint32 // commands in slots since start
	log   bytes.Buffer
	word  [4]byte // scratch of bell
}

const (
	ctlBase = 1 << 32
	ctlSize = 8 << 20
)

var ctlMAC = wire.MAC{2, 0, 0, 0, 0, 1}

func newCtl(t testing.TB, o Options) *ctl {
	t.Helper()
	testkit.CheckFDs(t)
	return newBareCtl(t, o)
}

// newConfigured makes a device with configured resources, newUp one with all queues as well.
func newConfigured(t testing.TB, pairs int) *ctl {
	t.Helper()
	c := newCtl(t, queues(pairs))
	c.start()
	c.configure(2 * pairs)
	return c
}

func newUp(t testing.TB, pairs int, header uint16) *ctl {
	t.Helper()
	c := newCtl(t, queues(pairs))
	c.up(header)
	return c
}

// newBareCtl does not check for leaked descriptors: a fuzzing process has descriptors of its own.
func newBareCtl(t testing.TB, o Options) *ctl {
	t.Helper()
	o.Port.Name, o.Port.MAC, o.Port.MTU = "a", ctlMAC, 9000
	return newCtlIn(nictest.NewMemory(t, ctlBase, ctlSize, 0), dma.NewFiles(), o)
}

func newCtlIn(m *nictest.Memory, files *dma.Files, o Options) *ctl {
	m.Helper()
	c := &ctl{Memory: m, space: dma.NewSpace(o.Port.Name, files), slots: 64}
	m.Cleanup(func() { _ = c.space.Close() })
	c.OK(c.space.Add(c.all()))
	o.Port.Log = slog.New(slog.NewTextHandler(&c.log, nil))
	var err error
	c.dev, err = New(o, c.space)
	c.OK(err)
	m.Cleanup(c.dev.Close)
	c.ring = c.alloc(64 * slotLen)
	return c
}

// all returns the Map of the guest's RAM, gpu the Map of its GPU's memory.
func (c *ctl) all() dma.Map { return dma.Map{IOVA: c.Base, Size: uint64(len(c.RAM)), FD: c.FD} }
func (c *ctl) gpu() dma.Map {
	return dma.Map{IOVA: nictest.GPUBase, Size: nictest.GPUSize, FD: c.GPU.FD()}
}

// alloc returns the address of n zeroed bytes, on pages of their own.
func (c *ctl) alloc(n int) uint64 {
	c.Helper()
	addr, b := c.Alloc(n)
	clear(b)
	return addr
}

func (c *ctl) bytes(iova uint64, n int) []byte { return c.At(iova)[:n] }

func (c *ctl) read32(off uint64) uint32 {
	c.Helper()
	var b [4]byte
	c.OK(c.dev.ReadRegion(registersBAR, off, b[:]))
	return be.Uint32(b[:])
}

func (c *ctl) write32(off uint64, v uint32) {
	c.Helper()
	c.OK(c.dev.WriteRegion(registersBAR, off, be.AppendUint32(nil, v)))
}

func (c *ctl) bell(index, v uint32) {
	c.Helper()
	le.PutUint32(c.word[:], v)
	c.OK(c.dev.WriteRegion(doorbellsBAR, 4*uint64(index), c.word[:]))
}

// start starts the admin queue (gve_adminq_alloc).
func (c *ctl) start() {
	c.Helper()
	c.OK(c.dev.WriteRegion(registersBAR, regLength, be.AppendUint16(nil, uint16(c.slots*slotLen))))
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

// slot writes a command to the next slot, without a doorbell. done returns the status in the slot.
func (c *ctl) slot(op uint32, vs ...any) (done func() status) {
	s := c.bytes(c.ring+uint64(c.count%c.slots)*slotLen, slotLen)
	be.PutUint32(s[0:], op)
	be.PutUint32(s[4:], 0)
	copy(s[8:], words(vs...)[:])
	c.count++
	return func() status { return status(be.Uint32(s[slotStatus:])) }
}

func (c *ctl) command(op uint32, vs ...any) status {
	c.Helper()
	st := c.slot(op, vs...)
	c.write32(regDoorbell, c.count)
	if n := c.read32(regEvents); n != c.count {
		c.Fatalf("%s: event counter %d, not %d", commandName(op), n, c.count)
	}
	return st()
}

func (c *ctl) pass(op uint32, vs ...any) {
	c.Helper()
	if st := c.command(op, vs...); st != statusPassed {
		c.Fatalf("%s: %v\n%s", commandName(op), st, c.log.String())
	}
}

// words makes a body of big-endian values, each as long as its type.
func words(vs ...any) *body {
	var b body
	rest := b[:0]
	for _, v := range vs {
		rest, _ = binary.Append(rest, be, v)
	}
	return &b
}

// driverInfo returns a struct gve_driver_info with the operating system, capabilities and release of Linux 7.2.
func driverInfo() []byte {
	info := make([]byte, driverInfoLen)
	info[0] = 1
	be.PutUint64(info[16:], 0x7b)
	copy(info[48:], "7.2.12-cloud-amd64")
	return info
}

// resources returns a good command for n notification blocks.
func (c *ctl) resources(n int) configureCommand {
	return configureCommand{IRQs: c.alloc(64 * n), Count: uint32(n), Stride: 64, Format: formatDQORDA}
}

// configure configures resources for n notification blocks, and returns the address of the doorbells' indices.
func (c *ctl) configure(n int) uint64 {
	c.Helper()
	cmd := c.resources(n)
	c.pass(opConfigureResources, cmd)
	return cmd.IRQs
}

// txCreate and rxCreate make good commands.
func (c *ctl) txCreate(id int) txCommand {
	return txCommand{ID: uint32(id), Resources: c.alloc(resourcesLen), Ring: c.alloc(256 * txDescLen), Pages: rawAddresses,
		Block: uint32(id), Compl: c.alloc(256 * txComplLen), Size: 256, ComplSize: 256}
}

func (c *ctl) rxCreate(id int, header uint16) rxCommand {
	return rxCommand{ID: uint32(id), Block: uint32(len(c.dev.rx) + id), Resources: c.alloc(resourcesLen),
		Compl: c.alloc(64 * rxComplLen), Ring: c.alloc(64 * rxBufLen), Pages: rawAddresses, ComplSize: 64,
		Buf: packetBuffer, Size: 64, RSC: 1, Header: header}
}

// up starts the admin queue, configures resources, and creates all queues; header is the size of header buffers, 0 for
// none.
func (c *ctl) up(header uint16) {
	c.Helper()
	c.start()
	n := len(c.dev.rx)
	c.configure(2 * n)
	for i := range n {
		c.pass(opCreateTx, c.txCreate(i))
		c.pass(opCreateRx, c.rxCreate(i, header))
	}
}

// event is an eventfd that a test reads.
type event struct{ fd int }

// irq makes an eventfd, passes it to the device for a vector, and returns it.
func (c *ctl) irq(vector int) *event {
	c.Helper()
	e := &event{nictest.EventFD(c)}
	fd, err := unix.FcntlInt(uintptr(e.fd), unix.F_DUPFD_CLOEXEC, 0)
	c.OK(err)
	c.OK(c.dev.SetIRQ(vfiouser.IRQMSIX, vector, fd))
	return e
}

// fired returns how often the event was signalled since the last call.
func (e *event) fired() uint64 {
	var b [8]byte
	if _, err := unix.Read(e.fd, b[:]); err != nil {
		return 0
	}
	return le.Uint64(b[:])
}

func queues(n int) Options { return Options{Queues: n, MaxQueues: n, Port: nic.Config{}} }
