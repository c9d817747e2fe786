package control

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// codec decodes data and encodes it again, for one type.
type codec struct {
	name  string
	again func(data []byte) ([]byte, error)
}

func of[T any](name string) codec {
	return codec{name, func(data []byte) ([]byte, error) {
		var v T
		if err := decode(data, &v); err != nil {
			return nil, err
		}
		return encode(nil, v)
	}}
}

var codecs = []codec{
	of[Split]("split"),
	of[FlowRule]("rule"),
	of[Buffer]("buffer"),
	of[Binding]("binding"),
	of[GPUInfo]("gpu"),
	of[GPUMap]("gpu map"),
	of[Meter]("meter"),
	of[MeterCounters]("meter counters"),
	of[PortCounters]("port counters"),
	of[Job]("job"),
	of[JobStatus]("job status"),
	of[RSS]("rss"),
	of[list[FlowRule]]("rules"),
}

// enc is the bytes of a value that has some.
func enc(v any) []byte { return must(encode(nil, v)) }

// FuzzFrame holds that what decodes encodes to the same bytes, for frames and for the data of every
// command, and that nothing panics.
func FuzzFrame(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.frame())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var one, two Frame
		if one.Parse(b) != nil {
			return
		}
		again := one.Append(nil)
		if !bytes.Equal(again, b[:len(again)]) || len(again) != EthernetLen+HeaderLen+int(one.Len) {
			t.Fatalf("frame %x\nbecomes %x", b, again)
		}
		if err := two.Parse(again); err != nil {
			t.Fatalf("our own frame: %v", err)
		}
		if d := cmp.Diff(one, two); d != "" {
			t.Fatal(d)
		}
		for _, c := range codecs {
			if got, err := c.again(one.Data); err == nil && !bytes.Equal(got, one.Data) {
				t.Fatalf("%s %x\nbecomes %x", c.name, one.Data, got)
			}
		}
	})
}

type sample struct {
	name  string
	class Class
	cmd   Command
	data  []byte
}

