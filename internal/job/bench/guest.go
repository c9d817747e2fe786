package bench

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/nic/virtio"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/undo"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

const (
	ringSize  = 256
	userBase  = 1 << 46 // user address of guest-physical address 0: arbitrary
	tableSize = 16 * 4  // bytes of an indirect table of four descriptors
	features  = 1<<32 | // VIRTIO_F_VERSION_1
		1<<15 | 1<<29 | 1<<28 | // MRG_RXBUF, EVENT_IDX, INDIRECT_DESC
		1<<0 | 1<<1 | 1<<7 | 1<<8 | 1<<11 | 1<<12 // CSUM, GUEST_CSUM, GUEST_TSO4 and 6, HOST_TSO4 and 6
)

// guest is the frontend of a port, without a driver: the caller fills and polls the rings.
type guest struct {
	port  *lab.Port
	dev   *virtio.Device
	front *vhostuser.Frontend
	ram   []byte
	next  int
	rings []*virtq.Driver
	kicks []int
	undo  undo.Stack

	bufs []virtq.Buf // receive buffers of all queues; the index is the buffer's cookie in its ring
	used []virtq.Used

	dst    *stretch // take moves a received buffer to the next piece of dst before it posts it again; nil: it stays
	newest uint64   // with dst: the address of the newest received frame; else 0
}

// newGuest attaches a frontend with ram bytes of memory to a port.
func newGuest(port *lab.Port, ram int) (_ *guest, err error) {
	g := &guest{port: port, dev: port.Device().(*virtio.Device), used: make([]virtq.Used, ringSize)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", port.Name, err), g.undo.All())
		}
	}()
	var fd int
	if fd, g.ram, err = mapped(ram); err != nil {
		return nil, err
	}
	g.undo.Add(func() error { return errors.Join(unix.Munmap(g.ram), unix.Close(fd)) })
	backend, frontend, err := scm.Pair()
	if err != nil {
		return nil, err
	}
	port.Connected(backend)
	g.front = vhostuser.NewFrontend(frontend)
	g.undo.Add(g.front.Close)
	if _, _, err = g.front.Negotiate(features,
		uint64(vhostuser.ProtocolMQ|vhostuser.ProtocolReplyAck|vhostuser.ProtocolMemSlots)); err != nil {
		return nil, err
	}
	if err = g.front.AddMemory(fd, 0, userBase, uint64(ram), 0); err != nil {
		return nil, err
	}
	for i := range 2 * port.QueuePairs {
		if err = g.start(i); err != nil {
			return nil, fmt.Errorf("ring %d: %w", i, err)
		}
	}
	return g, nil
}

func (g *guest) alloc(n int) (addr uint64, b []byte, err error) {
	pos := g.next
	if n > len(g.ram)-pos {
		return 0, nil, fmt.Errorf("%d bytes of guest memory are too few", len(g.ram))
	}
	g.next += (n + 4095) &^ 4095
	return uint64(pos), g.ram[pos:][:n], nil
}

func (g *guest) start(i int) error {
	_, _, _, total := virtq.Layout(ringSize)
	addr, mem, err := g.alloc(int(total))
	if err != nil {
		return err
	}
	tables, indirect, err := g.alloc(ringSize * tableSize)
	if err != nil {
		return err
	}
	d, err := virtq.NewDriver(virtq.DriverConfig{Size: ringSize, Mem: mem, Addr: addr, Indirect: indirect,
		IndirectAddr: tables, EventIdx: true})
	if err != nil {
		return err
	}
	var fds [2]int
	for k := range fds {
		if fds[k], err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return fmt.Errorf("eventfd: %w", err)
		}
		g.undo.Add(func() error { return unix.Close(fds[k]) })
	}
	g.rings, g.kicks = append(g.rings, d), append(g.kicks, fds[0])
	if err := g.front.SetEnable(i, true); err != nil {
		return err
	}
	desc, avail, used := d.Addrs()
	err = g.front.SetupVring(vhostuser.VringSetup{Index: i, Size: ringSize, Desc: userBase + desc,
		Avail: userBase + avail, Used: userBase + used, Kick: fds[0], Call: fds[1]})
	g.kick(i)
	return err
}

var one = [8]byte{1}

func (g *guest) kick(i int) { _, _ = unix.Write(g.kicks[i], one[:]) }

// publish shows the buffers added to ring i to the device, and kicks it if it wants a kick (VIRTIO_F_EVENT_IDX).
func (g *guest) publish(i int) {
	if g.rings[i].Publish() {
		g.kick(i)
	}
}

func (g *guest) post(q, n, size int) error {
	for range n {
		addr, _, err := g.alloc(size)
		if err != nil {
			return err
		}
		g.bufs = append(g.bufs, virtq.Buf{Addr: addr, Len: uint32(size)})
		if err := g.repost(q, uint32(len(g.bufs)-1)); err != nil {
			return err
		}
	}
	g.publish(2 * q)
	return nil
}

func (g *guest) repost(q int, cookie uint32) error {
	return g.rings[2*q].Add(nil, g.bufs[cookie:cookie+1], cookie)
}

func (g *guest) layOut(f *frame) (bufs []virtq.Buf, err error) {
	for _, part := range [][]byte{f.head, f.payload} {
		addr, b, err := g.alloc(len(part))
		if err != nil {
			return nil, err
		}
		copy(b, part)
		if len(part) > 0 {
			bufs = append(bufs, virtq.Buf{Addr: addr, Len: uint32(len(part))})
		}
	}
	return bufs, nil
}

// take takes frames that have arrived on receive queue q, up to ringSize of them, and posts their buffers again. Each
// frame must have n bytes, virtio_net_hdr included.
func (g *guest) take(q, n int) (frames int, err error) {
	if frames, err = g.rings[2*q].Poll(g.used); err != nil || frames == 0 {
		return frames, err
	}
	for _, u := range g.used[:frames] {
		if int(u.Len) != n {
			return frames, fmt.Errorf("a frame of %d bytes arrived as %d", n, u.Len)
		}
		if g.dst != nil {
			b := &g.bufs[u.Cookie]
			g.newest, b.Addr = b.Addr, g.dst.next(uint64(b.Len))
		}
		if err := g.repost(q, u.Cookie); err != nil {
			return frames, err
		}
	}
	g.publish(2 * q)
	return frames, nil
}

// sent takes back frames of transmit queue q that the device has sent or dropped, up to ringSize of them, and returns
// their number.
func (g *guest) sent(q int) (frames int, err error) { return g.rings[2*q+1].Poll(g.used) }

var errStuck = fmt.Errorf("nothing moves for %v", limits.Bench.Here())
