package badinput

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

var be = binary.BigEndian

// Constants of the gVNIC (docs/specs/gve.md), and sizes and an address of the tests.
const (
	registersBAR = 0
	doorbellsBAR = 2

	irqDoorbells = 0x000
	txDoorbells  = 0x400
	rxDoorbells  = 0x800

	regDriverStatus = 0x04
	regDoorbell     = 0x14
	regBaseHi       = 0x20
	regBaseLo       = 0x24
	regLength       = 0x28

	driverRun   = 1
	driverReset = 2

	opDescribe    = 1
	opConfigure   = 2
	opCreateTx    = 5
	opCreateRx    = 6
	opDestroyTx   = 7
	opDestroyRx   = 8
	opReportStats = 0xc
	opReportTime  = 0x11

	slotLen      = 64
	slots        = 64
	rawAddresses = 0xffffffff
	passed       = 1

	gveRing   = 512  // descriptors of a ring of a guest that behaves
	largest   = 4096 // the most descriptors of a ring
	packetLen = 4096 // bytes of a packet buffer
	dmaAt     = 1 << 32
)

// gveClient drives a gVNIC by hand.
type gveClient struct {
	*vfiotest.Client
	t     *testing.T
	port  int
	mac   net.HardwareAddr
	mem   *vfiotest.Memory
	next  uint64
	aq    uint64
	count uint32 // commands since start
	here  uint64 // address to which the NIC writes indices of doorbells
}

func (s *server) gve(t *testing.T, port int) *gveClient {
	t.Helper()
	g := &gveClient{t: t, port: port, mac: macOf(port), Client: testkit.Must(vfiotest.Connect(s.dial(port)))(t),
		mem: testkit.Must(vfiotest.NewMemory(ramSize))(t)}
	t.Cleanup(g.mem.Close)
	testkit.OK(t, g.Map(dmaAt, g.mem))
	return g
}

// alloc returns the address of n zeroed bytes on new pages.
func (g *gveClient) alloc(n int) (iova uint64) {
	iova = dmaAt + g.next
	g.next += (uint64(n) + 4095) &^ 4095
	if g.next > ramSize {
		g.t.Fatal("the client's memory is used up")
	}
	clear(g.bytesAt(iova, n))
	return iova
}

func (g *gveClient) bytesAt(iova uint64, n int) []byte { return g.mem.Bytes()[iova-dmaAt:][:n] }

func (g *gveClient) write(reg uint64, v uint32) {
	g.t.Helper()
	testkit.OK(g.t, g.Write(registersBAR, reg, be.AppendUint32(nil, v)))
}

func (g *gveClient) bell(index int, v uint32) error {
	return g.Post(doorbellsBAR, 4*uint64(index), le.AppendUint32(nil, v))
}

// start starts the admin queue with n slots.
func (g *gveClient) start(n int) {
	g.t.Helper()
	if g.aq == 0 {
		g.aq, g.here = g.alloc(512*slotLen), g.alloc(4096)
	}
	testkit.OK(g.t, g.Write(registersBAR, regLength, be.AppendUint16(nil, uint16(n*slotLen))))
	g.write(regBaseHi, uint32(g.aq>>32))
	g.write(regBaseLo, uint32(g.aq))
	g.write(regDriverStatus, driverRun)
	g.count = 0
}

// slot writes a command to the next of the admin queue's n slots, and returns the slot.
func (g *gveClient) slot(n int, op uint32, vs ...any) []byte {
	s := g.bytesAt(g.aq+uint64(int(g.count)%n)*slotLen, slotLen)
	clear(s)
	be.PutUint32(s, op)
	b := s[:8]
	for _, v := range vs {
		b = testkit.Must(binary.Append(b, be, v))(g.t)
	}
	g.count++
	return s
}

// command sends a command, which must pass.
func (g *gveClient) command(op uint32, vs ...any) {
	g.t.Helper()
	s := g.slot(slots, op, vs...)
	g.write(regDoorbell, g.count)
	if st := be.Uint32(s[4:]); st != passed {
		g.t.Fatalf("command %#x: status %#x", op, st)
	}
}

func (g *gveClient) configure() {
	g.t.Helper()
	g.command(opConfigure, uint64(0), g.here, uint32(0), uint32(2), uint32(64), uint32(0), uint8(3))
}

type gveQueue struct {
	size         int
	ring, compl  uint64
	posted, seen uint32
}

func (g *gveClient) queue(size, descLen, complLen int) *gveQueue {
	return &gveQueue{size: size, ring: g.alloc(size * descLen), compl: g.alloc(size * complLen)}
}

func (g *gveClient) createTx(q *gveQueue) {
	g.t.Helper()
	g.command(opCreateTx, uint32(0), uint32(0), g.here+1024, q.ring, uint32(rawAddresses), uint32(0), q.compl,
		uint16(q.size), uint16(q.size))
	q.posted, q.seen = 0, 0
}

func (g *gveClient) createRx(q *gveQueue) {
	g.t.Helper()
	g.command(opCreateRx, uint32(0), uint64(0), uint32(1), g.here+2048, q.compl, q.ring, uint32(rawAddresses),
		uint16(q.size), uint16(packetLen), uint16(q.size), uint16(0), uint16(0))
	q.posted, q.seen = 0, 0
}

func (g *gveClient) buffer(q *gveQueue, addr uint64) {
	slot := uint64(q.posted) % uint64(q.size)
	b := g.bytesAt(q.ring+slot*32, 32)
	clear(b)
	le.PutUint16(b, uint16(slot))
	le.PutUint64(b[8:], addr)
	q.posted++
}

