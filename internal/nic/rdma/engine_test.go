package rdma

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

const memSize = 1 << 20

// end is one end of a connection in a test: an Engine with its guest's memory.
type end struct {
	*Engine
	t     testing.TB
	space *dma.Space
	mem   []byte // its guest's memory, at address 0
	ip    netip.Addr
	pd    uint32
	cq    uint32
	mr    uint32 // key of an MR of all of mem, with all access; its addresses begin at base
	rings int
	mtu   uint16
	pages []control.PageRequest // what Ask got; owner.answer removes them
	file  *dma.File             // the file of mem
	noP2P bool
	box   fakeBox
}

const base = 0x7000_0000_0000

// noRandom makes numbers predictable: an Engine's keys count from 0x400 on, and its queue pairs from 0x100 on, as in
// goldenHeads.
type noRandom struct{}

func (noRandom) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func newEnd(t testing.TB, n byte) *end {
	t.Helper()
	files := dma.NewFiles()
	d := &end{t: t, space: dma.NewSpace(fmt.Sprint("guest", n), files), ip: netip.AddrFrom4([4]byte{10, 0, 0, n}),
		mtu: 9000}
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	testkit.OK(t, err)
	f := os.NewFile(uintptr(fd), "guest")
	defer f.Close()
	testkit.OK(t, f.Truncate(memSize))
	testkit.OK(t, d.space.Add(dma.Map{IOVA: 0, Size: memSize, FD: fd}))
	d.file = testkit.Must(files.Open(fd, memSize))(t)
	t.Cleanup(d.file.Close)
	d.mem, err = unix.Mmap(fd, 0, memSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	testkit.OK(t, err)
	d.Engine = New(Config{MAC: wire.MAC{2, 0, 0, 0, 0, n}, MTU: func() uint16 { return d.mtu }, Space: d.space,
		Buffer:  func(uint32) (*dma.Region, uint64, uint64, bool) { return nil, 0, 0, false },
		GPU:     func(id uint16) *dma.Region { return d.gpu(id) },
		Mailbox: func(uint16, uint64) (Mailbox, error) { return &d.box, nil },
		Direct:  func(segs []dma.Segment) bool { return !d.noP2P },
		Wake:    func() {}, Tell: func(uint32) { d.rings++ },
		Ask:    func(r control.PageRequest) { d.pages = append(d.pages, r) },
		Random: noRandom{}}, 1)
	t.Cleanup(func() {
		d.Close()
		testkit.NoError(t, d.space.Close())
		testkit.NoError(t, unix.Munmap(d.mem))
	})
	d.pd = testkit.Must(d.AddPD())(t)
	d.cq = testkit.Must(d.AddCQ(MaxWRs))(t)
	d.mr = d.guest(control.AccessLocalWrite|control.AccessRemoteWrite|control.AccessRemoteRead, base, 0, memSize)
	return d
}

// guest makes an MR of guest memory [off, off+n), whose addresses begin at va.
func (d *end) guest(access uint8, va, off, n uint64) uint32 {
	d.t.Helper()
	key, err := d.AddMR(control.MR{PD: d.pd, Kind: control.MRGuest, Access: access, VA: va, Len: n,
		Ranges: []control.MRRange{{IOVA: off, Len: n}}})
	testkit.OK(d.t, err)
	return key
}

// pair is two ends with connected queue pairs.
type pair struct {
	a, b   *end
	qa, qb uint32
	// fate says what happens to a frame. late: run gives it to the receiver later, once. Otherwise it arrives copies
	// times. nil: each frame arrives once, without delay.
	fate   func(p *wire.Packet) (copies int, late bool)
	late   []lateFrame
	frames int
}

// lateFrame is a frame that later ones may overtake.
type lateFrame struct {
	from, to *end
	frame    []byte
	p        wire.Packet
}

func newPair(t testing.TB, change func(p *control.QPPath)) *pair {
	t.Helper()
	p := &pair{a: newEnd(t, 1), b: newEnd(t, 2)}
	p.qa, p.qb = p.connect(change)
	return p
}

func (p *pair) connect(change func(p *control.QPPath)) (qa, qb uint32) {
	a, b := p.a, p.b
	t := a.t
	t.Helper()
	qa = testkit.Must(a.AddQP(control.QP{PD: a.pd, SendCQ: a.cq, RecvCQ: a.cq, MaxSend: 64, MaxRecv: 64}))(t)
	qb = testkit.Must(b.AddQP(control.QP{PD: b.pd, SendCQ: b.cq, RecvCQ: b.cq, MaxSend: 64, MaxRecv: 64}))(t)
	psn := [2]uint32{0xfffff0, 0x7ffffe} // soon the first wraps, and the second passes half of the numbers
	for i, d := range []*end{a, b} {
		peer := []*end{b, a}[i]
		path := control.QPPath{QPN: []uint32{qa, qb}[i], RemoteQPN: []uint32{qb, qa}[i], SendPSN: psn[i], RecvPSN: psn[1-i],
			Local: d.ip, Remote: peer.ip, MAC: peer.c.MAC, MTU: 1024, Timeout: 14, Retries: 7, RNR: 7, RNRTimer: 12,
			Reads: 4, ReadDepth: 4}
		if change != nil {
			change(&path)
		}
		testkit.OK(t, d.ConnectQP(path))
	}
	return qa, qb
}

// step takes a frame that one end (from) sends, and gives it to the other end (to), as fate says; false: there is
// none.
func (p *pair) step(from, to *end) bool {
	from.TellAll()
	var pkt wire.Packet
	token := from.space.Enter()
	defer from.space.Leave(token)
	if !from.Next(0, &pkt) {
		return false
	}
	p.frames++
	copies, late := 1, false
	if p.fate != nil {
		copies, late = p.fate(&pkt)
	}
	if late {
		p.late = append(p.late, lateFrame{from: from, to: to, frame: bytesOf(&pkt), p: pkt})
		return true
	}
	for range copies {
		p.give(to, &pkt)
	}
	return true
}

func (p *pair) give(to *end, pkt *wire.Packet) {
	in := to.space.Enter()
	defer to.space.Leave(in)
	to.Receive(dma.NewCopier(), pkt)
}

func bytesOf(p *wire.Packet) []byte {
	b := make([]byte, p.PayloadLen)
	if _, err := dma.NewCopier().Read(b, p.Payload); err != nil {
		panic(err)
	}
	return b
}

// with makes a packet with the same headers and another payload.
func with(p *wire.Packet, b []byte) *wire.Packet {
	c := *p
	c.Payload = []dma.Segment{dma.NewBuffer(b, dma.Private).Segment(0, uint32(len(b)))}
	c.PayloadLen = uint32(len(b))
	return &c
}

// run moves frames until no end has a frame to send and none waits for a timer or for pages. It is called in a synctest
// bubble, and fails the test after 100,000 rounds.
func (p *pair) run() {
	p.a.t.Helper()
	for range 100_000 {
		some := p.step(p.a, p.b)
		some = p.step(p.b, p.a) || some
		if len(p.late) > 0 && (!some || len(p.late) > 3) {
			l := p.late[0]
			p.late = p.late[1:]
			p.give(l.to, with(&l.p, l.frame))
			some = true
		}
		if some {
			continue
		}
		if !p.waits() {
			return
		}
		time.Sleep(time.Millisecond) // of the bubble's time
		synctest.Wait()
	}
	p.a.t.Fatalf("no end: %+v %+v", testkit.Must(p.a.QPStatus(p.qa))(p.a.t), testkit.Must(p.b.QPStatus(p.qb))(p.a.t))
}

func (p *pair) waits() bool {
	for _, d := range []*end{p.a, p.b} {
		for i := range d.qps.slots {
			if q := d.qps.slots[i].Load(); q != nil && q.due.Load() != 0 {
				return true
			}
		}
		d.paging.mu.Lock()
		asked := len(d.paging.requests) > 0
		d.paging.mu.Unlock()
		if asked {
			return true
		}
	}
	return false
}

func (d *end) post(qpn uint32, wrs ...control.WR) {
	d.t.Helper()
	testkit.OK(d.t, d.PostSend(control.Post{QPN: qpn, WRs: wrs}))
}

func (d *end) poll() []control.WC {
	d.t.Helper()
	c, err := d.PollCQ(control.Poll{CQ: d.cq, Max: 1000})
	testkit.OK(d.t, err)
	return c.WCs
}

// sge returns [off, off+n) of mem as a piece of d.mr.
func (d *end) sge(off, n uint64) control.SGE {
	return control.SGE{VA: base + off, Len: uint32(n), Key: d.mr}
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// Messages of each kind arrive, also if the link loses, doubles and reorders frames.
func TestMessagesArrive(t *testing.T) {
	for _, loss := range []bool{false, true} {
		t.Run(fmt.Sprint("loss=", loss), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPair(t, nil)
				rnd := rand.New(rand.NewPCG(1, 2))
				if loss {
					p.fate = func(*wire.Packet) (int, bool) {
						switch n := rnd.IntN(100); {
						case n < 5:
							return 0, false
						case n < 8:
							return 2, false
						case n < 10:
							return 0, true
						}
						return 1, false
					}
				}
				for i := range p.a.mem {
					p.a.mem[i], p.b.mem[i] = byte(rnd.Uint32()), byte(rnd.Uint32())
				}
				wantA, wantB := slices.Clone(p.a.mem), slices.Clone(p.b.mem)
				id := uint64(0)
				for round, n := range []uint64{0, 1, 3, 1023, 1024, 1025, 2048, 5000, 40_000, 200_000} {
					for op := control.WRWrite; op <= control.WRSendImm; op++ {
						id++
						from, to := uint64(rnd.IntN(int(memSize-n+1))), uint64(rnd.IntN(int(memSize-n+1)))
						w := control.WR{ID: id, Op: op, Flags: control.WRSignaled, SGEs: []control.SGE{p.a.sge(from, n)}}
						if n > 10 { // in three pieces
							w.SGEs = []control.SGE{p.a.sge(from, 7), p.a.sge(from+7, n-9), p.a.sge(from+n-2, 2)}
						}
						switch op {
						case control.WRRead:
							copy(wantA[from:from+n], wantB[to:to+n])
						default:
							copy(wantB[to:to+n], wantA[from:from+n])
						}
						want := []control.WC{{ID: id, QPN: p.qa, Op: op}}
						if op == control.WRRead {
							want[0].Len = uint32(n)
						}
						var got []control.WC
						if op == control.WRWriteImm || op == control.WRSendImm {
							w.Imm = uint32(id) | 1<<31
						}
						if op == control.WRWriteImm || op == control.WRSend || op == control.WRSendImm {
							r := control.WR{ID: 1000 + id, Op: control.WRRecv, SGEs: []control.SGE{p.b.sge(to, n)}}
							testkit.OK(t, p.b.PostRecv(control.Post{QPN: p.qb, WRs: []control.WR{r}}))
							want = append(want, control.WC{ID: 1000 + id, QPN: p.qb, Op: control.WRRecv, Len: uint32(n), Imm: w.Imm,
								HasImm: w.Imm != 0})
						}
						if op != control.WRSend && op != control.WRSendImm {
							w.Key, w.Remote = p.b.mr, base+to
						}
						p.a.post(p.qa, w)
						p.run()
						got = append(p.a.poll(), p.b.poll()...)
						if !slices.Equal(got, want) {
							t.Fatalf("round %d: completions %+v, not %+v", round, got, want)
						}
						if !bytes.Equal(p.a.mem, wantA) || !bytes.Equal(p.b.mem, wantB) {
							t.Fatalf("round %d: operation %d of %d bytes: wrong bytes", round, op, n)
						}
					}
				}
				s := testkit.Must(p.a.QPStatus(p.qa))(p.a.t)
				if again := s.Out.AgainPackets > 0; again != loss {
					t.Errorf("sent again: %d packets", s.Out.AgainPackets)
				}
				t.Logf("%d frames; %+v", p.frames, s.Out)
			})
		})
	}
}

