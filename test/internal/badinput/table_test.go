package badinput

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// class is the kind of a bad input, and layer the part of vnic that reads it first.
type (
	class string
	layer string
)

const (
	costly     class = "costs much"
	changed    class = "bytes change after they were judged"
	slow       class = "takes little"
	disguised  class = "false identity"
	descriptor class = "descriptors that are no memory"
	repeated   class = "one harmless thing, a thousand times"
	together   class = "two at once"
)

var classes = []class{costly, changed, slow, disguised, descriptor, repeated, together}

const (
	messages  layer = "vhost-user"
	txRing    layer = "transmit ring"
	rxRing    layer = "receive ring"
	frames    layer = "frames"
	commands  layer = "control channel"
	gateway   layer = "gateway"
	vfio      layer = "vfio-user"
	registers layer = "gve registers and admin queue"
	gveTx     layer = "gve transmit ring"
	gveRx     layer = "gve receive ring"
)

var layers = []layer{messages, txRing, rxRing, frames, commands, gateway, vfio, registers, gveTx, gveRx}

// model returns the device model with which the rows of a layer run.
func (l layer) model() string {
	switch l {
	case vfio, registers, gveTx, gveRx:
		return "gve"
	}
	return "virtio"
}

// bound is what a row may cost, all repetitions together.
type bound struct {
	memory int // bytes that the row leaves allocated
	peak   int // the most bytes above the memory before the row
	cpu    time.Duration
	lines  int           // lines in the log
	files  int           // the most descriptors above the number before the row, where the row counts them
	left   int           // descriptors that may stay open after the row
	stall  time.Duration // longest time of an innocent frame, in addition to ten times the usual one
}

const mib = 1 << 20

var few = bound{memory: 16 * mib, peak: 32 * mib, cpu: 4 * time.Second, lines: 110, stall: time.Second}

// quiet is for rows whose repeated lines vnic mostly leaves out of its log.
var quiet = bound{memory: few.memory, peak: few.peak, cpu: few.cpu, lines: 40, stall: few.stall}

type row struct {
	class  class
	layer  layer
	name   string
	answer string // what vnic does with the input, for readers: try does not use it
	input  func(w *world)
	bound  bound
}

// reps is how often most rows repeat their input.
const reps = 1000

var table = slices.Concat(virtioTable, guestTable, gveTable)

