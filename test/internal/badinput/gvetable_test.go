package badinput

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

// gveTable has the rows of vfio-user and of a gVNIC, except the row of vfio-user in onFiles.
var gveTable = []row{
	{costly, vfio, "as many mappings as there may be, and one more", "the last one is refused", func(w *world) {
		c := w.vfio()
		const most = 65535 // dma.MaxRegions; the client's memory is one more mapping
		fd := c.mem.FD()
		for i := range uint64(most) {
			c.posted(vfiouser.CmdDMAMap, vfiotest.DMAMap(3, i%2<<12, 1<<40+i<<13, 4096), fd)
		}
		w.errno(c.MapRange(1<<50, 4096, fd, 0, true), unix.ENOSPC)
		testkit.OK(w.t, c.UnmapAll())
	}, bound{memory: 64 * mib, peak: 96 * mib, cpu: 4 * few.cpu, lines: few.lines, stall: few.stall}},
	{slow, vfio, "a client that asks for all it can and reads no answer", "it is ended when it hangs up", func(w *world) {
		c := w.vfio()
		testkit.OK(w.t, c.SetTimeout(200*time.Millisecond)) // Send fails when the socket is full
		ask := vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionRead},
			Body: vfiotest.Access(registersBAR, 0, 4096)}
		for range reps {
			if c.Send(ask) != nil {
				break
			}
		}
	}, few},
	{repeated, vfio, "a connection, with memory", "it is served", func(w *world) {
		for range reps / 4 { // each maps 64 MiB
			w.hangUp(w.vfio())
		}
	}, few},
	{repeated, vfio, "interrupts given again with new descriptors", "the old ones are closed", func(w *world) {
		c := w.vfio()
		for range reps {
			e := testkit.Must(vfiotest.NewEvent())(w.t)
			testkit.OK(w.t, c.SetIRQ(vfiouser.IRQMSIX, 0, e))
			e.Close()
		}
		w.count()
	}, bound{memory: few.memory, peak: few.peak, cpu: few.cpu, lines: few.lines, files: 8, stall: few.stall}},
	{together, vfio, "two clients that map one file and undo it", "it is done", func(w *world) {
		a, b := w.vfio(), w.s.gve(w.t, w.attacker.port+1)
		defer w.hangUp(b)
		var both sync.WaitGroup
		for _, c := range []*gveClient{a, b} {
			both.Go(func() {
				for i := range uint64(reps) {
					if err := errors.Join(c.MapRange(1<<40+i<<12, 8<<12, a.mem.FD(), i%8<<12, true),
						c.Unmap(1<<40+i<<12, 8<<12)); err != nil {
						w.t.Error(err)
						return
					}
				}
			})
		}
		both.Wait()
	}, few},

	{costly, registers, "the longest admin queue, all of its commands unknown, again and again", "refused",
		func(w *world) {
			c := w.vfio()
			const most = 512
			c.start(most)
			for i := range uint32(reps) {
				for range most {
					if i > 0 {
						c.count++
						continue // the slot has this command already
					}
					c.slot(most, 0x4242)
				}
				c.write(regDoorbell, c.count)
			}
		}, bound{memory: few.memory, peak: few.peak, cpu: 3 * few.cpu, lines: quiet.lines, stall: few.stall}},
	{repeated, registers, "commands out of order, twice, without room, and more at once than there are", "refused",
		func(w *world) {
			c := w.vfio()
			c.start(slots)
			c.configure()
			tx, rx := c.queue(64, 16, 8), c.queue(64, 32, 32)
			refused := func(op uint32, vs ...any) {
				s := c.slot(slots, op, vs...)
				c.write(regDoorbell, c.count)
				if st := be.Uint32(s[4:]); st == passed || st == 0 {
					w.t.Fatalf("command %#x: status %#x", op, st)
				}
			}
			for i := range reps {
				c.createTx(tx)
				c.createRx(rx)
				refused(opCreateTx, uint32(0), uint32(0), c.here, tx.ring, uint32(rawAddresses), uint32(0), tx.compl,
					uint16(64), uint16(64)) // this queue exists
				refused(opDescribe, c.here, uint32(1), uint32(i%40)) // shorter than a descriptor
				refused(opReportTime, uint64(40), c.here)            // the NIC does not offer this
				refused(opReportStats, uint64(8)<<(i%40), uint64(i)<<52|1<<51, uint64(1))
				c.command(opDestroyTx, uint32(0))
				refused(opDestroyTx, uint32(0))
				refused(opCreateTx, uint32(0), uint32(0), uint64(1)<<60, tx.ring, uint32(rawAddresses), uint32(0), tx.compl,
					uint16(64), uint16(64)) // the NIC cannot write the index of the doorbell
				c.write(regDoorbell, c.count+slots+1+uint32(i)) // the admin queue stops
				c.write(regDriverStatus, driverReset)
				c.start(slots)
				c.configure()
			}
		}, quiet},

	{costly, gveTx, "packets of the most buffers in the most pieces, on the largest ring", "they are dropped",
		func(w *world) {
			c := w.vfio()
			c.scatter()
			tx, _ := c.up(largest, 64)
			const packets = 60 // 3,900 descriptors
			for range 16 {
				for i := range packets {
					c.segmented(tx)
					for j := range 64 {
						c.packet(tx, high+2048+uint64(i%16)<<14, 1<<14-1, j == 63)
					}
				}
				c.show(txDoorbells, tx)
				n := packets
				testkit.Eventually(w.t, "the packets come back", func() bool {
					for n > 0 && c.sent(tx) {
						n--
					}
					return n == 0
				})
			}
		}, few},
	{repeated, gveTx, "a bad descriptor, and the queue made again", "the queue stops until then", func(w *world) {
		c := w.vfio()
		tx, _ := c.up(256, 64)
		for range reps {
			c.packet(tx, 1<<60, 4096, true) // an address without memory
			c.show(txDoorbells, tx)
			c.command(opDestroyTx, uint32(0))
			clear(c.bytesAt(tx.compl, 256*8))
			c.createTx(tx)
		}
	}, quiet},

	{costly, gveRx, "buffers in the most pieces, on the largest ring, tried for each frame", "they are used, or dropped",
		func(w *world) {
			c := w.vfio()
			c.scatter()
			tx, rx := c.up(256, largest)
			for i := range uint64(largest - 1) {
				c.buffer(rx, high+2048+i%60<<12)
			}
			w.meet(c, tx)
			c.show(rxDoorbells, rx)
			w.floodMAC(c.mac, reps)
		}, few},
	{slow, gveRx, "no buffers", "the frames to it are dropped", func(w *world) {
		c := w.vfio()
		tx, _ := c.up(256, 256)
		w.meet(c, tx)
		w.floodMAC(c.mac, reps)
	}, few},
	{repeated, gveRx, "a queue made and ended under traffic", "it is done", func(w *world) {
		c := w.vfio()
		tx, rx := c.up(256, 64)
		w.meet(c, tx)
		buf := c.alloc(packetLen)
		for i := range reps {
			c.command(opDestroyRx, uint32(0))
			clear(c.bytesAt(rx.compl, 64*32))
			c.createRx(rx)
			c.buffer(rx, buf)
			c.show(rxDoorbells, rx)
			if i%50 == 0 {
				w.floodMAC(c.mac, 50)
			}
		}
	}, few},
}