func (s *sample) frame() []byte {
	f := Frame{Dst: MAC, Src: [6]byte{2, 0, 0, 0, 0, 1}, Data: s.data}
	f.Kind, f.Class, f.Command, f.Session, f.Seq = KindRequest, s.class, s.cmd, 0x01020304, 7
	return f.Append(nil)
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// samples has a request of each kind, and some replies' data.
func samples() []sample {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	split := Split{Queue: 1, On: true, Threshold: 5}
	rule4 := FlowRule{Proto: 6, Src: v4, DstPort: 5201, Queue: 2}
	rule6 := FlowRule{ID: 9, IPv6: true, Proto: 17, Src: v6, Dst: netip.MustParseAddr("::ffff:1.2.3.4"), SrcPort: 1,
		DstPort: 2}
	rss := RSS{HashTypes: HashTCPv4, Table: []uint16{0, 1, 0, 1}}
	buffer := Buffer{GPU: 1, Off: 4096, Size: 1 << 20}
	bind := Binding{Buffer: 3, Queues: []uint16{1, 2, 255}}
	gpu := GPUInfo{ID: 1, Attach: AttachBAR, BAR: 2, P2P: P2PBus, Vendor: 0x1af4, Device: 0x1110, DevFn: 0x28,
		Size: 1 << 30, Place: "rc0/sw0/gpu1"}
	meter := Meter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.1:80"),
		Remote: netip.MustParseAddrPort("10.0.0.2:1234")}
	port := PortCounters{Rx: DirCounters{Packets: 1, DroppedBytes: 2}, Tx: DirCounters{Segments: 3},
		Engine: EngineCounters{Jobs: 4, TableBytes: 5}}
	job := Job{Op: JobGather, TableInGPU: true, Table: 4096, Entries: 3}
	status := JobStatus{ID: 5, State: JobDone, Errno: syscall.EFAULT, Entry: 1, Bytes: 7, Sum: [32]byte{31: 1}}
	id := []byte{1, 0, 0, 0}
	return []sample{
		{"hello", ClassInfo, InfoHello, nil},
		{"split-set", ClassSplit, SplitSet, enc(split)},
		{"split-get", ClassSplit, SplitGet, enc(split)},
		{"flow-add", ClassFlow, FlowAdd, enc(rule4)},
		{"flow-add-6", ClassFlow, FlowAdd, enc(rule6)},
		{"flow-del", ClassFlow, FlowDel, id},
		{"flow-list", ClassFlow, FlowList, id},
		{"flow-list-reply", ClassFlow, FlowList, enc(list[FlowRule]{elems: []FlowRule{rule4, rule6}})},
		{"rss-set", ClassRSS, RSSSet, enc(rss)},
		{"rss-get", ClassRSS, RSSGet, nil},
		{"gpu-list", ClassGPU, GPUList, id},
		{"gpu-info", ClassGPU, GPUList, enc(gpu)},
		{"buffer-register", ClassBuffer, BufferRegister, enc(buffer)},
		{"buffer-unregister", ClassBuffer, BufferUnregister, id},
		{"buffer-list", ClassBuffer, BufferList, id},
		{"bind-rx", ClassBinding, BindingRx, enc(bind)},
		{"bind-tx", ClassBinding, BindingTx, enc(Binding{Buffer: 3, Tx: true})},
		{"unbind", ClassBinding, BindingUndo, id},
		{"binding-list", ClassBinding, BindingList, id},
		{"meter-add", ClassMeter, MeterAdd, enc(meter)},
		{"meter-read", ClassMeter, MeterRead, id},
		{"meter-del", ClassMeter, MeterDel, id},
		{"meter-port", ClassMeter, MeterPort, nil},
		{"port-counters", ClassMeter, MeterPort, enc(port)},
		{"job-submit", ClassJob, JobSubmit, enc(job)},
		{"job-poll", ClassJob, JobPoll, append(id, 0, 0, 0, 0)},
		{"job-cancel", ClassJob, JobCancel, append(id, 0, 0, 0, 0)},
		{"job-completed", ClassJob, JobCompleted, enc(status)},
	}
}

func TestSamplesRoundTrip(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			var f Frame
			if err := f.Parse(append(s.frame(), 0, 0, 0)); err != nil { // Ethernet pads short frames
				t.Fatal(err)
			}
			if !bytes.Equal(f.Data, s.data) || f.Class != s.class || f.Command != s.cmd || f.Session != 0x01020304 ||
				f.Seq != 7 {
				t.Fatalf("got %+v", f)
			}
			found := len(s.data) <= 8
			for _, c := range codecs {
				got, err := c.again(s.data)
				if err == nil && !bytes.Equal(got, s.data) {
					t.Fatalf("%s %x\nbecomes %x", c.name, s.data, got)
				}
				found = found || err == nil
			}
			if !found {
				t.Fatal("nothing decodes this")
			}
		})
	}
}

// TestBytesStayTheSame pins the protocol's version 1.
func TestBytesStayTheSame(t *testing.T) {
	rule := FlowRule{ID: 1, Proto: 6, Queue: 2, Src: netip.MustParseAddr("10.0.0.1"), DstPort: 0x1451}
	f := Frame{Dst: MAC, Src: [6]byte{2, 0, 0, 0, 0, 1}, Data: enc(rule)}
	f.Kind, f.Class, f.Command, f.Session, f.Seq, f.Generation, f.Errno = KindReply, ClassFlow, FlowAdd, 0x01020304,
		0x05060708, 0x090a0b0c, syscall.EEXIST
	want := "02766e696301" + "020000000001" + "88b5" + // Ethernet
		"01" + "02" + "03" + "01" + "04030201" + "08070605" + "0c0b0a09" + "1100" + "3000" + // header
		"01000000" + "12" + "06" + "0200" + "0a000001000000000000000000000000" + "00000000000000000000000000000000" + "0000" +
		"5114" + "00000000"
	if got := hex.EncodeToString(f.Append(nil)); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

func TestBadValuesAreNotEncoded(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1%eth0")
	for name, v := range map[string]any{
		"family":         FlowRule{IPv6: true, Src: v4},
		"zone":           FlowRule{IPv6: true, Dst: v6},
		"queue":          Binding{Queues: []uint16{256}},
		"meter ends":     Meter{Local: netip.AddrPortFrom(v4, 1)},
		"meter families": Meter{Local: netip.AddrPortFrom(v4, 1), Remote: netip.AddrPortFrom(v6.WithZone(""), 1)},
		"no table":       RSS{},
		"table of 3":     RSS{Table: make([]uint16, 3)},
		"table of 65537": RSS{Table: make([]uint16, 1<<16+1)},
	} {
		if b, err := encode(nil, v); !errors.Is(err, ErrMalformed) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: encoded as %x (%v)", name, b, err)
		}
	}
}