var virtioTable = []row{
	{costly, messages, "a region that is no whole page, and an MTU that no frame has", "refused", func(w *world) {
		a := w.attacker.connect()
		for i := range uint64(reps) {
			a.refused(a.front.AddMemory(a.fd, i<<12, userAt+i<<12, 1+i, 0))
			a.refused(a.front.SetMTU(1))
		}
	}, quiet},
	{costly, txRing, "chains that are longer than any may be", "the queue stops", func(w *world) {
		a, r := w.longChains(1, 0, 16384)
		a.offer(r, heads(64)...)
		a.await(r, 1)
	}, few},
	{costly, rxRing, "chains that are long and too little, walked for each frame and kick", "the frames are dropped",
		func(w *world) {
			a := w.attacker.connect().share()
			r := a.start(0, 1024)
			w.introduce(a)
			a.offer(r, a.tooLittle(r, 4)...)
			for range 100 {
				w.flood(a, reps/100)
				for range reps {
					a.offer(r)
				}
			}
		}, few},
	{changed, frames, "a partial checksum that makes a control frame of it", "the frames are dropped", func(w *world) {
		a := w.attacker.connect().share()
		r := a.start(1, 256)
		frame, hdr := forged(w.a.mac)
		for range reps {
			a.send(r, hdr, frame)
		}
		w.noControl()
	}, few},
	{slow, rxRing, "10 buffers a second", "the frames to it are dropped", (*world).slowly,
		bound{memory: few.memory, peak: few.peak, cpu: few.cpu, lines: few.lines, stall: 700 * time.Millisecond}},
	{disguised, frames, "a control frame", "the frames are dropped", func(w *world) {
		a := w.attacker.connect().share()
		r := a.start(1, 256)
		b := append(append([]byte{}, w.a.mac...), 2, 0x76, 0x6e, 0x69, 0x63, 1, 0x88, 0xb5)
		for range reps {
			a.send(r, [12]byte{}, append(b, make([]byte, 60)...))
		}
		w.noControl()
	}, few},
	{descriptor, messages, "pipes, sockets, devices, directories and files that are read-only", "refused", func(w *world) {
		a := w.attacker.connect()
		fds := w.oddFiles()
		for i := range reps {
			a.refused(a.front.AddMemory(fds[i%len(fds)], 0, userAt, 4096, 0))
		}
	}, few},
	{slow, messages, "connections that say nothing", "8 wait, the others are ended", func(w *world) {
		var all []*net.UnixConn
		for range reps / 2 {
			all = append(all, w.s.dial(w.attacker.port))
		}
		w.settle()
		for _, c := range all {
			_ = c.Close()
		}
	}, bound{memory: few.memory, peak: few.peak, cpu: few.cpu, lines: few.lines, files: 8 + 8, stall: few.stall}},
	{repeated, messages, "a connection", "it is served", func(w *world) {
		for range reps {
			w.attacker.connect().hangUp()
		}
	}, few},
	{repeated, messages, "a ring set up again with new descriptors", "the old ones are closed", func(w *world) {
		a := w.attacker.connect().share()
		r := a.start(1, 256)
		for range reps {
			fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(w.t)
			testkit.OK(w.t, a.front.SetVringCall(1, fd))
			testkit.OK(w.t, a.front.SetVringKick(1, fd))
			_ = unix.Close(fd)
		}
		_ = r
	}, few},
	{repeated, txRing, "a bad chain, and the ring set up again", "the queue stops until then", func(w *world) {
		a := w.attacker.connect().share()
		r := a.start(1, 256)
		for range reps {
			a.put(r.desc, 1<<50, 64, 0, 0) // an address without memory
			clear(a.ram[r.avail : r.avail+4])
			clear(a.ram[r.used : r.used+4])
			a.offer(r, 0)
			_, err := a.front.GetVringBase(1)
			testkit.OK(w.t, err)
			testkit.OK(w.t, a.front.SetupVring(vhostuser.VringSetup{Index: 1, Size: r.size, Desc: userAt + r.desc,
				Avail: userAt + r.avail, Used: userAt + r.used, Kick: r.kick, Call: r.call}))
		}
	}, quiet},
	{repeated, gateway, "broadcasts of all kinds that it answers or drops", "as far as bounds allow", func(w *world) {
		a := w.attacker.connect().share()
		r := a.start(1, 256)
		for i := range reps {
			a.send(r, [12]byte{}, w.arp(a, uint32(i)))
		}
	}, few},
	{together, frames, "two guests without buffers that send each other all they can", "the frames are dropped",
		func(w *world) {
			a, b := w.attacker.connect().share(), w.s.attacker(w.t, w.attacker.port+1).connect().share()
			defer b.hangUp()
			for _, x := range []struct{ from, to *attacker }{{a, b}, {b, a}} {
				x.from.start(0, 256)
				w.introduce(x.from)
			}
			for _, x := range []struct{ from, to *attacker }{{a, b}, {b, a}} {
				r := x.from.rings[1]
				buf := x.from.alloc(4096)
				n := copy(x.from.ram[buf+12:], frameTo(x.to.mac, x.from.mac))
				var all []uint16
				for i := range uint16(200) {
					x.from.put(r.desc+16*uint64(i), buf, uint32(12+n), 0, 0)
					all = append(all, i)
				}
				x.from.offer(r, all...)
			}
			w.in.move(w.t, reps)
		}, few},
	{disguised, frames, "an innocent guest's address as source", "the frames are dropped", func(w *world) {
		a := w.attacker.connect().share()
		r := a.start(1, 256)
		b := append(append(append([]byte{}, w.b.mac...), w.a.mac...), testType>>8, testType&0xff)
		for range reps {
			a.send(r, [12]byte{}, append(b, make([]byte, 50)...))
		}
	}, few},
}

func heads(n uint16) (hs []uint16) {
	for i := range n {
		hs = append(hs, i)
	}
	return hs
}

// longChains makes 64 chains of n descriptors; the buffer of each descriptor is across the border of two regions.
func (w *world) longChains(queue int, flags uint16, n uint64) (*attacker, *ring) {
	a := w.attacker.connect()
	const pages, size = 400, 32768
	const high = 1 << 40 // the device's address of the single pages
	testkit.OK(w.t, a.front.AddMemory(a.fd, 0, userAt, ramSize, 0))
	for i := range uint64(pages) {
		testkit.OK(w.t, a.front.AddMemory(a.fd, high+i<<12, userAt+high+i<<12, 4096, ramSize-pages<<12+i<<12))
	}
	r := a.start(queue, size)
	tables := a.alloc(n * 16)
	for i := range n {
		next, more := uint16(i+1), uint16(flagNext)
		if i == n-1 {
			next, more = 0, 0
		}
		// The second half of a page, and the first half of the next.
		a.put(tables+16*i, high+(i%(pages-1))<<12+2048, 4096, flags|more, next)
	}
	for i := range uint64(64) {
		a.put(r.desc+16*i, tables, uint32(n*16), flagIndirect, 0)
	}
	return a, r
}

