package badinput

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/vfiotest"
)

// gveTable has the rows of vfio-user, of a gVNIC's registers, its admin queue and its rings.
var gveTable = []row{
	{costly, vfio, "as many mappings as there may be, and one more", "the last one is refused", func(w *world) {
		c := w.vfio()
		const most = 65535 // less that of the client's memory, and two words
		fd := c.mem.FD()
		for i := range uint64(most) {
			c.posted(vfiouser.CmdDMAMap, vfiotest.DMAMap(3, i%2<<12, 1<<40+i<<13, 4096), fd)
		}
		w.errno(c.MapRange(1<<50, 4096, fd, 0, true), unix.ENOSPC)
		testkit.OK(w.t, c.UnmapAll())
	}, bound{memory: 64 * mib, peak: 96 * mib, cpu: 4 * few.cpu, lines: few.lines, stall: few.stall}},
	{costly, vfio, "accesses outside of regions, across their ends, and as long as they may be", "refused",
		func(w *world) {
			c := w.vfio()
			long := make([]byte, 1<<20)
			for i := range reps {
				switch i % 4 {
				case 0:
					w.errno(c.Read(registersBAR, ^uint64(0)-uint64(i), long[:8]), unix.EINVAL)
				case 1:
					w.errno(c.Write(doorbellsBAR, 1<<12-2+uint64(i)<<20, long[:8]), unix.EINVAL)
				case 2:
					w.errno(c.Read(9+i, 0, long[:8]), unix.EINVAL)
				default:
					w.errno(c.Write(registersBAR, 1, long[:1<<16]), unix.EINVAL)
				}
			}
		}, few},
	{slow, vfio, "a client that asks for all it can and reads no answer", "it is ended when it hangs up", func(w *world) {
		c := w.vfio()
		testkit.OK(w.t, c.SetTimeout(200*time.Millisecond)) // then the socket is full, as nobody reads
		ask := vfiotest.Message{Header: vfiouser.Header{Command: vfiouser.CmdRegionRead},
			Body: vfiotest.Access(registersBAR, 0, 4096)}
		for range reps {
			if c.Send(ask) != nil {
				break
			}
		}
	}, few},
	{descriptor, vfio, "pipes, sockets, devices, directories and files that are read-only, as memory", "refused",
		func(w *world) {
			c := w.vfio()
			fds := w.oddFiles()
			for i := range reps {
				w.refusal(c.MapRange(1<<40, 4096, fds[i%len(fds)], 0, true))
			}
		}, few},
	{descriptor, vfio, "files as interrupts, and descriptors with messages that take none", "refused", func(w *world) {
		c := w.vfio()
		fds := w.oddFiles()
		fds = fds[:len(fds)-1] // not the eventfd
		for i := range reps {
			if i%2 == 0 {
				_, err := c.Request(vfiouser.CmdSetIRQs, vfiotest.IRQSet(0x24, vfiouser.IRQMSIX, 0, 1), -1, fds[i%len(fds)])
				w.refusal(err)
				continue
			}
			_, err := c.Request(vfiouser.CmdGetInfo, make([]byte, 16), -1, fds[:6]...)
			w.refusal(err)
		}
	}, few},
	{repeated, vfio, "commands of migration, with descriptors", "refused", func(w *world) {
		c := w.vfio()
		fds := w.oddFiles()
		all := []vfiouser.Command{vfiouser.CmdFeature, vfiouser.CmdMigDataRead, vfiouser.CmdMigDataWrite,
			vfiouser.CmdDirtyPages, vfiouser.CmdDMARead, vfiouser.CmdGetRegionIOFDs}
		for i := range reps {
			_, err := c.Request(all[i%len(all)], make([]byte, 64), -1, fds[:i%4]...)
			w.errno(err, unix.ENOTSUP)
		}
	}, quiet},
	{repeated, vfio, "a connection, with memory", "it is served", func(w *world) {
		for range reps / 4 { // of 64 MiB, and five messages
			w.hangUp(w.vfio())
		}
	}, few},
	{repeated, vfio, "a message that says it is 4 GiB long", "the connection is ended", func(w *world) {
		for range reps {
			c := w.s.dial(w.attacker.port)
			_, _ = c.Write([]byte{1, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0})
			ended(w.t, c)
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
						continue // they are there
					}
					c.slot(most, 0x4242)
				}
				c.write(regDoorbell, c.count)
			}
		}, bound{memory: few.memory, peak: few.peak, cpu: 3 * few.cpu, lines: quiet.lines, stall: few.stall}},
	{costly, registers, "queues with rings of wrong sizes, at addresses that are nowhere", "refused", func(w *world) {
		c := w.vfio()
		c.start(slots)
		c.configure()
		sizes := []uint16{0, 1, 63, 65, 8192, 65535, largest}
		for i := range reps {
			n, at := sizes[i%len(sizes)], uint64(i)<<52|1<<51
			s := c.slot(slots, opCreateTx, uint32(0), uint32(0), at, at, uint32(rawAddresses), uint32(0), at, n, n)
			c.write(regDoorbell, c.count)
			if st := be.Uint32(s[4:]); st == passed {
				w.t.Fatal("the queue is there")
			}
		}
	}, few},
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
					uint16(64), uint16(64)) // it is there
				refused(opDescribe, c.here, uint32(1), uint32(i%40)) // less than a descriptor
				refused(opReportTime, uint64(40), c.here)            // not offered
				refused(opReportStats, uint64(8)<<(i%40), uint64(i)<<52|1<<51, uint64(1))
				c.command(opDestroyTx, uint32(0))
				refused(opDestroyTx, uint32(0)) // it is gone
				refused(opCreateTx, uint32(0), uint32(0), uint64(1)<<60, tx.ring, uint32(rawAddresses), uint32(0), tx.compl,
					uint16(64), uint16(64)) // nowhere to write where its doorbell is
				c.write(regDoorbell, c.count+slots+1+uint32(i)) // the admin queue stops
				c.write(regDriverStatus, driverReset)
				c.start(slots)
				c.configure()
			}
		}, quiet},
	{repeated, registers, "flow rules of any type", "refused, or they are there until reset", func(w *world) {
		c := w.vfio()
		c.start(slots)
		const inner, length = 0x101, 92 // CONFIGURE_FLOW_RULE
		at := c.alloc(length)
		for i := range reps {
			b := c.at(at, length)
			for j := range b {
				b[j] = byte(i*j>>3 ^ j)
			}
			be.PutUint16(b[0:], uint16(i%4))
			be.PutUint16(b[4:], uint16(i%12))
			be.PutUint16(b[6:], uint16(i%5))
			if i%3 == 0 {
				clear(b[48:88])
				be.PutUint32(b[80:], 0xffffffff) // ports, or an SPI
			}
			c.slot(slots, opExtended, uint32(inner), uint32(length), at)
			c.write(regDoorbell, c.count)
		}
	}, quiet},
	{repeated, registers, "all registers written, and a driver's version without an end", "as they are made",
		func(w *world) {
			c := w.vfio()
			all := bytes.Repeat([]byte{'v'}, 64)
			for range reps {
				testkit.OK(w.t, c.Write(registersBAR, 0, all))
				for range 64 {
					testkit.OK(w.t, c.Post(registersBAR, regDriverVersion, all[:1]))
				}
			}
		}, few},
	{repeated, registers, "the device brought up and reset", "it is done", func(w *world) {
		c := w.vfio()
		c.start(slots)
		c.configure()
		tx, rx := c.queue(64, 16, 8), c.queue(64, 32, 32)
		for i := range reps {
			c.createTx(tx)
			c.createRx(rx)
			if i%2 == 0 {
				c.write(regDriverStatus, driverReset)
			} else {
				testkit.OK(w.t, c.Reset())
			}
			c.start(slots)
			c.configure()
		}
	}, few},

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
			c.packet(tx, 1<<60, 4096, true) // nowhere
			c.show(txDoorbells, tx)
			c.command(opDestroyTx, uint32(0))
			clear(c.at(tx.compl, 256*8))
			c.createTx(tx)
		}
	}, quiet},
	{repeated, gveTx, "doorbells of queues that are not, and beyond rings", "nothing, or the queue stops",
		func(w *world) {
			c := w.vfio()
			_, _ = c.up(256, 64)
			for i := range reps {
				for _, at := range []int{0, 63, txDoorbells, txDoorbells + 1, rxDoorbells, rxDoorbells + 700} {
					_ = c.bell(at, uint32(i)<<22|0xffff)
				}
			}
			testkit.OK(w.t, c.Read(registersBAR, regEvents, make([]byte, 4))) // they are served
		}, few},

	{repeated, gveRx, "intervals of interrupts of any length, on vectors with and without an eventfd, under traffic",
		"interrupts come when they may, or not at all", func(w *world) {
			c := w.vfio()
			tx, rx := c.up(256, 256)
			event := testkit.Must(vfiotest.NewEvent())(w.t)
			defer event.Close()
			testkit.OK(w.t, c.SetIRQ(vfiouser.IRQMSIX, 1, event))
			w.meet(c, tx)
			for i := range uint32(reps) {
				c.buffer(rx, c.here&^4095)
				c.show(rxDoorbells, rx)
				for v := range 2 {
					testkit.OK(w.t, c.bell(irqDoorbells+v, 1|i*0x9e37<<5))
				}
				if i%50 == 0 {
					w.floodMAC(c.mac, 50)
				}
			}
		}, few},
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
	{costly, gveRx, "buffers that are nowhere", "the queue stops", func(w *world) {
		c := w.vfio()
		tx, rx := c.up(256, largest)
		w.meet(c, tx)
		for i := range uint64(largest - 1) {
			c.buffer(rx, 1<<60+i<<12)
		}
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
			clear(c.at(rx.compl, 64*32))
			c.createRx(rx)
			c.buffer(rx, buf)
			c.show(rxDoorbells, rx)
			if i%50 == 0 {
				w.floodMAC(c.mac, 50)
			}
		}
	}, few},
}

// high is where a client's memory lies once more, page by page.
const high = 1 << 44

// scatter maps 64 pages, none of which lies behind the one before in the file, at one address after another.
func (g *gveClient) scatter() {
	g.t.Helper()
	for i := range uint64(64 + 8) {
		testkit.OK(g.t, g.MapRange(high+i<<12, 4096, g.mem.FD(), ramSize-(i+1)<<13, true))
	}
}

// vfio is the attacker as a vfio-user client, whose memory is mapped.
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

// errno says that a request was refused, with one of these.
func (w *world) errno(err error, want ...unix.Errno) {
	w.t.Helper()
	var e *vfiotest.Error
	if !errors.As(err, &e) || !slices.Contains(want, e.Errno) {
		w.t.Fatalf("%v, wanted %v", err, want)
	}
}

// refusal says that a request was refused, for whatever reason.
func (w *world) refusal(err error) {
	w.t.Helper()
	if e := (*vfiotest.Error)(nil); !errors.As(err, &e) {
		w.t.Fatalf("not refused: %v", err)
	}
}

// meet has the switch learn a client's address.
func (w *world) meet(c *gveClient, tx *gveQueue) {
	w.t.Helper()
	c.send(tx, frameTo(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, c.mac))
}
