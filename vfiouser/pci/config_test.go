package pci

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// nic returns a device like the gVNIC (docs/specs/gve.md, 1), with a larger BAR 1, whose upper half has the pending
// bits.
func nic() Options {
	return Options{Vendor: 0x1ae0, Device: 0x0042, SubVendor: 0x1ae0, SubDevice: 0x0058, Class: 0x020000, Revision: 1,
		BARs: [6]BAR{{Size: 0x1000}, {Size: 0x2000}, {Size: 0x10000}},
		MSIX: MSIX{Vectors: 33, BAR: 1, TableOff: 0, PBAOff: 0x1000}}
}

func mustNew(t testing.TB, o Options) *Config {
	t.Helper()
	c := testkit.Must(New(o))(t)
	return c
}

func get(t testing.TB, c *Config, off uint64, n int) uint32 {
	t.Helper()
	var b [4]byte
	testkit.OK(t, c.Read(off, b[:n]))
	return le.Uint32(b[:])
}

func put(t testing.TB, c *Config, off uint64, n int, v uint32) {
	t.Helper()
	testkit.OK(t, c.Write(off, le.AppendUint32(nil, v)[:n]))
}

func wantPut(t testing.TB, what string, c *Config, off uint64, n int, v, want uint32) {
	t.Helper()
	put(t, c, off, n, v)
	if got := get(t, c, off, n); got != want {
		t.Errorf("%s: %#x, wanted %#x", what, got, want)
	}
}

func TestHeader(t *testing.T) {
	c := mustNew(t, nic())
	testkit.Equal(t, "size", c.Size(), 256)
	for _, w := range []struct {
		name string
		off  uint64
		n    int
		v    uint32
	}{
		{"vendor", 0, 2, 0x1ae0}, {"device", 2, 2, 0x0042}, {"command", 4, 2, 0}, {"status", 6, 2, 0x10},
		{"class and revision", 8, 4, 0x02000001}, {"header type", 0xe, 1, 0},
		{"BAR 0", 0x10, 4, 0}, {"ROM", 0x30, 4, 0}, {"subsystem", 0x2c, 4, 0x00581ae0}, {"capabilities", 0x34, 1, 0x40},
		{"pin", 0x3d, 1, 0},
		{"MSI-X", 0x40, 4, 0x00200011}, {"table", 0x44, 4, 1}, {"pending", 0x48, 4, 0x1001},
	} {
		if got := get(t, c, w.off, w.n); got != w.v {
			t.Errorf("%s: %#x, wanted %#x", w.name, got, w.v)
		}
	}
}

func TestBARSizing(t *testing.T) {
	o := Options{BARs: [6]BAR{{Size: 0x1000}, {Size: 16, Prefetchable: true},
		{Size: 1 << 33, Wide: true, Prefetchable: true}, {}, {Size: 0x10000, Wide: true}}}
	c := mustNew(t, o)
	for i, w := range []struct{ sized, zeroed uint32 }{
		{0xfffff000, 0}, {0xfffffff8, 8}, {0x0000000c, 0xc}, {0xfffffffe, 0}, {0xffff0004, 4}, {0xffffffff, 0}} {
		off := uint64(0x10 + 4*i)
		wantPut(t, fmt.Sprintf("BAR %d, sized", i), c, off, 4, 0xffffffff, w.sized)
		wantPut(t, fmt.Sprintf("BAR %d, zeroed", i), c, off, 4, 0, w.zeroed)
	}
	wantPut(t, "address", c, 0x10, 4, 0xfebf1234, 0xfebf1000)
	put(t, c, 0x12, 1, 0xaa)
	if got := get(t, c, 0x10, 4); got != 0xfeaa1000 {
		t.Errorf("address %#x", got)
	}
	wantPut(t, "absent BAR", mustNew(t, Options{}), 0x10, 4, 0xffffffff, 0)
}

func TestCommandAndMSIXControl(t *testing.T) {
	c := mustNew(t, nic())
	if c.MemoryEnabled() || c.BusMaster() || c.MSIXEnabled() {
		t.Error("enabled after reset")
	}
	wantPut(t, "command", c, 4, 2, 0xffff, 0x0546)
	wantPut(t, "message control", c, 0x42, 2, 0xffff, 0xc020)
	if !c.MemoryEnabled() || !c.BusMaster() || c.MSIXEnabled() {
		t.Error("not enabled, or MSI-X enabled though masked")
	}
	put(t, c, 0x43, 1, 0x80)
	if !c.MSIXEnabled() {
		t.Error("MSI-X is not enabled")
	}
	wantPut(t, "interrupt line and pin", c, 0x3c, 4, 0xffffffff, 0xff)
	c.Reset()
	if !bytes.Equal(c.data, mustNew(t, nic()).data) {
		t.Error("a reset device is not as new")
	}
	if mustNew(t, Options{}).MSIXEnabled() {
		t.Error("MSI-X without the capability")
	}
}

