package nvmetcp

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/testkit"
)

const (
	dataSize = 72 << 20
	poolSize = 1 << 20
	poison   = 0xa5
)

type rig struct {
	gpu    *plain.GPU
	dev    *plain.Device
	target *target
	conf   Config
}

func newRig(t testing.TB, s script) *rig {
	t.Helper()
	testkit.LeavesNothing(t)
	r := &rig{target: newTarget(t, s)}
	r.gpu = testkit.Must(plain.NewGPU(dataSize + poolSize))(t)
	r.dev = testkit.Must(plain.New(plain.Options{GPUs: []*plain.GPU{r.gpu}}))(t)
	t.Cleanup(func() {
		testkit.OK(t, r.dev.Close())
		testkit.OK(t, r.gpu.Close())
	})
	register := func(off, size uint64) devmem.Buffer { return testkit.Must(r.dev.Register(0, off, size))(t) }
	_, from := testkit.Loopback()
	r.conf = Config{Device: r.dev, Memory: plain.NewMemory(r.gpu), Target: r.target.addr(), NQN: testNQN, Local: from,
		Queue: 1, Data: register(0, dataSize), Pool: register(dataSize, poolSize), Depth: 64, Timeout: 20 * time.Second}
	return r
}

func (r *rig) data() []byte { return r.gpu.Bytes()[:dataSize] }

func (r *rig) open(t testing.TB) *Device {
	t.Helper()
	d := testkit.Must(Open(context.Background(), r.conf))(t)
	t.Cleanup(func() {
		testkit.OK(t, d.Close())
		for _, q := range r.dev.Stats().Queues {
			if q.Binding != 0 {
				t.Errorf("queue %d is bound", q.Queue)
			}
		}
	})
	return d
}

func clean(t testing.TB, what string, b []byte) {
	t.Helper()
	if bytes.Count(b, []byte{poison}) == len(b) {
		return
	}
	for off, x := range b {
		if x != poison {
			t.Fatalf("%s: byte %#x has %#x", what, off, x)
		}
	}
}

var poisoned = bytes.Repeat([]byte{poison}, 1<<20)

func spoil(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, poisoned):]
	}
}

// places has the free offsets in memory for operations of bs bytes, with gaps between the operations' memory.
type places struct {
	bs   uint64
	free []uint64
}

func newPlaces(bs uint64, depth int) *places {
	p := &places{bs: bs}
	off := uint64(0)
	for i := range depth {
		off += uint64(1 + 77*i%500)
		p.free = append(p.free, off)
		off += bs
	}
	return p
}

func (p *places) take() uint64 {
	off := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return off
}

func (p *places) put(off uint64) { p.free = append(p.free, off) }

// extent returns the offset 4096 bytes behind the last place. Call it when all places are free.
func (p *places) extent() uint64 {
	end := uint64(0)
	for _, off := range p.free {
		end = max(end, off+p.bs)
	}
	return end + 4096
}

// play performs n operations of bs bytes at random offsets of the device, and checks the data, the memory beside the
// operations, and the byte counts of Stats. Then it restores the target's store.
func (r *rig) play(t *testing.T, d *Device, bs uint64, depth, n int, write func(i int) bool) {
	t.Helper()
	mem := newPlaces(bs, depth)
	extent := mem.extent()
	spoil(r.data()[:extent])
	random := rand.New(rand.NewPCG(bs, uint64(depth)))
	// no two operations of a play share a block of the device
	lbas := random.Perm(int(testStore/bs) - 1)
	written := make(map[uint64][]byte)
	busy := make(map[uint64]bool)
	i, before := 0, d.Stats()
	var reads, writes uint64
	err := d.Do(t.Context(), depth, func() (block.Op, bool) {
		if i == n {
			return block.Op{}, false
		}
		o := block.Op{Write: write(i), Off: uint64(lbas[i])*bs + testBlock, Len: bs, Mem: mem.take()}
		if o.Write {
			written[o.Off] = original[(uint64(i)*7919*8)%(testStore-bs):][:bs]
			copy(r.data()[o.Mem:], written[o.Off])
		}
		i++
		busy[o.Mem] = true
		return o, true
	}, func(x block.Done) {
		if x.Err != nil || !busy[x.Mem] {
			t.Errorf("%v: %v; under way: %v", x.Op, x.Err, busy[x.Mem])
		}
		delete(busy, x.Mem)
		b := r.data()[x.Mem:][:bs]
		if x.Write {
			writes++
		} else {
			reads++
			if !bytes.Equal(b, original[x.Off:][:bs]) {
				t.Errorf("%v: it has other bytes", x.Op)
			}
		}
		spoil(b)
		mem.put(x.Mem)
	})
	testkit.OK(t, err)
	testkit.Equal(t, "operations", int(reads+writes), n)
	clean(t, fmt.Sprintf("blocks of %d, depth %d", bs, depth), r.data()[:extent])
	r.target.mu.Lock()
	defer r.target.mu.Unlock()
	for off, b := range written {
		if !bytes.Equal(r.target.store[off:][:bs], b) {
			t.Errorf("blocks of %d: what was written at %d is not there", bs, off)
		}
	}
	now := d.Stats()
	testkit.Equal(t, "bytes read", now.Read-before.Read, reads*bs)
	testkit.Equal(t, "bytes written", now.Written-before.Written, writes*bs)
	copy(r.target.store, original)
}

var original = func() []byte {
	b := make([]byte, testStore)
	fill(b, 1)
	return b
}()

// cutDevice makes connections whose RecvDevmem returns at most a random number of bytes, which differs from call to
// call.
type cutDevice struct {
	devmem.Device
	random *rand.Rand
}

type cutConn struct {
	devmem.Conn
	random *rand.Rand
}

func (d *cutDevice) Dial(ctx context.Context, local, remote netip.AddrPort) (devmem.Conn, error) {
	c, err := d.Device.Dial(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	return &cutConn{c, d.random}, nil
}

func (c *cutConn) RecvDevmem(frags []devmem.Frag, linear []byte, flags devmem.RecvFlags) (int, int, int, error) {
	n := 1 + c.random.IntN(1<<c.random.IntN(16))
	return c.Conn.RecvDevmem(frags, linear[:min(n, len(linear))], flags)
}

// variants are pairs of a target's behaviour and settings of the initiator.
var variants = []struct {
	name   string
	script script
	copies bool
	cut    bool // use cutDevice: fragments may end anywhere
	pool   uint64
}{
	{name: "as Linux's"},
	{name: "with SQ flow control", script: script{refuseCATTR: true}},
	{name: "out of order", script: script{seed: 5, gather: 8}},
	{name: "pieces", script: script{piece: 1536, pad: 4, r2t: 20 << 10, maxH2C: 8 << 10, seed: 6, gather: 8}},
	{name: "pieces with responses", script: script{piece: 40 << 10, pad: 104, r2t: 5000, cpda: 31,
		refuseCATTR: true, seed: 7, gather: 8}},
	{name: "serial", script: script{serial: true, r2t: 64 << 10}},
	{name: "no data in capsules", script: script{ioccsz: 4, cpda: 3}},
	{name: "data in capsules elsewhere", script: script{icdoff: 2}},
	{name: "through the host", copies: true},
	{name: "fragments of any length", cut: true},
	{name: "fragments of any length, through the host", script: script{refuseCATTR: true, piece: 2048},
		cut: true, copies: true},
	{name: "the smallest pool", script: script{piece: 3072, refuseCATTR: true}, pool: 16 * devmem.PageSize},
}
