package control_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/testkit"
)

const goldenDir = "testdata/golden"

type (
	call   func(ctx context.Context, c *control.Client) (any, error)
	setter func(h *goldenHandler)
)

// exchange is a call of the client's and what the NIC makes of it.
type exchange struct {
	what  string // comment in the golden file
	set   setter
	call  call
	asked []any // what the handler must have been asked in the end
	want  any   // what the client must return; if it is an error, the handler answers with that
}

var sameAddr = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

// void is the result of calls that return only an error.
func void(err error) (any, error) { return nil, err }

func value[T any](v T, err error) (any, error) { return v, err }

// play makes the exchanges on one link and returns what travelled.
func play(t *testing.T, title string, all []exchange) string {
	h := &goldenHandler{generation: 0x0a0b0c0d}
	l := newGoldenLink(t, h, control.ClientOptions{})
	fmt.Fprintf(&l.text, "# %s\n", title)
	for _, x := range all {
		l.say("%s", x.what)
		refused, isRefused := x.want.(error)
		if h.err = nil; isRefused {
			h.err = refused
		}
		if x.set != nil {
			x.set(h)
		}
		h.got = nil
		got, err := x.call(t.Context(), l.client)
		if isRefused {
			checkRefused(t, x.what, err, refused)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", x.what, err)
		}
		if d := cmp.Diff(x.want, got, sameAddr); d != "" {
			t.Errorf("%s: the client has (-want +got)\n%s", x.what, d)
		}
		if d := cmp.Diff(x.asked, h.got, sameAddr); d != "" {
			t.Errorf("%s: the handler was asked (-want +got)\n%s", x.what, d)
		}
	}
	return l.text.String()
}

func checkRefused(t *testing.T, what string, err, want error) {
	t.Helper()
	var errno syscall.Errno
	if !errors.As(want, &errno) {
		errno = syscall.EIO
	}
	no := (*control.Error)(nil)
	if !errors.As(err, &no) || no.Errno != errno || no.Text != want.Error()[:min(256, len(want.Error()))] {
		t.Errorf("%s: %v, want %d with %v", what, err, errno, want)
	}
}

// fullDir has another value in each counter, that uses each of its bytes.
func fullDir(n uint64) control.DirCounters {
	v := func(i uint64) uint64 { return 0x0101010101010100*n + 0x0001020304050607 + i<<56 }
	return control.DirCounters{
		Packets: v(0), Segments: v(1), HeaderBytes: v(2), DeviceBytes: v(3), GPUFileBytes: v(4), HostBytes: v(5),
		BouncedBytes: v(6), RetransBytes: v(7), Drops: v(8), DroppedBytes: v(9),
	}
}

func fullEngine() control.EngineCounters {
	return control.EngineCounters{
		Jobs: 0xa0a1a2a3a4a5a6a7, Failed: 0xb0b1b2b3b4b5b6b7, Gathered: 0xc0c1c2c3c4c5c6c7, ToGuest: 0xd0d1d2d3d4d5d6d7,
		FromGuest: 0xe0e1e2e3e4e5e6e7, Filled: 0xf0f1f2f3f4f5f6f7, Hashed: 0x1011121314151617, TableBytes: 1<<64 - 1,
	}
}

func goldenInfo() []exchange {
	hello := func(ctx context.Context, c *control.Client) (any, error) { return value(c.Hello(ctx)) }
	set := func(i control.Info) setter { return func(h *goldenHandler) { h.info = i } }
	small := control.Info{Generation: 0x0a0b0c0d, MAC: [6]byte{2, 0, 0, 0, 0, 9}, MTU: 1500, QueuePairs: 1,
		HeaderLimit: 256,
		MaxRSS:      1, MaxRules: 1024, MaxBuffers: 64, MaxBindings: 16, MaxMeters: 32, MaxJobs: 8}
	full := control.Info{Generation: 0x01020304, Flags: control.InfoP2P | 0xa5a60010, MAC: [6]byte{2, 3, 5, 7, 11,
		13}, MTU: 0x2328,
		QueuePairs: 0x0102, HeaderLimit: 0x0304, MaxRSS: 0x0506, MaxRules: 0x0708, MaxBuffers: 0x090a, MaxBindings: 0x0b0c,
		MaxMeters: 0x0d0e, MaxJobs: 0x0f10, GPUs: 0x1112}
	return []exchange{
		{"1.1 hello: no flag, no GPU", set(small), hello, nil, small},
		{"1.1 hello: every field", set(full), hello, nil, full},
		{"1.1 hello: all zero", set(control.Info{}), hello, nil, control.Info{}},
		{"1.1 hello: refused", nil, hello, nil, refusal(syscall.EBUSY, "not now")},
	}
}