// Many concurrent work requests, in both directions, complete although the link loses and delays packets.
func TestManyAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, nil)
		rnd := rand.New(rand.NewPCG(3, 4))
		p.fate = func(*wire.Packet) (int, bool) {
			if rnd.IntN(50) == 0 {
				return 0, rnd.IntN(2) == 0
			}
			return 1, false
		}
		const n = 8000
		for i := range p.a.mem {
			p.a.mem[i], p.b.mem[i] = byte(rnd.Uint32()), byte(rnd.Uint32())
		}
		wantA, wantB := slices.Clone(p.a.mem), slices.Clone(p.b.mem)
		for i := range uint64(20) { // of each end's memory the lower half is written, the upper one read
			lo, hi := i*2*n, memSize/2+i*2*n
			ops := []control.WR{
				{ID: i, Op: control.WRWrite, Key: p.b.mr, Remote: base + lo, SGEs: []control.SGE{p.a.sge(hi, n)}},
				{ID: 100 + i, Op: control.WRRead, Flags: control.WRSignaled, Key: p.b.mr, Remote: base + hi,
					SGEs: []control.SGE{p.a.sge(lo, n)}},
			}
			p.a.post(p.qa, ops...)
			copy(wantB[lo:lo+n], p.a.mem[hi:hi+n])
			copy(wantA[lo:lo+n], p.b.mem[hi:hi+n])
			p.b.post(p.qb, control.WR{ID: 200 + i, Op: control.WRWrite, Flags: control.WRSignaled, Key: p.a.mr,
				Remote: base + lo + n, SGEs: []control.SGE{p.b.sge(hi+n, n)}})
			copy(wantA[lo+n:lo+2*n], p.b.mem[hi+n:hi+2*n])
		}
		p.run()
		if !bytes.Equal(p.a.mem, wantA) || !bytes.Equal(p.b.mem, wantB) {
			t.Fatal("wrong bytes")
		}
		a, b := p.a.poll(), p.b.poll()
		if len(a) != 20 || len(b) != 20 {
			t.Fatalf("%d and %d completions, not 20 each: unsignaled ones have none", len(a), len(b))
		}
		for i, w := range a {
			if w.ID != 100+uint64(i) || w.Status != control.WCSuccess || w.Len != n {
				t.Errorf("completion %d: %+v", i, w)
			}
		}
	})
}
