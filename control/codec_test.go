package control

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// codec decodes data and encodes it again, for one type.
type codec struct {
	name  string
	again func(data []byte) ([]byte, error)
}

func of[A array, T any](name string, decode func(*T, *A) error, encode func(*T, *A) error) codec {
	return codec{name, func(data []byte) ([]byte, error) {
		var v T
		if err := get(data, func(a *A) error { return decode(&v, a) }); err != nil {
			return nil, err
		}
		return tryPut(nil, func(a *A) error { return encode(&v, a) })
	}}
}

// sure makes an encoder that cannot fail one that does not.
func sure[A, T any](f func(*T, *A)) func(*T, *A) error {
	return func(v *T, a *A) error { f(v, a); return nil }
}

var codecs = []codec{
	of("split", (*Split).decode, sure((*Split).encode)),
	of("rule", (*FlowRule).decode, (*FlowRule).encode),
	of("buffer", (*Buffer).decode, sure((*Buffer).encode)),
	of("binding", (*Binding).decode, (*Binding).encode),
	of("gpu", (*GPUInfo).decode, sure((*GPUInfo).encode)),
	of("gpu map", (*GPUMap).decode, sure((*GPUMap).encode)),
	of("meter", (*Meter).decode, (*Meter).encode),
	of("meter counters", (*MeterCounters).decode, sure((*MeterCounters).encode)),
	of("port counters", (*PortCounters).decode, sure((*PortCounters).encode)),
	of("job", (*Job).decode, sure((*Job).encode)),
	of("job status", (*JobStatus).decode, sure((*JobStatus).encode)),
	{"rss", func(data []byte) ([]byte, error) {
		var r RSS
		if err := r.decode(data); err != nil {
			return nil, err
		}
		return r.append(nil)
	}},
	{"rules", func(data []byte) ([]byte, error) {
		rs, more, err := getList[FlowRule](data, nil, ruleLen, getRule)
		if err != nil || more || len(data) > MaxData {
			return nil, ErrMalformed
		}
		return putList(nil, rs, 0, func(r *FlowRule) uint32 { return r.ID }, ruleLen, putRule)
	}},
}

// FuzzFrame holds that what decodes encodes to the same bytes, for frames and for the data of every command, and that
// nothing panics.
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
	rule6 := FlowRule{ID: 9, IPv6: true, Proto: 17, Src: v6, Dst: netip.MustParseAddr("::ffff:1.2.3.4"), SrcPort: 1, DstPort: 2}
	rss := RSS{HashTypes: HashTCPv4, Table: []uint16{0, 1, 0, 1}}
	buffer := Buffer{GPU: 1, Off: 4096, Size: 1 << 20}
	bind := Binding{Buffer: 3, Queues: []uint16{1, 2, 255}}
	gpu := GPUInfo{ID: 1, Attach: AttachBAR, BAR: 2, P2P: P2PBus, Vendor: 0x1af4, Device: 0x1110, DevFn: 0x28, Size: 1 << 30, Place: "rc0/sw0/gpu1"}
	meter := Meter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.1:80"), Remote: netip.MustParseAddrPort("10.0.0.2:1234")}
	port := PortCounters{Rx: DirCounters{Packets: 1, DroppedBytes: 2}, Tx: DirCounters{Segments: 3}, Engine: EngineCounters{Jobs: 4, TableBytes: 5}}
	job := Job{Op: JobGather, TableInGPU: true, Table: 4096, Entries: 3}
	status := JobStatus{ID: 5, State: JobDone, Errno: syscall.EFAULT, Entry: 1, Bytes: 7, Sum: [32]byte{31: 1}}
	id := []byte{1, 0, 0, 0}
	return []sample{
		{"hello", ClassInfo, InfoHello, nil},
		{"split-set", ClassSplit, SplitSet, put(nil, split.encode)},
		{"split-get", ClassSplit, SplitGet, put(nil, split.encode)},
		{"flow-add", ClassFlow, FlowAdd, must(tryPut(nil, rule4.encode))},
		{"flow-add-6", ClassFlow, FlowAdd, must(tryPut(nil, rule6.encode))},
		{"flow-del", ClassFlow, FlowDel, id},
		{"flow-list", ClassFlow, FlowList, id},
		{"flow-list-reply", ClassFlow, FlowList, must(putList(nil, []FlowRule{rule4, rule6}, 0, func(r *FlowRule) uint32 { return r.ID }, ruleLen, putRule))},
		{"rss-set", ClassRSS, RSSSet, must(rss.append(nil))},
		{"rss-get", ClassRSS, RSSGet, nil},
		{"gpu-list", ClassGPU, GPUList, id},
		{"gpu-info", ClassGPU, GPUList, put(nil, gpu.encode)},
		{"buffer-register", ClassBuffer, BufferRegister, put(nil, buffer.encode)},
		{"buffer-unregister", ClassBuffer, BufferUnregister, id},
		{"buffer-list", ClassBuffer, BufferList, id},
		{"bind-rx", ClassBinding, BindingRx, must(tryPut(nil, bind.encode))},
		{"bind-tx", ClassBinding, BindingTx, must(tryPut(nil, (&Binding{Buffer: 3, Tx: true}).encode))},
		{"unbind", ClassBinding, BindingUndo, id},
		{"binding-list", ClassBinding, BindingList, id},
		{"meter-add", ClassMeter, MeterAdd, must(tryPut(nil, meter.encode))},
		{"meter-read", ClassMeter, MeterRead, id},
		{"meter-del", ClassMeter, MeterDel, id},
		{"meter-port", ClassMeter, MeterPort, nil},
		{"port-counters", ClassMeter, MeterPort, put(nil, port.encode)},
		{"job-submit", ClassJob, JobSubmit, put(nil, job.encode)},
		{"job-poll", ClassJob, JobPoll, append(id, 0, 0, 0, 0)},
		{"job-cancel", ClassJob, JobCancel, append(id, 0, 0, 0, 0)},
		{"job-completed", ClassJob, JobCompleted, put(nil, status.encode)},
	}
}