// high is the address from which on scatter maps a client's pages a second time.
const high = 1 << 44

// scatter maps 72 pages at consecutive addresses, but not from consecutive places in the file.
func (g *gveClient) scatter() {
	g.t.Helper()
	for i := range uint64(64 + 8) {
		testkit.OK(g.t, g.MapRange(high+i<<12, 4096, g.mem.FD(), ramSize-(i+1)<<13, true))
	}
}

func (w *world) vfio() *gveClient {
	w.t.Helper()
	c := w.s.gve(w.t, w.attacker.port)
	w.attacker.also = append(w.attacker.also, func() { w.hangUp(c) })
	return c
}

func (w *world) hangUp(c *gveClient) {
	_ = c.Close()
	c.mem.Close()
}

// posted sends a request that gets no answer.
func (g *gveClient) posted(cmd vfiouser.Command, body []byte, fds ...int) {
	g.t.Helper()
	testkit.OK(g.t, g.Send(vfiotest.Message{Header: vfiouser.Header{Command: cmd, Flags: vfiouser.FlagNoReply}, Body: body,
		FDs: fds}))
}

func (w *world) errno(err error, want ...unix.Errno) {
	w.t.Helper()
	var e *vfiotest.Error
	if !errors.As(err, &e) || !slices.Contains(want, e.Errno) {
		w.t.Fatalf("%v, wanted %v", err, want)
	}
}

// meet sends a frame, from which the switch learns the client's address.
func (w *world) meet(c *gveClient, tx *gveQueue) {
	w.t.Helper()
	c.send(tx, frameTo(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, c.mac))
}