func goldenSplit() []exchange {
	set := func(s control.Split) call {
		return func(ctx context.Context, c *control.Client) (any, error) { return void(c.SetSplit(ctx, s)) }
	}
	get := func(q uint16) call {
		return func(ctx context.Context, c *control.Client) (any, error) { return value(c.Split(ctx, q)) }
	}
	on, off := control.Split{Queue: 1, On: true}, control.Split{Queue: 0x0102}
	above := control.Split{Queue: 0xffff, On: true, Threshold: 0x01020304}
	is := func(s control.Split) setter { return func(h *goldenHandler) { h.split = s } }
	return []exchange{
		{"2.1 set split: queue 1 on", nil, set(on), []any{on}, nil},
		{"2.1 set split: queue 0x0102 off", nil, set(off), []any{off}, nil},
		{"2.1 set split: queue 0xffff on, above a threshold", nil, set(above), []any{above}, nil},
		{"2.1 set split: refused", nil, set(on), nil, refusal(syscall.EINVAL, "queue 1: the port has 1")},
		{"2.2 get split: on", is(on), get(1), []any{uint16(1)}, on},
		{"2.2 get split: off", is(off), get(0x0102), []any{uint16(0x0102)}, off},
		{"2.2 get split: on, above a threshold", is(above), get(0xffff), []any{uint16(0xffff)}, above},
		{"2.2 get split: refused", nil, get(9), nil, refusal(syscall.EINVAL, "queue 9: the port has 1")},
	}
}

func goldenFlow() []exchange {
	v4a, v4b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.168.255.254")
	v6a, v6b := netip.MustParseAddr("fd00:1:2:3:4:5:6:7"), netip.MustParseAddr("fe80::1")
	mapped := netip.MustParseAddr("::ffff:1.2.3.4")
	add := func(r control.FlowRule) call {
		return func(ctx context.Context, c *control.Client) (any, error) { return value(c.AddFlow(ctx, r)) }
	}
	id := func(id uint32) setter { return func(h *goldenHandler) { h.id = id } }
	list := func(ctx context.Context, c *control.Client) (any, error) { return value(c.Flows(ctx)) }
	rules := []struct {
		what string
		r    control.FlowRule
	}{
		{"IPv4, every field", control.FlowRule{Proto: 6, Queue: 2, Src: v4a, Dst: v4b, SrcPort: 0x0102, DstPort: 0xfffe}},
		{"IPv6, every field", control.FlowRule{IPv6: true, Proto: 17, Queue: 0x0102, Src: v6a, Dst: v6b, SrcPort: 1,
			DstPort: 443}},
		{"IPv6, mapped IPv4 source only", control.FlowRule{IPv6: true, Proto: 6, Queue: 3, Src: mapped}},
		{"IPv4, destination only", control.FlowRule{Proto: 6, Queue: 1, Dst: v4a}},
		{"IPv4, source port only", control.FlowRule{Proto: 17, Queue: 1, SrcPort: 53}},
		{"IPv6, destination port only", control.FlowRule{IPv6: true, Proto: 6, Queue: 1, DstPort: 5201}},
		{"unspecified addresses, which are not any", control.FlowRule{Proto: 6, Queue: 1,
			Src: netip.IPv4Unspecified(), Dst: v4b}},
		{"nothing set, protocol 0", control.FlowRule{}},
	}
	var all []exchange
	var every []control.FlowRule
	for i, r := range rules {
		n := uint32(i+1) * 0x01010101
		all = append(all, exchange{"3.1 add flow rule: " + r.what, id(n), add(r.r), []any{r.r}, n})
		r.r.ID = n
		every = append(every, r.r)
	}
	var many []control.FlowRule // more than two frames hold
	for i := range 61 {
		many = append(many, control.FlowRule{ID: uint32(i + 1), Proto: 17, Queue: uint16(i % 4), DstPort: uint16(i + 1)})
	}
	have := func(r []control.FlowRule) setter { return func(h *goldenHandler) { h.rules = r } }
	del := func(ctx context.Context, c *control.Client) (any, error) { return void(c.DelFlow(ctx, 0x01020304)) }
	return append(all, []exchange{
		{"3.1 add flow rule: refused", nil, add(rules[0].r), nil, refusal(syscall.EEXIST, "there is a rule for this flow")},
		{"3.2 delete flow rule", nil, del, []any{uint32(0x01020304)}, nil},
		{"3.2 delete flow rule: refused", nil, del, nil, refusal(syscall.ENOENT, "no rule")},
		{"3.3 list flow rules: none", have(nil), list, []any(nil), []control.FlowRule(nil)},
		{"3.3 list flow rules: one", have(every[:1]), list, nil, every[:1]},
		{"3.3 list flow rules: each of those above", have(every), list, nil, every},
		{"3.3 list flow rules: 61, in three frames", have(many), list, nil, many},
		{"3.3 list flow rules: 30, which fill one frame", have(many[:30]), list, nil, many[:30]},
		{"3.3 list flow rules: refused", nil, list, nil, refusal(syscall.EOPNOTSUPP, "no rules here")},
	}...)
}

