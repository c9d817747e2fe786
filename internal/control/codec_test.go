package control

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// layouts has values on the wire. reserved is how many bytes of an encoded value have no other valid value, and bools
// how many have one other, while the other bytes stay.
var layouts = []struct {
	name            string
	value           any
	reserved, bools int
}{
	{"split", Split{}, 1, 1},
	// Addresses and ports without their flag are reserved, like the last four bytes.
	{"rule", FlowRule{}, 4 + 2*16 + 2*2, 0},
	{"rule of IPv4", FlowRule{Src: addr4, Dst: addr4}, 4 + 2*12 + 2*2, 1}, // the byte of flags: IPv6 may be set
	{"buffer", Buffer{}, 2, 0},
	{"binding", Binding{}, 7, 1},
	{"gpu", GPUInfo{}, 4 + MaxPlace, 0},
	{"gpu map", GPUMap{}, 2, 0},
	{"meter", FlowCounter{Local: netip.AddrPortFrom(addr4, 1), Remote: netip.AddrPortFrom(addr4, 2)}, 2 + 4 + 2*12, 1},
	{"meter counters", FlowCounts{}, 0, 0},
	{"job", Job{}, 0, 1},
	{"job status", JobStatus{State: JobDone}, 1, 1},
	{"rss", RSS{Table: []uint16{1}}, 2 + 2, 0}, // two reserved bytes, and the table's length
	{"rules", list[FlowRule]{}, 4 + 4, 0},
	{"counters", PortCounters{}, 0, 0},
	{"rdma limits", RDMALimits{}, 0, 0},
	{"mr", MR{}, 4 + 4, 0}, // four reserved bytes, and the count of ranges
	{"mr of ranges", MR{Ranges: make([]MRRange, 2)}, 4 + 4, 0},
	{"mr more", MRMore{Ranges: make([]MRRange, 1)}, 4, 0},
	{"qp", QP{}, 4, 0},
	{"qp path", QPPath{Local: addr4, Remote: addr4}, 2 * 12, 1},
	{"qp path of IPv6", QPPath{Local: addr6, Remote: addr6}, 1, 0}, // the flag IPv6 may not be cleared
	{"post", Post{}, 4, 0},
	{"post of two", Post{WRs: []WR{{SGEs: make([]SGE, 2)}, {}}}, 4 + 2*(2+4), 0},
	{"poll", Poll{}, 0, 0},
	{"completions", Completions{}, 4 + 3, 1},
	{"completions of two", Completions{WCs: make([]WC, 2)}, 4 + 3 + 2*1, 1 + 2},
	{"qp status", QPStatus{}, 4 + 2*16, 0},
	{"rdma counts", RDMAPortCounts{}, 2*16 + 8, 0},
	{"mailbox", Mailbox{}, 6, 0},
	{"page request", PageRequest{}, 0, 2},
	{"page requests", list[PageRequest]{}, 4 + 4, 0},
	{"page answer", PageAnswer{}, 2 + 4, 0},
	{"page answer of two", PageAnswer{Entries: make([]uint64, 2)}, 2 + 4, 0},
	{"page counts", PageCounts{}, 16, 0},
}

var addr4, addr6 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")

func again(v any, data []byte) ([]byte, error) {
	p := reflect.New(reflect.TypeOf(v)).Interface()
	if err := decode(data, p); err != nil {
		return nil, err
	}
	return encode(nil, p)
}

func enc(v any) []byte {
	b, err := encode(nil, v)
	if err != nil {
		panic(err)
	}
	return b
}

func FuzzFrame(f *testing.F) {
	for _, b := range goldenFrames(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var one, two Frame
		if one.Parse(b) != nil {
			return
		}
		encoded := one.Append(nil)
		if !bytes.Equal(encoded, b[:len(encoded)]) || len(encoded) != EthernetLen+HeaderLen+int(one.Len) {
			t.Fatalf("frame %x\nbecomes %x", b, encoded)
		}
		if err := two.Parse(encoded); err != nil {
			t.Fatalf("our own frame: %v", err)
		}
		if d := cmp.Diff(one, two); d != "" {
			t.Fatal(d)
		}
		for _, l := range layouts {
			if got, err := again(l.value, one.Data); err == nil && !bytes.Equal(got, one.Data) {
				t.Fatalf("%s %x\nbecomes %x", l.name, one.Data, got)
			}
		}
	})
}

