package virtq

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// A guest's memory in tests is one file, mapped in four pieces, so that adjacent regions do not
// follow each other in the file:
//
//	IOVA 0x0010_0000  1 MiB  file 0x0010_0000  rings
//	IOVA 0x0020_0000  1 MiB  file 0x0030_0000  buffers
//	IOVA 0x0030_0000  1 MiB  file 0x0020_0000  buffers, adjacent to the one before
//	IOVA 0x0050_0000  4 KiB  file 0            read-only
const (
	mib      = 1 << 20
	ringIOVA = 1 * mib
	bufIOVA  = 2 * mib
	seamIOVA = 3 * mib // between the two buffer regions
	endIOVA  = 4 * mib
	roIOVA   = 5 * mib
	fileLen  = 4 * mib
)

type guest struct {
	fd    int
	mem   []byte
	files *dma.Files
	space *dma.Space
}

func newGuest(t testing.TB) *guest {
	t.Helper()
	fd := int(testkit.Memfd(t, fileLen).Fd())
	mem := testkit.Must(unix.Mmap(fd, 0, fileLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	t.Cleanup(func() { unix.Munmap(mem) })
	g := &guest{fd: fd, mem: mem, files: dma.NewFiles()}
	g.space = dma.NewSpace("test", g.files)
	t.Cleanup(func() { g.space.Close() })
	for _, m := range g.maps() {
		testkit.OK(t, g.space.Add(m))
	}
	return g
}

func (g *guest) maps() []dma.Map {
	return []dma.Map{
		{IOVA: ringIOVA, Size: mib, FD: g.fd, FileOffset: 1 * mib},
		{IOVA: bufIOVA, Size: mib, FD: g.fd, FileOffset: 3 * mib},
		{IOVA: seamIOVA, Size: mib, FD: g.fd, FileOffset: 2 * mib},
		{IOVA: roIOVA, Size: pageLen, FD: g.fd, FileOffset: 0, ReadOnly: true},
	}
}

func (g *guest) ring(iova uint64) []byte { return g.mem[iova : ringIOVA+mib] }

// buffer returns the n bytes at iova, or fewer: those up to the seam.
func (g *guest) buffer(iova uint64, n int) []byte {
	switch {
	case iova >= seamIOVA:
		return g.mem[iova-seamIOVA+2*mib:][:n]
	case iova >= bufIOVA:
		return g.mem[iova-bufIOVA+3*mib:][:min(n, int(seamIOVA-iova))]
	}
	return g.mem[iova:][:n]
}

func (g *guest) write(iova uint64, b []byte) {
	for len(b) > 0 {
		n := copy(g.buffer(iova, len(b)), b)
		b = b[n:]
		iova += uint64(n)
	}
}

// ends joins a driver and a device by shared memory.
func (g *guest) ends(t testing.TB, size uint16, indirect, eventIdx bool) (*Driver, *Device) {
	t.Helper()
	_, _, _, total := Layout(size)
	c := DriverConfig{Size: size, Mem: g.ring(ringIOVA), Addr: ringIOVA, EventIdx: eventIdx}
	if indirect {
		c.IndirectAddr = ringIOVA + total
		c.Indirect = g.ring(c.IndirectAddr)[:min(int(size)*8*descLen, mib-int(total))]
	}
	dr := testkit.Must(NewDriver(c))(t)
	desc, avail, used := dr.Addrs()
	dev, err := NewDevice(g.space, Config{Size: size, Desc: desc, Avail: avail, Used: used, Indirect: indirect,
		EventIdx: eventIdx})
	testkit.OK(t, err)
	t.Cleanup(dev.Close)
	return dr, dev
}

// inside runs f inside the guest's space (dma.Space.Enter).
func (g *guest) inside(f func()) {
	defer g.space.Leave(g.space.Enter())
	f()
}

// peek peeks a chain, which must exist.
func peek(t testkit.T, q *Device, c *Chain) {
	t.Helper()
	if ok, err := q.Peek(c); !ok || err != nil {
		t.Fatal("peeked: ", ok, err)
	}
}

func polls(t testing.TB, d *Driver, want ...Used) {
	t.Helper()
	got := make([]Used, len(want)+1)
	if n, err := d.Poll(got); err != nil || !slices.Equal(got[:n], want) {
		t.Fatalf("polled %v, want %v: %v", got[:n], want, err)
	}
}

// raw is a driver that writes anything to the ring.
type raw struct {
	g    *guest
	conf Config
}

func newRaw(g *guest, c Config) *raw { return &raw{g: g, conf: c} }

// oneChain makes one chain of one byte available.
func oneChain(t testing.TB) *raw {
	t.Helper()
	r := newRaw(newGuest(t), rawConfig)
	r.desc(0, desc{addr: bufIOVA, len: 1})
	r.offer(0)
	return r
}

var rawConfig = Config{Size: 8, Desc: ringIOVA, Avail: ringIOVA + 0x1000, Used: ringIOVA + 0x2000, Indirect: true}

func (r *raw) desc(i int, d desc) {
	d.encode((*[descLen]byte)(r.g.ring(r.conf.Desc + uint64(i)*descLen)))
}

func (r *raw) table(iova uint64, ds ...desc) {
	for i, d := range ds {
		var b [descLen]byte
		d.encode(&b)
		r.g.write(iova+uint64(i)*descLen, b[:])
	}
}

func (r *raw) entry(i int, head uint16) {
	le.PutUint16(r.g.ring(r.conf.Avail+4+2*uint64(i%int(r.conf.Size))), head)
}

func (r *raw) offer(heads ...uint16) {
	for i, head := range heads {
		r.entry(i, head)
	}
	r.idx(uint16(len(heads)))
}

// idx stores avail.idx without atomics.
func (r *raw) idx(v uint16) { le.PutUint16(r.g.ring(r.conf.Avail+2), v) }

func (r *raw) usedIdx() uint16 { return le.Uint16(r.g.ring(r.conf.Used + 2)) }

func (r *raw) used(i int) (id, n uint32) {
	b := r.g.ring(r.conf.Used + 4 + 8*uint64(i%int(r.conf.Size)))
	return le.Uint32(b), le.Uint32(b[4:])
}

func (r *raw) device(t testing.TB) *Device {
	t.Helper()
	q := testkit.Must(NewDevice(r.g.space, r.conf))(t)
	t.Cleanup(q.Close)
	return q
}

// echo checks that a new queue in the guest's memory moves bytes.
func (g *guest) echo(t testing.TB) {
	t.Helper()
	dr, dev := g.ends(t, 4, false, true)
	c, copier := new(Chain), dma.NewCopier()
	for i := range 10 {
		word := fmt.Sprintf("echo %04d", i)
		g.write(bufIOVA, []byte(word))
		testkit.OK(t, dr.Add([]Buf{{bufIOVA, 9}}, []Buf{{endIOVA - 100, 100}}, uint32(i)))
		dr.Publish()
		g.inside(func() {
			peek(t, dev, c)
			n := testkit.Must(copier.Copy(c.In, c.Out))(t)
			dev.Commit(c.Head, uint32(n))
			dev.Publish()
		})
		polls(t, dr, Used{uint32(i), 9})
		if got := string(g.buffer(endIOVA-100, 9)); got != word {
			t.Fatalf("got %q, want %q", got, word)
		}
	}
}