func goldenRSS() []exchange {
	set := func(r control.RSS) call {
		return func(ctx context.Context, c *control.Client) (any, error) { return void(c.SetRSS(ctx, r)) }
	}
	get := func(ctx context.Context, c *control.Client) (any, error) { return value(c.RSS(ctx)) }
	is := func(r control.RSS) setter { return func(h *goldenHandler) { h.rss = r } }
	one := control.RSS{Table: []uint16{0}}
	some := control.RSS{HashTypes: control.HashIPv4 | control.HashTCPv4 | control.HashUDPv4 |
		control.HashIPv6 | control.HashTCPv6 |
		control.HashUDPv6, Table: []uint16{0, 1, 2, 3, 0x0102, 0xffff, 6, 7}}
	full := control.RSS{HashTypes: 0xf1f2f3f4, Table: make([]uint16, control.MaxRSSTable)}
	for i := range some.Key {
		some.Key[i], full.Key[i] = byte(i+1), byte(0xff-i)
	}
	for i := range full.Table {
		full.Table[i] = uint16(i * 0x71)
	}
	return []exchange{
		{"4.1 set RSS: one entry, no hash", nil, set(one), []any{one}, nil},
		{"4.1 set RSS: eight entries, every hash", nil, set(some), []any{some}, nil},
		{"4.1 set RSS: the largest table", nil, set(full), []any{full}, nil},
		{"4.1 set RSS: refused", nil, set(one), nil, refusal(syscall.EINVAL, "RSS table: entry 0 is queue 9")},
		{"4.2 get RSS: one entry, no hash", is(one), get, nil, one},
		{"4.2 get RSS: eight entries, every hash", is(some), get, nil, some},
		{"4.2 get RSS: the largest table", is(full), get, nil, full},
		{"4.2 get RSS: refused", nil, get, nil, refusal(syscall.EOPNOTSUPP, "no RSS here")},
	}
}

func goldenGPU() []exchange {
	list := func(ctx context.Context, c *control.Client) (any, error) { return value(c.GPUs(ctx)) }
	maps := func(ctx context.Context, c *control.Client) (any, error) { return value(c.GPUMaps(ctx)) }
	bar := control.GPUInfo{ID: 1, Attach: control.AttachBAR, BAR: 2, P2P: control.P2PBus, DevFn: 0x28, Node: 0xff,
		Vendor: 0x1af4,
		Device: 0x1110, Size: 1 << 30, Place: "rc0/sw0/gpu1"}
	node := control.GPUInfo{ID: 0x0102, Attach: control.AttachNode, P2P: control.P2PHostBridge, DevFn: 0xff, Node: 3,
		Size: 0x0102030405060708, Place: strings.Repeat("0123456789", control.MaxPlace/10)}
	var gpus []control.GPUInfo
	for i := range control.MaxGPUs {
		gpus = append(gpus, control.GPUInfo{ID: uint16(i), Size: 1 << 20, Place: fmt.Sprintf("rc%d/gpu%d", i/4, i)})
	}
	var many []control.GPUMap // more than two frames hold
	for i := range uint64(100) {
		many = append(many, control.GPUMap{ID: uint32(i + 1), GPU: uint16(i % 3), IOVA: 1<<40 + i<<20, Off: i << 12,
			Size: 1 << 12})
	}
	full := []control.GPUMap{{ID: 0x01020304, GPU: 0x0506, IOVA: 0x1112131415161718, Off: 0x2122232425262728,
		Size: 0x3132333435363738}}
	gpu := func(g ...control.GPUInfo) setter { return func(h *goldenHandler) { h.gpus = g } }
	mapped := func(m []control.GPUMap) setter { return func(h *goldenHandler) { h.maps = m } }
	return []exchange{
		{"5.1 list GPUs: none", gpu(), list, nil, []control.GPUInfo(nil)},
		{"5.1 list GPUs: all zero", gpu(control.GPUInfo{}), list, nil, []control.GPUInfo{{}}},
		{"5.1 list GPUs: a BAR, a node with the longest place", gpu(bar, node), list, nil, []control.GPUInfo{bar, node}},
		{"5.1 list GPUs: as many as there can be", gpu(gpus...), list, nil, gpus},
		{"5.1 list GPUs: refused", nil, list, nil, refusal(syscall.ENODEV, "no GPU here")},
		{"5.2 list GPU memory: none", mapped(nil), maps, nil, []control.GPUMap(nil)},
		{"5.2 list GPU memory: every field", mapped(full), maps, nil, full},
		{"5.2 list GPU memory: 100, in three frames", mapped(many), maps, nil, many},
		{"5.2 list GPU memory: refused", nil, maps, nil, refusal(syscall.EIO, "the map is gone")},
	}
}