func (g *gveClient) packet(q *gveQueue, addr uint64, n int, last bool) {
	b := g.bytesAt(q.ring+uint64(q.posted)%uint64(q.size)*16, 16)
	clear(b)
	le.PutUint64(b, addr)
	b[8] = 0x0c // GVE_TX_PKT_DESC_DTYPE_DQO
	if last {
		b[8] |= 1 << 5
	}
	le.PutUint16(b[14:], uint16(n))
	q.posted++
}

// segmented makes the NIC cut the following packet into segments.
func (g *gveClient) segmented(q *gveQueue) {
	b := g.bytesAt(q.ring+uint64(q.posted)%uint64(q.size)*16, 16)
	clear(b)
	le.PutUint32(b, 1<<20)
	le.PutUint16(b[4:], 1448)
	b[6] = 54
	b[8] = 0x05 | 1<<5 // GVE_TX_TSO_CTX_DESC_DTYPE_DQO
	q.posted++
}

func (g *gveClient) show(doorbell int, q *gveQueue) {
	g.t.Helper()
	testkit.OK(g.t, g.bell(doorbell, q.posted%uint32(q.size)))
}

// completion returns the next completion of n bytes, or nil if it has not come. generation is the generation bit of the
// word at off.
func (g *gveClient) completion(q *gveQueue, n, off int, generation uint32) []byte {
	b := g.bytesAt(q.compl+uint64(q.seen)%uint64(q.size)*uint64(n), n)
	want := generation // value of the generation bit in the first lap
	if int(q.seen)/q.size%2 == 1 {
		want = 0
	}
	if dma.LoadWord(b[off:])&generation != want {
		return nil
	}
	q.seen++
	return b
}

func (g *gveClient) sent(q *gveQueue) bool         { return g.completion(q, 8, 0, 1<<15) != nil }
func (g *gveClient) received(q *gveQueue) []byte   { return g.completion(q, 32, 4, 1<<14) }
func (g *gveClient) put(iova uint64, frame []byte) { copy(g.bytesAt(iova, len(frame)), frame) }

func (g *gveClient) up(txSize, rxSize int) (tx, rx *gveQueue) {
	g.t.Helper()
	g.start(slots)
	g.configure()
	tx, rx = g.queue(txSize, 16, 8), g.queue(rxSize, 32, 32)
	g.createTx(tx)
	g.createRx(rx)
	return tx, rx
}

// send sends frames and waits until they are completed.
func (g *gveClient) send(q *gveQueue, frames ...[]byte) {
	g.t.Helper()
	if g.next+1<<20 > ramSize {
		g.t.Fatal("no memory for frames")
	}
	addr := uint64(dmaAt + ramSize - 1<<20)
	for len(frames) > 0 {
		n := min(len(frames), q.size/2, 256)
		for i, f := range frames[:n] {
			g.put(addr+uint64(i)*2048, f)
			g.packet(q, addr+uint64(i)*2048, len(f), true)
		}
		frames = frames[n:]
		g.show(txDoorbells, q)
		testkit.Eventually(g.t, "the frames come back", func() bool {
			for n > 0 && g.sent(q) {
				n--
			}
			return n == 0
		})
	}
}

// gveGuest attaches an innocent guest on a gVNIC.
func (s *server) gveGuest(port int) *guest {
	s.t.Helper()
	g := s.gve(s.t, port)
	guest := &guest{mac: g.mac, came: make(chan *[]byte, 2), control: func() uint64 { return 0 }}
	tx, rx := g.up(gveRing, gveRing)
	const vector = 1
	event := testkit.Must(vfiotest.NewEvent())(s.t)
	testkit.OK(s.t, g.SetIRQ(vfiouser.IRQMSIX, vector, event))
	buffers := g.alloc(gveRing * packetLen)
	var addrs [gveRing]uint64 // address of the buffer at each index of the ring
	post := func(addr uint64) {
		addrs[rx.posted%gveRing] = addr
		g.buffer(rx, addr)
	}
	for i := range gveRing - 1 {
		post(buffers + uint64(i)*packetLen)
	}
	g.show(rxDoorbells, rx)

	frames := g.alloc(gveRing * 2048)
	var mu sync.Mutex
	sending := 0
	guest.transmit = func(frame []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		for sending > 0 && g.sent(tx) {
			sending--
		}
		if sending == gveRing-1 {
			return 0, nil
		}
		addr := frames + uint64(tx.posted)%gveRing*2048
		g.put(addr, frame)
		g.packet(tx, addr, len(frame), true)
		sending++
		return 1, g.bell(txDoorbells, tx.posted%gveRing)
	}

	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for g.bell(irqDoorbells+vector, 1) == nil {
			if _, err := event.Wait(ctx); err != nil {
				return
			}
			for b := g.received(rx); b != nil; b = g.received(rx) {
				addr := addrs[le.Uint16(b[12:])%gveRing]
				guest.receive(g.bytesAt(addr, int(dma.LoadWord(b[4:])&0x3fff)))
				post(addr)
			}
			if g.bell(rxDoorbells, rx.posted%gveRing) != nil {
				return
			}
		}
	})
	s.t.Cleanup(func() {
		cancel()
		done.Wait()
		testkit.OK(s.t, g.Close())
		event.Close()
	})
	return guest
}