func TestExpress(t *testing.T) {
	o := nic()
	o.Express = Link{Generation: 4, Lanes: 16}
	c := mustNew(t, o)
	testkit.Equal(t, "size", c.Size(), 4096)
	ids := map[byte]int{}
	off := c.data[regCapPtr]
	for n := 0; off != 0; n++ {
		if n > 4 || off < firstCap || off%4 != 0 {
			t.Fatalf("capability list goes to %#x", off)
		}
		ids[c.data[off]] = int(off)
		off = c.data[off+1]
	}
	if len(ids) != 2 || ids[capExpress] == 0 || ids[capMSIX] < ids[capExpress]+expressLen {
		t.Fatalf("capabilities %v", ids)
	}
	testkit.Equal(t, "capabilities register", get(t, c, uint64(ids[capExpress])+2, 2), 2)
	at64 := uint64(ids[capExpress])
	testkit.Equal(t, "link capabilities", get(t, c, at64+linkCap, 4), 4|16<<4)
	testkit.Equal(t, "link status", get(t, c, at64+linkStatus, 2), 4|16<<4|slotClock)
	testkit.Equal(t, "link speeds", get(t, c, at64+linkCap2, 4), 0b11110)
	testkit.Equal(t, "target speed", get(t, c, at64+linkCtl2, 2), 4)
	put(t, c, uint64(ids[capMSIX])+2, 2, 0x8000)
	if !c.MSIXEnabled() {
		t.Error("MSI-X is not enabled")
	}
	if !bytes.Equal(c.data[Size:], make([]byte, ExpressSize-Size)) {
		t.Error("extended capabilities")
	}
}

func TestBounds(t *testing.T) {
	c := mustNew(t, nic())
	for _, w := range []struct {
		off uint64
		n   int
	}{{256, 1}, {255, 2}, {253, 4}, {1<<64 - 1, 2}, {0, 257}, {4096, 0}} {
		b := make([]byte, w.n)
		testkit.ErrorIs(t, c.Read(w.off, b), ErrBounds, "read of %d at %#x", w.n, w.off)
		testkit.ErrorIs(t, c.Write(w.off, b), ErrBounds, "write of %d at %#x", w.n, w.off)
	}
	testkit.NoError(t, c.Read(0, make([]byte, 256)))
}

func TestOptionsThatMakeNoDevice(t *testing.T) {
	for _, w := range []struct {
		name   string
		change func(*Options)
		says   string
	}{
		{"class", func(o *Options) { o.Class = 0x1000000 }, "24 bits"},
		{"size", func(o *Options) { o.BARs[0].Size = 0x1800 }, "power of two"},
		{"small", func(o *Options) { o.BARs[0].Size = 8 }, "at least 16"},
		{"large", func(o *Options) { o.BARs[0].Size = 1 << 32 }, "power of two"},
		{"upper half", func(o *Options) { o.BARs[0].Wide = true }, "upper half"},
		{"last", func(o *Options) { o.BARs[5] = BAR{Size: 16, Wide: true} }, "upper half"},
		{"vectors", func(o *Options) { o.MSIX.Vectors = 2049 }, "2049 vectors"},
		{"negative vectors", func(o *Options) { o.MSIX.Vectors = -1 }, "-1 vectors"},
		{"BAR", func(o *Options) { o.MSIX.BAR = 3 }, "no BAR 3"},
		{"BAR 6", func(o *Options) { o.MSIX.BAR = 6 }, "no BAR 6"},
		{"alignment", func(o *Options) { o.MSIX.TableOff = 4 }, "multiples of 8"},
		{"table", func(o *Options) { o.MSIX.TableOff = 0x1ff8 }, "0x2208"},
		{"pending", func(o *Options) { o.MSIX.PBAOff = 0xfffffff8 }, "0x100000000"},
		{"generation", func(o *Options) { o.Express = Link{7, 1} }, "a link of generation 7 with 1 lanes"},
		{"lanes", func(o *Options) { o.Express = Link{1, 33} }, "a link of generation 1 with 33 lanes"},
		{"overlap", func(o *Options) { o.MSIX.PBAOff = 0x200 }, "overlap"},
	} {
		o := nic()
		w.change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), w.says) {
			t.Errorf("%s: %v, wanted %q", w.name, err, w.says)
		}
	}
}

// FuzzConfig writes up to 7 bytes at a time at any offset of 16 bits. A write within the space changes only writable
// bits of its bytes; any other one fails and changes nothing.
//
// Invariant: vfiouser: A hostile client ends its own connection at most, and leaves nothing behind.
func FuzzConfig(f *testing.F) {
	f.Add(true, []byte{4, 0, 2, 6, 0, 0x10, 0, 4, 0xff, 0xff, 0xff, 0xff})
	f.Add(false, []byte{0xfe, 0, 4, 1, 2, 3, 4, 0, 0, 1, 0xff})
	f.Fuzz(func(t *testing.T, express bool, b []byte) {
		o := nic()
		if express {
			o.Express = Link{Generation: 5, Lanes: 8}
		}
		c := mustNew(t, o)
		fresh := mustNew(t, o)
		for len(b) >= 3 {
			off, n := uint64(le.Uint16(b)), int(b[2]%8)
			b = b[3:]
			n = min(n, len(b))
			before := bytes.Clone(c.data)
			err := c.Write(off, b[:n])
			if inside := off <= c.Size() && uint64(n) <= c.Size()-off; inside != (err == nil) {
				t.Fatalf("write of %d at %#x: %v", n, off, err)
			}
			for i := range before {
				v := before[i]
				if uint64(i) >= off && uint64(i)-off < uint64(n) && err == nil {
					v = v&^c.mask[i] | b[uint64(i)-off]&c.mask[i]
				}
				if c.data[i] != v || (c.data[i]^fresh.data[i])&^c.mask[i] != 0 {
					t.Fatalf("write of % x at %#x: byte %#x is %#x", b[:n], off, i, c.data[i])
				}
			}
			b = b[n:]
		}
	})
}