func goldenBuffer() []exchange {
	register := func(gpu uint16, off, size uint64) call {
		return func(ctx context.Context, c *control.Client) (any, error) {
			return value(c.RegisterBuffer(ctx, gpu, off, size))
		}
	}
	undo := func(ctx context.Context, c *control.Client) (any, error) {
		return void(c.UnregisterBuffer(ctx, 0x01020304))
	}
	list := func(ctx context.Context, c *control.Client) (any, error) { return value(c.Buffers(ctx)) }
	id := func(id uint32) setter { return func(h *goldenHandler) { h.id = id } }
	have := func(b []control.Buffer) setter { return func(h *goldenHandler) { h.buffers = b } }
	full := control.Buffer{GPU: 0x0102, Off: 0x1112131415161718, Size: 0x2122232425262728}
	small := control.Buffer{Size: 4096}
	listed := []control.Buffer{{ID: 1, Size: 4096}, {ID: 0x01020304, GPU: 0x0102, Off: 0x1112131415161718,
		Size: 0x2122232425262728}}
	var many []control.Buffer
	for i := range uint64(121) {
		many = append(many, control.Buffer{ID: uint32(2*i + 1), GPU: uint16(i % 2), Off: i << 12, Size: 4096})
	}
	return []exchange{
		{"6.1 register buffer: a page", id(1), register(0, 0, 4096), []any{small}, uint32(1)},
		{"6.1 register buffer: every field", id(0x01020304), register(full.GPU, full.Off, full.Size), []any{full},
			uint32(0x01020304)},
		{"6.1 register buffer: refused", nil, register(9, 0, 4096), nil, refusal(syscall.ENODEV, "no GPU 9")},
		{"6.2 unregister buffer", nil, undo, []any{uint32(0x01020304)}, nil},
		{"6.2 unregister buffer: refused", nil, undo, nil, refusal(syscall.EBUSY, "bound")},
		{"6.3 list buffers: none", have(nil), list, nil, []control.Buffer(nil)},
		{"6.3 list buffers: those above", have(listed), list, nil, listed},
		{"6.3 list buffers: 121, in three frames", have(many), list, nil, many},
		{"6.3 list buffers: refused", nil, list, nil, refusal(syscall.EIO, "no list")},
	}
}

func goldenBinding() []exchange {
	rx := func(buffer uint32, queues ...uint16) call {
		return func(ctx context.Context, c *control.Client) (any, error) {
			return value(c.BindRx(ctx, buffer, queues...))
		}
	}
	tx := func(ctx context.Context, c *control.Client) (any, error) { return value(c.BindTx(ctx, 0x01020304)) }
	undo := func(ctx context.Context, c *control.Client) (any, error) { return void(c.Unbind(ctx, 0x01020304)) }
	list := func(ctx context.Context, c *control.Client) (any, error) { return value(c.Bindings(ctx)) }
	id := func(id uint32) setter { return func(h *goldenHandler) { h.id = id } }
	have := func(b []control.Binding) setter { return func(h *goldenHandler) { h.bindings = b } }
	var every []uint16
	for q := range uint16(control.MaxBindQueues) {
		every = append(every, q)
	}
	listed := []control.Binding{
		{ID: 1, Buffer: 7, Queues: []uint16{1}},
		{ID: 2, Buffer: 8, Tx: true},
		{ID: 0x01020304, Buffer: 0x05060708, Queues: every},
	}
	var many []control.Binding
	for i := range uint16(61) {
		many = append(many, control.Binding{ID: uint32(i) + 1, Buffer: uint32(i) + 100, Queues: []uint16{i + 1}})
	}
	return []exchange{
		{"7.1 bind for receive: a queue", id(1), rx(7, 1), []any{uint32(7), []uint16{1}}, uint32(1)},
		{"7.1 bind for receive: queues in no order, one twice", id(2), rx(7, 255, 8, 1, 8), []any{uint32(7),
			[]uint16{1, 8, 255}}, uint32(2)},
		{"7.1 bind for receive: every queue", id(0x01020304), rx(0x05060708, every...), []any{uint32(0x05060708),
			every}, uint32(0x01020304)},
		{"7.1 bind for receive: no queue", id(3), rx(7), []any{uint32(7), []uint16(nil)}, uint32(3)},
		{"7.1 bind for receive: refused", nil, rx(7, 1), nil, refusal(syscall.EBADF, "buffer 7 is not registered")},
		{"7.2 bind for transmit", id(0x11121314), tx, []any{uint32(0x01020304)}, uint32(0x11121314)},
		{"7.2 bind for transmit: refused", nil, tx, nil, refusal(syscall.ENOSPC, "all in use")},
		{"7.3 unbind", nil, undo, []any{uint32(0x01020304)}, nil},
		{"7.3 unbind: refused", nil, undo, nil, refusal(syscall.ENOENT, "no binding")},
		{"7.4 list bindings: none", have(nil), list, nil, []control.Binding(nil)},
		{"7.4 list bindings: receive, transmit, every queue", have(listed), list, nil, listed},
		{"7.4 list bindings: 61, in three frames", have(many), list, nil, many},
		{"7.4 list bindings: refused", nil, list, nil, refusal(syscall.EIO, "no list")},
	}
}