func TestSamplesRoundTrip(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			var f Frame
			if err := f.Parse(append(s.frame(), 0, 0, 0)); err != nil { // Ethernet pads short frames
				t.Fatal(err)
			}
			if !bytes.Equal(f.Data, s.data) || f.Class != s.class || f.Command != s.cmd || f.Session != 0x01020304 || f.Seq != 7 {
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
	f := Frame{Dst: MAC, Src: [6]byte{2, 0, 0, 0, 0, 1}, Data: must(tryPut(nil, rule.encode))}
	f.Kind, f.Class, f.Command, f.Session, f.Seq, f.Generation, f.Errno = KindReply, ClassFlow, FlowAdd, 0x01020304, 0x05060708, 0x090a0b0c, syscall.EEXIST
	want := "02766e696301" + "020000000001" + "88b5" + // Ethernet
		"01" + "02" + "03" + "01" + "04030201" + "08070605" + "0c0b0a09" + "1100" + "3000" + // header
		"01000000" + "12" + "06" + "0200" + "0a000001000000000000000000000000" + "00000000000000000000000000000000" + "0000" + "5114" + "00000000"
	if got := hex.EncodeToString(f.Append(nil)); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

func TestBadValuesAreNotEncoded(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1%eth0")
	for name, err := range map[string]error{
		"family":         (&FlowRule{IPv6: true, Src: v4}).encode(new([ruleLen]byte)),
		"zone":           (&FlowRule{IPv6: true, Dst: v6}).encode(new([ruleLen]byte)),
		"queue":          (&Binding{Queues: []uint16{256}}).encode(new([bindingLen]byte)),
		"meter ends":     (&Meter{Local: netip.AddrPortFrom(v4, 1)}).encode(new([meterLen]byte)),
		"meter families": (&Meter{Local: netip.AddrPortFrom(v4, 1), Remote: netip.AddrPortFrom(v6.WithZone(""), 1)}).encode(new([meterLen]byte)),
		"no table":       func() error { _, err := (&RSS{}).append(nil); return err }(),
		"table of 3":     func() error { _, err := (&RSS{Table: make([]uint16, 3)}).append(nil); return err }(),
	} {
		if err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}