// slowly floods an attacker that posts at most 10 buffers a second.
func (w *world) slowly() {
	const buffers = 20
	a := w.attacker.connect().share()
	r := a.start(0, 256)
	w.introduce(a)
	buf := a.alloc(4096)
	for i := range uint16(buffers) {
		a.put(r.desc+16*uint64(i), buf, 4096, flagWrite, 0)
		a.offer(r, i)
		w.flood(a, reps/buffers)
		time.Sleep(100 * time.Millisecond)
	}
}

// tooLittle makes n chains of virtq.MaxDescriptors buffers, and returns their heads. The last buffer has 20 bytes, the
// others are empty.
func (a *attacker) tooLittle(r *ring, n uint16) []uint16 {
	buf, tables := a.alloc(4096), a.alloc(virtq.MaxDescriptors*16)
	for i := range uint64(virtq.MaxDescriptors) {
		size, next, more := uint32(0), uint16(i+1), uint16(flagNext)
		if i == virtq.MaxDescriptors-1 {
			size, next, more = 20, 0, 0
		}
		a.put(tables+16*i, buf, size, flagWrite|more, next)
	}
	for i := range uint64(n) {
		a.put(r.desc+16*i, tables, virtq.MaxDescriptors*16, flagIndirect, 0)
	}
	return heads(n)
}

func (a *attacker) await(r *ring, n uint16) {
	a.t.Helper()
	testkit.Eventually(a.t, "the ring is looked at", func() bool {
		return a.usedIdx(r) >= n || le.Uint16(a.ram[r.used:])&1 != 0 // the device has disabled kicks
	})
}

// introduce starts ring 1, and sends a frame on it, from which the switch learns the attacker's address.
func (w *world) introduce(a *attacker) {
	w.t.Helper()
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	a.send(a.start(1, 256), [12]byte{}, frameTo(broadcast, a.mac))
}

func frameTo(to, from net.HardwareAddr) []byte {
	b := append(append(append([]byte{}, to...), from...), testType>>8, testType&0xff)
	return append(b, make([]byte, 100)...)
}

// flood makes an innocent guest send frames to an attacker.
func (w *world) flood(a *attacker, n int) { w.floodMAC(a.mac, n) }

func (w *world) floodMAC(to net.HardwareAddr, n int) {
	w.t.Helper()
	frame := frameTo(to, w.a.mac)
	testkit.Eventually(w.t, "the innocent guest's frames are sent", func() bool {
		k, err := w.a.transmit(frame)
		testkit.OK(w.t, err)
		n -= k
		return n <= 0
	})
}

// controlFrames counts the control frames that the innocent guests' drivers got.
func (w *world) controlFrames() uint64 {
	return w.a.control() + w.b.control()
}

func (w *world) noControl() {
	w.t.Helper()
	if n := w.controlFrames() - w.control; n > 0 {
		w.t.Errorf("%d control frames came", n)
	}
}

// forged returns a frame whose completed partial checksum would make it a control frame.
func forged(to net.HardwareAddr) ([]byte, [12]byte) {
	b := append(append([]byte{}, to...), 2, 0x76, 0x6e, 0x69, 0x63, 0x77, 0x99, 0xb5)
	b = append(b, make([]byte, 60)...)
	sum := uint32(0)
	for i := 11; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	fill := uint32(^uint16(0x0188)) + 0xffff - sum
	binary.BigEndian.PutUint16(b[31:], uint16(fill%0xffff))
	hdr := [12]byte{1} // NEEDS_CSUM
	le.PutUint16(hdr[6:], 11)
	return b, hdr
}

func (w *world) arp(a *attacker, n uint32) []byte {
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, a.mac...)
	b = append(b, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(b, a.mac...)
	b = append(b, 10, 118, 110, byte(1+n%200), 0, 0, 0, 0, 0, 0, 10, 118, 110, 254)
	return append(b, make([]byte, 18)...)
}

func (w *world) oddFiles() (fds []int) {
	w.t.Helper()
	keep := func(f *os.File, err error) {
		testkit.OK(w.t, err)
		w.t.Cleanup(func() { _ = f.Close() })
		fds = append(fds, int(f.Fd()))
	}
	r, p, err := os.Pipe()
	keep(r, err)
	keep(p, err)
	keep(os.Open("/dev/zero"))
	keep(os.OpenFile("/dev/null", os.O_RDWR, 0))
	keep(os.Open("/dev/shm")) // on tmpfs: of other file systems vnic keeps 64 files, then the port serves nobody
	keep(os.Open(fmt.Sprintf("/proc/self/fd/%d", w.attacker.fd)))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testkit.OK(w.t, err)
	keep(os.NewFile(uintptr(pair[0]), "socket"), nil)
	keep(os.NewFile(uintptr(pair[1]), "socket"), nil)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	keep(os.NewFile(uintptr(fd), "eventfd"), err)
	return fds
}