func goldenMeter() []exchange {
	add := func(m control.Meter) call {
		return func(ctx context.Context, c *control.Client) (any, error) { return value(c.AddMeter(ctx, m)) }
	}
	read := func(ctx context.Context, c *control.Client) (any, error) { return value(c.ReadMeter(ctx, 0x01020304)) }
	del := func(ctx context.Context, c *control.Client) (any, error) { return void(c.DelMeter(ctx, 0x01020304)) }
	all := func(ctx context.Context, c *control.Client) (any, error) { return value(c.PortCounters(ctx)) }
	id := func(id uint32) setter { return func(h *goldenHandler) { h.id = id } }
	v4 := control.Meter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.1:80"),
		Remote: netip.MustParseAddrPort("192.168.255.254:65534")}
	v6 := control.Meter{Proto: 17, Local: netip.MustParseAddrPort("[fd00:1:2:3:4:5:6:7]:258"),
		Remote: netip.MustParseAddrPort("[fe80::1]:1")}
	zero := control.Meter{Local: netip.MustParseAddrPort("0.0.0.0:0"), Remote: netip.MustParseAddrPort("0.0.0.0:0")}
	counters := control.MeterCounters{Rx: fullDir(1), Tx: fullDir(0x20)}
	port := control.PortCounters{Rx: fullDir(2), Tx: fullDir(0x30), Engine: fullEngine()}
	return []exchange{
		{"8.1 add meter: IPv4", id(1), add(v4), []any{v4}, uint32(1)},
		{"8.1 add meter: IPv6", id(0x01020304), add(v6), []any{v6}, uint32(0x01020304)},
		{"8.1 add meter: zeros", id(2), add(zero), []any{zero}, uint32(2)},
		{"8.1 add meter: refused", nil, add(v4), nil, refusal(syscall.ENOSPC, "all in use")},
		{"8.2 read meter: nothing", nil, read, []any{uint32(0x01020304)}, control.MeterCounters{}},
		{"8.2 read meter: every counter", func(h *goldenHandler) { h.counters = counters }, read,
			[]any{uint32(0x01020304)}, counters},
		{"8.2 read meter: refused", nil, read, nil, refusal(syscall.ENOENT, "no meter")},
		{"8.3 delete meter", nil, del, []any{uint32(0x01020304)}, nil},
		{"8.3 delete meter: refused", nil, del, nil, refusal(syscall.ENOENT, "no meter")},
		{"8.4 read port: nothing", nil, all, nil, control.PortCounters{}},
		{"8.4 read port: every counter", func(h *goldenHandler) { h.port = port }, all, nil, port},
		{"8.4 read port: refused", nil, all, nil, refusal(syscall.EIO, "no counters")},
	}
}

func goldenJob() []exchange {
	submit := func(j control.Job) call {
		return func(ctx context.Context, c *control.Client) (any, error) { return value(c.SubmitJob(ctx, j)) }
	}
	const n = 0x0102030405060708
	poll := func(ctx context.Context, c *control.Client) (any, error) { return value(c.PollJob(ctx, n)) }
	cancel := func(ctx context.Context, c *control.Client) (any, error) { return value(c.CancelJob(ctx, n)) }
	is := func(s control.JobStatus) setter { return func(h *goldenHandler) { h.status = s } }
	id := func(id uint64) setter { return func(h *goldenHandler) { h.job = id } }
	running := control.JobStatus{ID: n, State: control.JobRunning}
	done := fullStatus()
	jobs := []struct {
		what string
		j    control.Job
	}{
		{"fill", control.Job{Op: control.JobFill, GPU: 1, Off: 4096, Len: 1 << 20, Seed: 0x1112131415161718,
			Stream: 0x2122232425262728}},
		{"poison", control.Job{Op: control.JobPoison, Off: 0, Len: 1, Seed: 0xdb}},
		{"gather, table in GPU memory", control.Job{Op: control.JobGather, TableInGPU: true, GPU: 0x0102,
			Entries: 0x01020304, Table: 0x3132333435363738}},
		{"to guest", control.Job{Op: control.JobToGuest, Entries: 1, Table: 1 << 40}},
		{"from guest", control.Job{Op: control.JobFromGuest, Entries: 2, Table: 1 << 41}},
		{"SHA-256", control.Job{Op: control.JobSHA256, GPU: 2, Off: 0x4142434445464748, Len: 0x5152535455565758}},
		{"nothing set, operation 0", control.Job{}},
	}
	var all []exchange
	for i, j := range jobs {
		n := uint64(i+1) * 0x0101010101010101
		all = append(all, exchange{"9.1 submit job: " + j.what, id(n), submit(j.j), []any{j.j}, n})
	}
	return append(all, []exchange{
		{"9.1 submit job: refused", nil, submit(jobs[0].j), nil, refusal(syscall.EAGAIN, "too many jobs")},
		{"9.1 submit job: refused without a number", nil, submit(jobs[0].j), nil, errors.New("no such operation")},
		{"9.2 poll job: running", is(running), poll, []any{uint64(n)}, running},
		{"9.2 poll job: ended, every field", is(done), poll, []any{uint64(n)}, done},
		{"9.2 poll job: refused", nil, poll, nil, refusal(syscall.ENOENT, "no job")},
		{"9.3 cancel job: cancelled", is(control.JobStatus{ID: n, State: control.JobDone, Errno: syscall.ECANCELED,
			Bytes: 42}), cancel,
			[]any{uint64(n)}, control.JobStatus{ID: n, State: control.JobDone, Errno: syscall.ECANCELED, Bytes: 42}},
		{"9.3 cancel job: had ended", is(done), cancel, []any{uint64(n)}, done},
		{"9.3 cancel job: refused", nil, cancel, nil, refusal(syscall.ENOENT, "no job")},
	}...)
}