func TestBadValuesAreNotEncoded(t *testing.T) {
	v6 := netip.MustParseAddr("fe80::1%eth0")
	for name, v := range map[string]any{
		"family":         FlowRule{IPv6: true, Src: addr4},
		"zone":           FlowRule{IPv6: true, Dst: v6},
		"queue":          Binding{Queues: []uint16{256}},
		"meter ends":     FlowCounter{Local: netip.AddrPortFrom(addr4, 1)},
		"meter families": FlowCounter{Local: netip.AddrPortFrom(addr4, 1), Remote: netip.AddrPortFrom(v6.WithZone(""), 1)},
		"no table":       RSS{},
		"table of 3":     RSS{Table: make([]uint16, 3)},
		"table of 65537": RSS{Table: make([]uint16, 1<<16+1)},
		"ranges":         MR{Ranges: make([]MRRange, MaxMRRanges+1)},
		"more ranges":    MRMore{Ranges: make([]MRRange, MaxMRRanges+1)},
		"path ends":      QPPath{Local: addr4},
		"path families":  QPPath{Local: addr4, Remote: addr6},
		"path zone":      QPPath{Local: addr6, Remote: v6},
		"SGEs":           Post{WRs: []WR{{SGEs: make([]SGE, MaxSGEs+1)}}},
		"completions":    Completions{WCs: make([]WC, MaxWCs+1)},
		"pages":          PageAnswer{Entries: make([]uint64, MaxPages+1)},
	} {
		if b, err := encode(nil, v); !errors.Is(err, ErrMalformed) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: encoded as %x (%v)", name, b, err)
		}
	}
}

// TestWhatIsReservedIsZero changes each byte of each value of layouts to each value: as many bytes as layouts states
// must accept only one, and two.
func TestWhatIsReservedIsZero(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			data := enc(l.value)
			reserved, bools := 0, 0
			for i := range data {
				taken := 0
				for v := range 256 {
					b := bytes.Clone(data)
					b[i] = byte(v)
					got, err := again(l.value, b)
					switch {
					case err == nil && !bytes.Equal(got, b):
						t.Fatalf("%x becomes %x", b, got)
					case err == nil:
						taken++
					case !errors.Is(err, syscall.EINVAL) || !errors.Is(err, ErrMalformed):
						t.Fatalf("%x: %v", b, err)
					}
				}
				switch taken {
				case 1:
					reserved++
				case 2:
					bools++
				}
			}
			if reserved != l.reserved || bools != l.bools {
				t.Fatalf("%d bytes take one value and %d two, not %d and %d", reserved, bools, l.reserved, l.bools)
			}
			for _, n := range []int{0, 1, len(data) - 1, len(data) + 1} {
				b := append(bytes.Clone(data), 0)[:n]
				if _, err := again(l.value, b); !errors.Is(err, syscall.EINVAL) {
					t.Fatalf("%d bytes for %d: %v", n, len(data), err)
				}
			}
		})
	}
}

func TestAllAreAll(t *testing.T) {
	var c DirCounters
	all := c.All()
	for i, p := range all {
		*p = uint64(i + 1)
	}
	if v := reflect.ValueOf(c); v.NumField() != len(all) {
		t.Errorf("%d counters, not %d", len(all), v.NumField())
	}
	for i := range all {
		if n := le.Uint64(enc(c)[8*i:]); n != uint64(i+1) {
			t.Errorf("counter %d is %d", i+1, n)
		}
	}
	more := c
	more.Packets = 100
	c.Add(more)
	for i := range all {
		if want := 2 * uint64(i+1); i > 0 && *all[i] != want || c.Packets != 101 {
			t.Errorf("counter %d and as many more are %d", i+1, *all[i])
		}
	}
	if more.Segments != 2 || more.Packets != 100 {
		t.Errorf("what is added has become %+v", more)
	}
}