// TestWhatIsReservedIsZero changes every byte of every structure to every value: what decodes has
// one way to be written, and what is refused is refused with EINVAL. Bytes that are reserved take
// one value, bools take two, and all are counted.
func TestWhatIsReservedIsZero(t *testing.T) {
	v4 := netip.MustParseAddr("10.0.0.1")
	meter4 := Meter{Local: netip.AddrPortFrom(v4, 1), Remote: netip.AddrPortFrom(v4, 2)}
	for _, tc := range []struct {
		name     string
		c        codec
		data     []byte
		reserved int // bytes that take one value
		bools    int // bytes that take two
	}{
		{"split", of[Split](""), enc(Split{}), 1, 1},
		// Addresses and ports that no flag names are as reserved as the last four bytes.
		{"rule", of[FlowRule](""), enc(FlowRule{}), 4 + 2*16 + 2*2, 0},
		{"rule of IPv4", of[FlowRule](""), enc(FlowRule{Src: v4, Dst: v4}), 4 + 2*12 + 2*2, 1}, // the flags: IPv6 too
		{"buffer", of[Buffer](""), enc(Buffer{}), 2, 0},
		{"binding", of[Binding](""), enc(Binding{}), 7, 1},
		{"gpu", of[GPUInfo](""), enc(GPUInfo{}), 4 + MaxPlace, 0},
		{"gpu map", of[GPUMap](""), enc(GPUMap{}), 2, 0},
		{"meter", of[Meter](""), enc(meter4), 2 + 4 + 2*12, 1},
		{"job", of[Job](""), enc(Job{}), 0, 1},
		{"job status", of[JobStatus](""), enc(JobStatus{State: JobDone}), 1, 1},
		{"rss", of[RSS](""), enc(RSS{Table: []uint16{1}}), 2 + 2, 0}, // the length too,
		{"rules", of[list[FlowRule]](""), enc(list[FlowRule]{}), 4 + 4, 0},
		{"counters", of[PortCounters](""), enc(PortCounters{}), 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reserved, bools := 0, 0
			for i := range tc.data {
				taken := 0
				for v := range 256 {
					b := bytes.Clone(tc.data)
					b[i] = byte(v)
					again, err := tc.c.again(b)
					switch {
					case err == nil && !bytes.Equal(again, b):
						t.Fatalf("%x becomes %x", b, again)
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
			if reserved != tc.reserved || bools != tc.bools {
				t.Fatalf("%d bytes take one value and %d two, not %d and %d", reserved, bools, tc.reserved, tc.bools)
			}
			for _, n := range []int{0, 1, len(tc.data) - 1, len(tc.data) + 1} {
				b := append(bytes.Clone(tc.data), 0)[:n]
				if _, err := tc.c.again(b); !errors.Is(err, syscall.EINVAL) {
					t.Fatalf("%d bytes for %d: %v", n, len(tc.data), err)
				}
			}
		})
	}
}

// TestAllAreAll holds that All has each counter, in order.
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
}