func fullStatus() control.JobStatus {
	s := control.JobStatus{ID: 0x0102030405060708, State: control.JobDone, Errno: syscall.EFAULT,
		Entry: 0x11121314, Bytes: 0x2122232425262728}
	for i := range s.Sum {
		s.Sum[i] = byte(0x40 + i)
	}
	return s
}

// goldenNotify has the frames that the NIC sends unasked.
func goldenNotify(t *testing.T) string {
	h := &goldenHandler{generation: 0x0a0b0c0d}
	l := newGoldenLink(t, h, control.ClientOptions{})
	l.text.WriteString("# Notifies: session and sequence are 0\n")
	statuses := []struct {
		what string
		s    control.JobStatus
	}{
		{"success", control.JobStatus{ID: 1, State: control.JobDone, Bytes: 4096}},
		{"every field", fullStatus()},
		{"cancelled", control.JobStatus{ID: 2, State: control.JobDone, Errno: syscall.ECANCELED}},
	}
	for _, x := range statuses {
		l.say("9.4 job completed: %s", x.what)
		l.toDriver(l.d.NotifyJob(nil, [6]byte{2, 0, 0, 0, 0, 9}, &x.s))
		got, err := l.client.WaitJob(t.Context(), x.s.ID)
		if d := cmp.Diff(x.s, got); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", x.what, err, d)
		}
	}
	l.say("a job with its notify: submitted, and completed")
	h.job = 9
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if s, err := l.client.RunJob(t.Context(), control.Job{Op: control.JobPoison, Len: 1}); err != nil || s.Bytes != 1 {
			t.Errorf("RunJob: %+v, %v", s, err)
		}
	}()
	synctest.Wait() // the reply has arrived, and the client waits for the notify
	done := control.JobStatus{ID: 9, State: control.JobDone, Bytes: 1}
	l.toDriver(l.d.NotifyJob(nil, [6]byte{2, 0, 0, 0, 0, 9}, &done))
	<-ended
	return l.text.String()
}

// goldenTable has entries of jobs' tables, which lie in memory and never travel.
func goldenTable() string {
	var b strings.Builder
	b.WriteString("# Entries of a job's table, in memory\n")
	for _, e := range []control.JobEntry{{}, {Src: 0x0102030405060708, Dst: 0x1112131415161718, Len: 0x21222324}} {
		raw := [control.JobEntryLen]byte{20: 0xff, 0xff, 0xff, 0xff} // what was there before is overwritten
		e.Encode(&raw)
		fmt.Fprintf(&b, "\n# source %#x, destination %#x, length %#x\n%x\n", e.Src, e.Dst, e.Len, raw)
	}
	return b.String()
}

// TestGolden holds that the bytes of every command are those that were frozen, as they travel between the real client
// and the real dispatcher.
func TestGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := map[string]string{
			"1-info":     play(t, "Class 1: information", goldenInfo()),
			"2-split":    play(t, "Class 2: header split", goldenSplit()),
			"3-flow":     play(t, "Class 3: flow rules", goldenFlow()),
			"4-rss":      play(t, "Class 4: receive side scaling", goldenRSS()),
			"5-gpu":      play(t, "Class 5: GPUs", goldenGPU()),
			"6-buffer":   play(t, "Class 6: buffers", goldenBuffer()),
			"7-binding":  play(t, "Class 7: bindings", goldenBinding()),
			"8-meter":    play(t, "Class 8: meters", goldenMeter()),
			"9-job":      play(t, "Class 9: jobs", goldenJob()),
			"9-notify":   goldenNotify(t),
			"9-table":    goldenTable(),
			"a-protocol": goldenProtocol(t),
		}
		golden.Check(t, goldenDir, got)
	})
}

