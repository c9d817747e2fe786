package driver

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/vhostuser"
)

// direct is a transport without a device; a test writes the used rings itself. IOVAs are offsets in mem.
type direct struct {
	mem   []byte
	used  int
	feats uint64
	rings map[int]ringAddrs
	kicks int
	sl    *sleeper
}

const directGPU = 1 << 40

// newDirect makes a NIC with two pairs, no polling goroutine, and receive queue 1 bound.
func newDirect(t testing.TB, feats uint64, ring, pages int, src PageSource, r Receiver) (*NIC, *direct) {
	t.Helper()
	mem := testkit.Must(unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	t.Cleanup(func() { unix.Munmap(mem) })
	sl, _ := newTestSleeper(t)
	d := &direct{mem: mem, feats: feats | featsMandatory | virtionet.FMQ | virtionet.FCtrlVQ,
		rings: map[int]ringAddrs{}, sl: sl}
	n := &NIC{t: d, gpus: []GPUInfo{{ID: 3, Addr: directGPU, Size: testGPUSize}}, failed: make(chan struct{})}
	n.opts = Options{QueuePairs: 2, RingSize: ring, PagesPerChain: pages}
	n.opts.fill()
	n.settingUp.Store(true) // so that setUpAgain starts no set-up, which nobody would answer
	testkit.OK(t, n.initialize([]byte{2, 0, 0, 0, 0, 1}, 0))
	n.poller.init(n)
	n.receiver.Store(&r)
	q := n.rx[1]
	testkit.OK(t, q.makeHeaders(0))
	q.split = newSplit(n.gpus[0], src, q.hdrs, n.opts.PagesPerChain)
	testkit.OK(t, q.postSplit(nil))
	return n, d
}

func (d *direct) negotiate() (uint64, error)            { return chooseFeatures(d.feats) }
func (d *direct) config(int, []byte) error              { return errNoConfig }
func (d *direct) pairs() int                            { return 2 }
func (d *direct) controlQueue() int                     { return -1 }
func (d *direct) ringSize(_ int, want uint16) uint16    { return want }
func (d *direct) setupQueue(q int, r ringAddrs) error   { d.rings[q] = r; return nil }
func (d *direct) start() error                          { return nil }
func (d *direct) stopQueue(int) error                   { return errNoReset }
func (d *direct) startQueue(int) error                  { return errNoReset }
func (d *direct) kick(int)                              { d.kicks++ }
func (d *direct) arm() (bool, error)                    { return false, nil }
func (d *direct) sleeper() *sleeper                     { return d.sl }
func (d *direct) watch(func(error), func(string)) error { return nil }
func (d *direct) lost() error                           { return unix.ENODEV }
func (d *direct) halt() error                           { return nil }
func (d *direct) emulated() bool                        { return false }
func (d *direct) close() error                          { return nil }

func (d *direct) alloc(n int) (memory, error) {
	n = (n + PageSize - 1) &^ (PageSize - 1)
	if n > len(d.mem)-d.used {
		return memory{}, unix.ENOMEM
	}
	m := memory{d.mem[d.used : d.used+n], uint64(d.used)}
	d.used += n
	return m, nil
}

func (d *direct) use(vq int, id, n uint32, hdr []byte) {
	r := d.rings[vq]
	if len(hdr) > 0 {
		desc := d.mem[r.desc+16*uint64(id&(uint32(r.size)-1)):]
		addr := le.Uint64(desc)
		if le.Uint16(desc[12:])&4 != 0 {
			addr = le.Uint64(d.mem[addr:])
		}
		if addr < uint64(len(d.mem)) {
			copy(d.mem[addr:], hdr)
		}
	}
	used := d.mem[r.used:]
	idx := le.Uint16(used[2:])
	elem := used[4+8*(idx&(r.size-1)):]
	le.PutUint32(elem, id)
	le.PutUint32(elem[4:], n)
	le.PutUint16(used[2:], idx+1)
}

func (d *direct) next(vq int) (id uint32, ok bool) {
	r := d.rings[vq]
	idx, made := le.Uint16(d.mem[r.used+2:]), le.Uint16(d.mem[r.avail+2:])
	return uint32(le.Uint16(d.mem[r.avail+4+2*uint64(idx&(r.size-1)):])), idx != made
}

func header(flags, gso byte, hdrLen, buffers uint16) []byte {
	var b [netHdrLen]byte
	h := netHdr{flags: flags, gsoType: gso, hdrLen: hdrLen, numBuffers: buffers}
	h.encode(&b)
	return b[:]
}

// pageOwner is a PageSource and a Receiver that records which pages the NIC has.
type pageOwner struct {
	t     testing.TB
	free  []uint64
	lent  []bool
	bytes int
}

func newPageOwner(t testing.TB, pages int) *pageOwner {
	o := &pageOwner{t: t, lent: make([]bool, pages)}
	for i := range pages {
		o.free = append(o.free, uint64(i)*PageSize)
	}
	return o
}

func (o *pageOwner) TakePages(_ int, dst []uint64) int {
	n := copy(dst, o.free)
	for _, p := range o.free[:n] {
		o.lent[p/PageSize] = true
	}
	o.free = append(o.free[:0], o.free[n:]...)
	return n
}

func (o *pageOwner) ReturnPages(_ int, offs []uint64) {
	for _, p := range offs {
		if !o.lent[p/PageSize] {
			o.t.Errorf("page %#x was given back, and is not the NIC's", p)
		}
		o.lent[p/PageSize] = false
		o.free = append(o.free, p)
	}
}

func (o *pageOwner) Receive(frames []RxFrame) {
	for _, f := range frames {
		sum := 0
		for _, p := range f.Payload {
			if p.Len == 0 || p.Len > PageSize || p.Off%PageSize != 0 || p.GPU != 3 {
				o.t.Errorf("range %+v", p)
			}
			o.ReturnPages(f.Queue, []uint64{p.Off})
			sum += int(p.Len)
		}
		if sum != f.PayloadLen || len(f.Header) == 0 || f.Split != (f.Queue == 1) {
			o.t.Errorf("frame %+v", f)
		}
		o.bytes += sum
	}
}
func (o *pageOwner) Completed(int, []uint64) {}
func (o *pageOwner) Wake()                   {}

// Invariant: driver: A device that breaks a rule of virtq or virtio_net_hdr at most stops its own
// NIC; the NIC gives each page back exactly once, in a frame or to the PageSource.
func FuzzDevice(f *testing.F) {
	f.Add(uint8(0), []byte{0, 0, 66, 0, 0, 0, 0, 1, 1, 1, 54, 0, 0, 54, 0, 1})
	f.Add(uint8(1), []byte{4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0})
	f.Add(uint8(7), []byte{1, 0, 78, 32, 0, 54, 0, 2, 1, 0, 16, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, mode uint8, ops []byte) {
		feats := uint64(virtionet.FGuestCsum | virtionet.FGuestTSO4)
		if mode&1 != 0 {
			feats |= vhostuser.FeatureIndirect
		}
		if mode&2 != 0 {
			feats |= vhostuser.FeatureEventIdx
		}
		owner := newPageOwner(t, 1+int(mode>>2)%40)
		total := len(owner.free)
		n, d := newDirect(t, feats, 16, 3, owner, owner)
		for ; len(ops) >= 8; ops = ops[8:] {
			op, id, length := ops[0]%6, uint32(ops[1]), uint32(binary.BigEndian.Uint16(ops[2:]))
			hdr := header(ops[6]&3, ops[6]>>2, binary.BigEndian.Uint16(ops[4:]), uint16(ops[7]))
			switch op {
			case 0, 1, 2:
				vq := 2 * int(op&1)
				if op == 2 {
					vq, hdr = 1, nil
				}
				if next, ok := d.next(vq); id < 128 {
					if !ok {
						continue
					}
					id = next
				}
				d.use(vq, id, length, hdr)
			case 3:
				n.Refill(1)
			case 4:
				if _, err := n.Transmit(0, []TxFrame{{Header: make([]byte, 1+length%3000), Cookie: 1}}); err != nil {
					t.Fatalf("Transmit: %v", err)
				}
			case 5:
				for _, q := range n.rx {
					q.enableCall()
					q.disableCall()
				}
			}
			if _, err := n.round(); err != nil {
				if !errors.Is(err, ErrBroken) {
					t.Fatalf("not the device's fault: %v", err)
				}
				break
			}
		}
		n.rx[1].giveBack()
		if len(owner.free) != total || slices.Contains(owner.lent, true) {
			t.Errorf("%d pages of %d, with the NIC: %v", len(owner.free), total, owner.lent)
		}
	})
}

func TestRefillKeepsNobodyAwake(t *testing.T) {
	owner := newPageOwner(t, 100)
	n, _ := newDirect(t, 0, 16, 1, owner, owner)
	for i := range 4 {
		n.Refill(i - 1)
	}
	if worked, err := n.round(); !worked || err != nil {
		t.Fatal(worked, err)
	}
	for i, q := range n.rx {
		if q.enableCall() {
			t.Errorf("queue %d does not sleep", i)
		}
	}
}

func newQuiet(t testing.TB) (step func()) {
	r := newPageOwner(t, 512)
	n, d := newDirect(t, virtionet.FCsum|virtionet.FGuestCsum|vhostuser.FeatureIndirect|vhostuser.FeatureEventIdx,
		256, 4, r, r)
	frames := []TxFrame{
		{Header: tcpHeader(1448), Device: []Range{{3, 8, 1448}}, NeedsCsum: true, CsumStart: 34, CsumOffset: 16, Cookie: 1},
		{Header: tcpHeader(100), Linear: make([]byte, 100)},
	}
	whole, split := append(header(0, 0, 0, 1), tcpHeader(0)...), append(header(0, 0, 54, 1), tcpHeader(1448)...)
	return func() {
		if k, err := n.Transmit(0, frames); k != 2 || err != nil {
			t.Fatal(k, err)
		}
		for range frames {
			id, _ := d.next(1)
			d.use(1, id, 0, nil)
		}
		id, _ := d.next(0)
		d.use(0, id, uint32(len(whole)), whole)
		id, _ = d.next(2)
		d.use(2, id, uint32(len(split)+1448), split)
		if worked, err := n.round(); !worked || err != nil {
			t.Fatal(worked, err)
		}
	}
}

// Invariant: hot path: Nothing is allocated for a packet.
func TestFramesAllocateNothing(t *testing.T) {
	step := newQuiet(t)
	for range 600 { // so that every slot is used once
		step()
	}
	testkit.Equal(t, "allocations for two frames sent and two received", testing.AllocsPerRun(1000, step), 0)
}

// BenchmarkFrames sends two frames, one with payload in a GPU, and receives two, one of them split.
func BenchmarkFrames(b *testing.B) {
	step := newQuiet(b)
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}