// goldenProtocol has what belongs to no command: repeats, frames that are no requests, generations, padding.
func goldenProtocol(t *testing.T) string {
	var seen []uint32
	h := &goldenHandler{generation: 77}
	l := newGoldenLink(t, h, control.ClientOptions{OnGeneration: func(old, now uint32) { seen = append(seen, old, now) }})
	l.text.WriteString("# What belongs to no command\n")
	ctx := t.Context()
	hello := func(what string) {
		t.Helper()
		l.say("%s", what)
		if _, err := l.client.Hello(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	hello("the first request of a session")
	h.generation = 78
	hello("another generation")
	if !slices.Equal(seen, []uint32{77, 78}) {
		t.Errorf("generations %v", seen)
	}

	l.n, l.lose = 0, func(n int, reply bool) bool { return n < 2 }
	hello("two requests are lost: the same frame comes again")
	h.calls = 0
	l.n, l.lose = 0, func(n int, reply bool) bool { return n == 1 }
	hello("a reply is lost: the same frame is answered with the same reply")
	l.lose = nil
	if h.calls != 1 {
		t.Errorf("a repeat was handled: %d calls", h.calls)
	}
	pad := func(frame []byte) []byte { return append(frame, make([]byte, max(0, 60-len(frame)))...) }
	l.change, l.changeAsk = pad, pad
	hello("padding, as Ethernet needs it, both ways")
	l.change, l.changeAsk = nil, nil
	l.change = func(frame []byte) []byte {
		var f control.Frame
		if err := f.Parse(frame); err != nil {
			t.Error(err)
		}
		f.Data = append(slices.Clone(f.Data), 1, 2, 3, 4, 5, 6, 7, 8)
		return f.Append(nil)
	}
	hello("1.1 hello of a later revision: a longer reply")
	l.change = nil

	refused := func(what string, class control.Class, cmd control.Command, data []byte, errno syscall.Errno) {
		t.Helper()
		l.say("%s", what)
		if _, err := l.client.Call(ctx, class, cmd, data); !errors.Is(err, errno) {
			t.Errorf("%s: %v, want %v", what, err, errno)
		}
	}
	refused("no class 0", 0, 1, nil, syscall.EOPNOTSUPP)
	refused("no class 99", 99, 1, []byte{1, 2, 3}, syscall.EOPNOTSUPP)
	for c := control.ClassInfo; c <= control.ClassJob; c++ {
		refused(fmt.Sprintf("no command %d.99", c), c, 99, make([]byte, 8), syscall.EOPNOTSUPP)
	}
	refused("a notify's command is no request", control.ClassJob, control.JobCompleted, make([]byte, 8),
		syscall.EOPNOTSUPP)
	refused("the longest request", 99, 1, slices.Repeat([]byte{0xa5}, control.MaxData), syscall.EOPNOTSUPP)
	h.err = errors.New(strings.Repeat("0123456789abcdef", 20))
	refused("the longest words of a refusal", control.ClassInfo, control.InfoHello, nil, syscall.EIO)
	h.err = nil

	raw := func(what string, seq uint32, change func(b []byte) []byte) {
		f := control.Frame{Dst: control.MAC, Src: [6]byte{2, 0, 0, 0, 0, 9}}
		f.Kind, f.Class, f.Command, f.Session, f.Seq = control.KindRequest, control.ClassInfo, control.InfoHello,
			0x01020304, seq
		frame := f.Append(nil)
		if change != nil {
			frame = change(frame)
		}
		l.say("%s", what)
		if reply := l.toNIC(frame); reply != nil {
			l.write("<", reply)
		} else {
			l.text.WriteString("# (no answer)\n")
		}
	}
	at := func(i int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[i:], v); return b }
	}
	raw("version 0", 100, at(14, 0))
	raw("version 2", 100, at(14, 2))
	raw("version 2 of a reply", 100, at(14, 2, 2))
	raw("kind 0", 100, at(15, 0))
	raw("a reply", 100, at(15, 2))
	raw("a notify", 100, at(15, 3))
	raw("kind 4", 100, at(15, 4))
	raw("session 0", 100, at(18, 0, 0, 0, 0))
	raw("more data promised than there is", 100, at(32, 1))
	raw("a byte short", 100, func(b []byte) []byte { return b[:len(b)-1] })
	raw("longer than a frame may be", 100, func(b []byte) []byte { return append(b, make([]byte, control.MaxFrame)...) })
	raw("another EtherType", 100, at(12, 8, 0))
	raw("to another MAC", 100, at(0, 3))
	raw("from a group address", 101, at(6, 0xff))
	raw("generation and errno in a request", 102, at(26, 1, 2, 3, 4, 5, 6))
	raw("the newest request", 164, nil)
	raw("63 before it", 101, nil)
	raw("64 before it", 100, nil)
	raw("the largest number, older than all", 0xffffffff, nil)
	raw("after a device reset: sessions are forgotten", 100, func(b []byte) []byte { l.d.Reset(); return b })
	return l.text.String()
}

// command is the number of a command.
type command struct {
	class control.Class
	cmd   control.Command
}

// answeredCommands asks a dispatcher for every number of a class and a command, and returns those that it knows.
func answeredCommands(t *testing.T) map[command]bool {
	d := control.NewDispatcher(&goldenHandler{})
	seq := uint32(0)
	known := func(c command, data []byte) bool {
		f := control.Frame{Dst: control.MAC, Src: [6]byte{2, 0, 0, 0, 0, 9}, Data: data}
		seq++
		f.Kind, f.Class, f.Command, f.Session, f.Seq = control.KindRequest, c.class, c.cmd, 1, seq
		var r control.Frame
		testkit.OK(t, r.Parse(d.Handle(f.Append(nil), nil)))
		return r.Errno != syscall.EOPNOTSUPP
	}
	found := make(map[command]bool)
	for class := range 256 {
		for cmd := range 256 {
			c := command{control.Class(class), control.Command(cmd)}
			// Data of some commands is decoded before the command is looked up: all lengths must be known.
			ok := true
			for n := 0; ok && n <= 64; n += 4 {
				ok = known(c, make([]byte, n))
			}
			if ok {
				found[c] = true
			}
		}
	}
	return found
}

// declaredCommands reads the constants of type Command from the package's source, with the class that each
// is named for.
func declaredCommands(t *testing.T) map[command]string {
	numbers := make(map[string]map[string]int) // by type and name
	inspect := func(n ast.Node) bool {
		s, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		kind, ok := s.Type.(*ast.Ident)
		if !ok || kind.Name != "Class" && kind.Name != "Command" {
			return true
		}
		for i, name := range s.Names {
			if i >= len(s.Values) {
				continue // a variable
			}
			lit, ok := s.Values[i].(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s %s: not a plain number: this test must learn to read it", kind.Name, name.Name)
			}
			v, err := strconv.Atoi(lit.Value)
			testkit.OK(t, err)
			if numbers[kind.Name] == nil {
				numbers[kind.Name] = make(map[string]int)
			}
			numbers[kind.Name][name.Name] = v
		}
		return true
	}
	sources, err := filepath.Glob("*.go")
	testkit.OK(t, err)
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		testkit.OK(t, err)
		ast.Inspect(f, inspect)
	}
	found := make(map[command]string)
	for name, cmd := range numbers["Command"] {
		class, longest := 0, ""
		for c, v := range numbers["Class"] {
			if p := strings.TrimPrefix(c, "Class"); strings.HasPrefix(name, p) && len(p) > len(longest) {
				class, longest = v, p
			}
		}
		c := command{control.Class(class), control.Command(cmd)}
		if longest == "" || found[c] != "" {
			t.Fatalf("%s: command %d of class %d: not named for a class, or also %q", name, cmd, class, found[c])
		}
		found[c] = name
	}
	return found
}

// TestGoldenIsComplete holds that the golden files have each command of the package: a request, a reply and a refusal,
// or a notify.
func TestGoldenIsComplete(t *testing.T) {
	type kind struct {
		command
		what string
	}
	have := make(map[kind]int)
	files, err := golden.Read(goldenDir)
	testkit.OK(t, err)
	for name, text := range files {
		frames, err := parseGolden(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, f := range frames {
			what := [...]string{control.KindRequest: "request", control.KindReply: "reply", control.KindNotify: "notify"}[f.Kind]
			if f.Kind == control.KindReply && f.Errno != 0 {
				what = "refusal"
			}
			have[kind{command{f.Class, f.Command}, what}]++
		}
	}
	answered, declared := answeredCommands(t), declaredCommands(t)
	if len(answered) < 2 || len(declared) < 2 {
		t.Fatalf("%d commands answered, %d declared: they are not where this test looks", len(answered), len(declared))
	}
	for c := range answered {
		if declared[c] == "" {
			t.Errorf("the dispatcher answers %d.%d, which is not declared", c.class, c.cmd)
		}
		for _, what := range []string{"request", "reply", "refusal"} {
			if have[kind{c, what}] == 0 {
				t.Errorf("no golden file has a %s of %d.%d (%s)", what, c.class, c.cmd, declared[c])
			}
		}
	}
	for c, name := range declared {
		if !answered[c] && have[kind{c, "notify"}] == 0 {
			t.Errorf("%d.%d (%s) is neither answered by the dispatcher nor a notify of a golden file", c.class, c.cmd, name)
		}
	}
	t.Logf("%d commands answered, %d declared, %d golden files", len(answered), len(declared), len(files))
}
