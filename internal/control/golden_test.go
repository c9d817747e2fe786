package control

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/testkit"
)

const goldenDir = "testdata/golden"

type exchange struct {
	what string // comment in the golden file
	call clientCall
	want any // the handler's answer, which the client must return; an error is a refusal
}

type clientCall struct {
	do    func(ctx context.Context, c *Client) (any, error)
	asked []any
}

func get[R any](f func(*Client, context.Context) (R, error)) clientCall {
	return clientCall{do: func(ctx context.Context, c *Client) (any, error) { return f(c, ctx) }}
}

func send[A, R any](f func(*Client, context.Context, A) (R, error), a A) clientCall {
	return clientCall{func(ctx context.Context, c *Client) (any, error) { return f(c, ctx, a) }, []any{a}}
}

func set[A any](f func(*Client, context.Context, A) error, a A) clientCall {
	return clientCall{func(ctx context.Context, c *Client) (any, error) { return nil, f(c, ctx, a) }, []any{a}}
}

var sameAddr = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
}

func play(t *testing.T, title string, exchanges []exchange) string {
	h := &goldenHandler{generation: 0x0a0b0c0d}
	l := newGoldenLink(t, h, ClientOptions{})
	fmt.Fprintf(&l.text, "# %s\n", title)
	for _, x := range exchanges {
		l.say("%s", x.what)
		h.answer, h.got = x.want, nil
		got, err := x.call.do(t.Context(), l.client)
		if refused, ok := x.want.(error); ok {
			checkRefused(t, x.what, err, refused)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", x.what, err)
		}
		if d := cmp.Diff(x.want, got, sameAddr); d != "" {
			t.Errorf("%s: the client has (-want +got)\n%s", x.what, d)
		}
		if d := cmp.Diff(x.call.asked, h.got, sameAddr); d != "" {
			t.Errorf("%s: the handler was asked (-want +got)\n%s", x.what, d)
		}
	}
	return l.text.String()
}

func checkRefused(t *testing.T, what string, err, want error) {
	t.Helper()
	errno := errnoOf(want)
	no := (*Error)(nil)
	if !errors.As(err, &no) || no.Errno != errno || no.Text != want.Error()[:min(256, len(want.Error()))] {
		t.Errorf("%s: %v, want %d with %v", what, err, errno, want)
	}
}

// Split, Flows, RSS, Buffers and Bindings send commands for which Client has no methods outside of this test.
func (c *Client) Split(ctx context.Context, queue uint16) (Split, error) {
	return splitGet.call(ctx, c, Split{Queue: queue})
}

func (c *Client) Flows(ctx context.Context) ([]FlowRule, error) { return callList(ctx, c, flowList) }

func (c *Client) RSS(ctx context.Context) (RSS, error) { return rssGet.call(ctx, c, none{}) }

func (c *Client) Buffers(ctx context.Context) ([]Buffer, error) { return callList(ctx, c, bufferList) }

func (c *Client) Bindings(ctx context.Context) ([]Binding, error) {
	return callList(ctx, c, bindingList)
}

func refusal(errno syscall.Errno, words string) error {
	return fmt.Errorf("%s: %w", words, errno)
}

func fullDir(n uint64) (c DirCounters) {
	for i, counter := range c.All() {
		*counter = 0x0101010101010100*n + 0x0001020304050607 + uint64(i)<<56
	}
	return c
}

func numbered[T any](n uint32, element func(i uint32) T) []T {
	var all []T
	for i := range n {
		all = append(all, element(i+1))
	}
	return all
}

func goldenInfo() []exchange {
	hello := get((*Client).Hello)
	small := Info{Generation: 0x0a0b0c0d, MAC: [6]byte{2, 0, 0, 0, 0, 9}, MTU: 1500, QueuePairs: 1,
		HeaderLimit: 256, MaxRSS: 1, MaxRules: 1024, MaxBuffers: 64, MaxBindings: 16, MaxFlowCounters: 32, MaxJobs: 8}
	full := Info{Generation: 0x01020304, Flags: InfoP2P | 0xa5a60010, MAC: [6]byte{2, 3, 5, 7, 11, 13}, MTU: 0x2328,
		QueuePairs: 0x0102, HeaderLimit: 0x0304, MaxRSS: 0x0506, MaxRules: 0x0708, MaxBuffers: 0x090a,
		MaxBindings: 0x0b0c, MaxFlowCounters: 0x0d0e, MaxJobs: 0x0f10, GPUs: 0x1112}
	return []exchange{
		{"1.1 hello: no flag, no GPU", hello, small},
		{"1.1 hello: every field", hello, full},
		{"1.1 hello: all zero", hello, Info{}},
		{"1.1 hello: refused", hello, refusal(syscall.EBUSY, "not now")},
	}
}

func goldenSplit() []exchange {
	set := func(s Split) clientCall { return set((*Client).SetSplit, s) }
	get := func(queue uint16) clientCall { return send((*Client).Split, queue) }
	on, off := Split{Queue: 1, On: true}, Split{Queue: 0x0102}
	above := Split{Queue: 0xffff, On: true, Threshold: 0x01020304}
	return []exchange{
		{"2.1 set split: queue 1 on", set(on), nil},
		{"2.1 set split: queue 0x0102 off", set(off), nil},
		{"2.1 set split: queue 0xffff on, above a threshold", set(above), nil},
		{"2.1 set split: refused", set(on), refusal(syscall.EINVAL, "queue 1: the port has 1")},
		{"2.2 get split: on", get(1), on},
		{"2.2 get split: off", get(0x0102), off},
		{"2.2 get split: on, above a threshold", get(0xffff), above},
		{"2.2 get split: refused", get(9), refusal(syscall.EINVAL, "queue 9: the port has 1")},
	}
}

func goldenFlow() []exchange {
	v4a, v4b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.168.255.254")
	v6a, v6b := netip.MustParseAddr("fd00:1:2:3:4:5:6:7"), netip.MustParseAddr("fe80::1")
	mapped := netip.MustParseAddr("::ffff:1.2.3.4")
	rules := []struct {
		what string
		r    FlowRule
	}{
		{"IPv4, every field", FlowRule{Proto: 6, Queue: 2, Src: v4a, Dst: v4b, SrcPort: 0x0102, DstPort: 0xfffe}},
		{"IPv6, every field", FlowRule{IPv6: true, Proto: 17, Queue: 0x0102, Src: v6a, Dst: v6b, SrcPort: 1,
			DstPort: 443}},
		{"IPv6, mapped IPv4 source only", FlowRule{IPv6: true, Proto: 6, Queue: 3, Src: mapped}},
		{"IPv4, destination only", FlowRule{Proto: 6, Queue: 1, Dst: v4a}},
		{"IPv4, source port only", FlowRule{Proto: 17, Queue: 1, SrcPort: 53}},
		{"IPv6, destination port only", FlowRule{IPv6: true, Proto: 6, Queue: 1, DstPort: 5201}},
		{"unspecified addresses, which are not any", FlowRule{Proto: 6, Queue: 1, Src: netip.IPv4Unspecified(), Dst: v4b}},
		{"nothing set, protocol 0", FlowRule{}},
	}
	var exchanges []exchange
	var every []FlowRule
	for i, r := range rules {
		id := uint32(i+1) * 0x01010101
		exchanges = append(exchanges, exchange{"3.1 add flow rule: " + r.what, send((*Client).AddFlow, r.r), id})
		r.r.ID = id
		every = append(every, r.r)
	}
	many := numbered(61, func(i uint32) FlowRule { // more than fit in two frames
		return FlowRule{ID: i, Proto: 17, Queue: uint16((i - 1) % 4), DstPort: uint16(i)}
	})
	del, list := set((*Client).DelFlow, 0x01020304), get((*Client).Flows)
	return append(exchanges, []exchange{
		{"3.1 add flow rule: refused", send((*Client).AddFlow, rules[0].r),
			refusal(syscall.EEXIST, "there is a rule for this flow")},
		{"3.2 delete flow rule", del, nil},
		{"3.2 delete flow rule: refused", del, refusal(syscall.ENOENT, "no rule")},
		{"3.3 list flow rules: none", list, []FlowRule(nil)},
		{"3.3 list flow rules: one", list, every[:1]},
		{"3.3 list flow rules: each of those above", list, every},
		{"3.3 list flow rules: 61, in three frames", list, many},
		{"3.3 list flow rules: 30, which fill one frame", list, many[:30]},
		{"3.3 list flow rules: refused", list, refusal(syscall.EOPNOTSUPP, "no rules here")},
	}...)
}

func goldenRSS() []exchange {
	set := func(r RSS) clientCall { return set((*Client).SetRSS, r) }
	get := get((*Client).RSS)
	one := RSS{Table: []uint16{0}}
	some := RSS{HashTypes: HashIPv4 | HashTCPv4 | HashUDPv4 | HashIPv6 | HashTCPv6 | HashUDPv6,
		Table: []uint16{0, 1, 2, 3, 0x0102, 0xffff, 6, 7}}
	full := RSS{HashTypes: 0xf1f2f3f4, Table: make([]uint16, MaxRSSTable)}
	for i := range some.Key {
		some.Key[i], full.Key[i] = byte(i+1), byte(0xff-i)
	}
	for i := range full.Table {
		full.Table[i] = uint16(i * 0x71)
	}
	return []exchange{
		{"4.1 set RSS: one entry, no hash", set(one), nil},
		{"4.1 set RSS: eight entries, every hash", set(some), nil},
		{"4.1 set RSS: the largest table", set(full), nil},
		{"4.1 set RSS: refused", set(one), refusal(syscall.EINVAL, "RSS table: entry 0 is queue 9")},
		{"4.2 get RSS: one entry, no hash", get, one},
		{"4.2 get RSS: eight entries, every hash", get, some},
		{"4.2 get RSS: the largest table", get, full},
		{"4.2 get RSS: refused", get, refusal(syscall.EOPNOTSUPP, "no RSS here")},
	}
}

func goldenGPU() []exchange {
	list, maps := get((*Client).GPUs), get((*Client).GPUMaps)
	bar := GPUInfo{ID: 1, Attach: AttachBAR, BAR: 2, P2P: P2PBus, DevFn: 0x28, Node: 0xff, Vendor: 0x1af4,
		Device: 0x1110, Size: 1 << 30, Place: "rc0/sw0/gpu1"}
	node := GPUInfo{ID: 0x0102, Attach: AttachNode, P2P: P2PHostBridge, DevFn: 0xff, Node: 3,
		Size: 0x0102030405060708, Place: strings.Repeat("0123456789", MaxPlace/10)}
	gpus := numbered(MaxGPUs, func(i uint32) GPUInfo {
		return GPUInfo{ID: uint16(i - 1), Size: 1 << 20, Place: fmt.Sprintf("rc%d/gpu%d", (i-1)/4, i-1)}
	})
	many := numbered(100, func(i uint32) GPUMap {
		n := uint64(i - 1)
		return GPUMap{ID: i, GPU: uint16(n % 3), IOVA: 1<<40 + n<<20, Off: n << 12, Size: 1 << 12}
	})
	full := []GPUMap{{ID: 0x01020304, GPU: 0x0506, IOVA: 0x1112131415161718, Off: 0x2122232425262728,
		Size: 0x3132333435363738}}
	return []exchange{
		{"5.1 list GPUs: none", list, []GPUInfo(nil)},
		{"5.1 list GPUs: all zero", list, []GPUInfo{{}}},
		{"5.1 list GPUs: a BAR, a node with the longest place", list, []GPUInfo{bar, node}},
		{"5.1 list GPUs: as many as there can be", list, gpus},
		{"5.1 list GPUs: refused", list, refusal(syscall.ENODEV, "no GPU here")},
		{"5.2 list GPU memory: none", maps, []GPUMap(nil)},
		{"5.2 list GPU memory: every field", maps, full},
		{"5.2 list GPU memory: 100, in three frames", maps, many},
		{"5.2 list GPU memory: refused", maps, refusal(syscall.EIO, "the map is gone")},
	}
}

func goldenBuffer() []exchange {
	register := func(b Buffer) clientCall {
		return send(func(c *Client, ctx context.Context, b Buffer) (uint32, error) {
			return c.RegisterBuffer(ctx, b.GPU, b.Off, b.Size)
		}, b)
	}
	undo, list := set((*Client).UnregisterBuffer, 0x01020304), get((*Client).Buffers)
	full := Buffer{GPU: 0x0102, Off: 0x1112131415161718, Size: 0x2122232425262728}
	listed := []Buffer{{ID: 1, Size: 4096}, {ID: 0x01020304, GPU: full.GPU, Off: full.Off, Size: full.Size}}
	many := numbered(121, func(i uint32) Buffer {
		return Buffer{ID: 2*i - 1, GPU: uint16((i - 1) % 2), Off: uint64(i-1) << 12, Size: 4096}
	})
	return []exchange{
		{"6.1 register buffer: a page", register(Buffer{Size: 4096}), uint32(1)},
		{"6.1 register buffer: every field", register(full), uint32(0x01020304)},
		{"6.1 register buffer: refused", register(Buffer{GPU: 9, Size: 4096}), refusal(syscall.ENODEV, "no GPU 9")},
		{"6.2 unregister buffer", undo, nil},
		{"6.2 unregister buffer: refused", undo, refusal(syscall.EBUSY, "bound")},
		{"6.3 list buffers: none", list, []Buffer(nil)},
		{"6.3 list buffers: those above", list, listed},
		{"6.3 list buffers: 121, in three frames", list, many},
		{"6.3 list buffers: refused", list, refusal(syscall.EIO, "no list")},
	}
}

func goldenBinding() []exchange {
	rx := func(buffer uint32, queues ...uint16) clientCall {
		sorted := slices.Compact(slices.Sorted(slices.Values(queues)))
		return clientCall{
			func(ctx context.Context, c *Client) (any, error) { return c.BindRx(ctx, buffer, queues...) },
			[]any{buffer, sorted},
		}
	}
	tx, undo := send((*Client).BindTx, 0x01020304), set((*Client).Unbind, 0x01020304)
	list := get((*Client).Bindings)
	every := make([]uint16, MaxBindQueues)
	for q := range every {
		every[q] = uint16(q)
	}
	listed := []Binding{
		{ID: 1, Buffer: 7, Queues: []uint16{1}},
		{ID: 2, Buffer: 8, Tx: true},
		{ID: 0x01020304, Buffer: 0x05060708, Queues: every},
	}
	many := numbered(61, func(i uint32) Binding {
		return Binding{ID: i, Buffer: i + 99, Queues: []uint16{uint16(i)}}
	})
	return []exchange{
		{"7.1 bind for receive: a queue", rx(7, 1), uint32(1)},
		{"7.1 bind for receive: queues in no order, one twice", rx(7, 255, 8, 1, 8), uint32(2)},
		{"7.1 bind for receive: every queue", rx(0x05060708, every...), uint32(0x01020304)},
		{"7.1 bind for receive: no queue", rx(7), uint32(3)},
		{"7.1 bind for receive: refused", rx(7, 1), refusal(syscall.EBADF, "buffer 7 is not registered")},
		{"7.2 bind for transmit", tx, uint32(0x11121314)},
		{"7.2 bind for transmit: refused", tx, refusal(syscall.ENOSPC, "all in use")},
		{"7.3 unbind", undo, nil},
		{"7.3 unbind: refused", undo, refusal(syscall.ENOENT, "no binding")},
		{"7.4 list bindings: none", list, []Binding(nil)},
		{"7.4 list bindings: receive, transmit, every queue", list, listed},
		{"7.4 list bindings: 61, in three frames", list, many},
		{"7.4 list bindings: refused", list, refusal(syscall.EIO, "no list")},
	}
}

func goldenFlowCounter() []exchange {
	add := func(proto uint8, local, remote string) clientCall {
		return send((*Client).AddFlowCounter, FlowCounter{Proto: proto, Local: netip.MustParseAddrPort(local),
			Remote: netip.MustParseAddrPort(remote)})
	}
	read, del := send((*Client).ReadFlowCounter, 0x01020304), set((*Client).DelFlowCounter, 0x01020304)
	port := get((*Client).PortCounters)
	v4 := add(6, "10.0.0.1:80", "192.168.255.254:65534")
	counters := PortCounters{Rx: fullDir(2), Tx: fullDir(0x30), Engine: EngineCounters{
		Jobs: 0xa0a1a2a3a4a5a6a7, Failed: 0xb0b1b2b3b4b5b6b7, Gathered: 0xc0c1c2c3c4c5c6c7, ToGuest: 0xd0d1d2d3d4d5d6d7,
		FromGuest: 0xe0e1e2e3e4e5e6e7, Filled: 0xf0f1f2f3f4f5f6f7, Hashed: 0x1011121314151617, TableBytes: 1<<64 - 1,
	}}
	return []exchange{
		{"8.1 add meter: IPv4", v4, uint32(1)},
		{"8.1 add meter: IPv6", add(17, "[fd00:1:2:3:4:5:6:7]:258", "[fe80::1]:1"), uint32(0x01020304)},
		{"8.1 add meter: zeros", add(0, "0.0.0.0:0", "0.0.0.0:0"), uint32(2)},
		{"8.1 add meter: refused", v4, refusal(syscall.ENOSPC, "all in use")},
		{"8.2 read meter: nothing", read, FlowCounts{}},
		{"8.2 read meter: every counter", read, FlowCounts{Rx: fullDir(1), Tx: fullDir(0x20)}},
		{"8.2 read meter: refused", read, refusal(syscall.ENOENT, "no meter")},
		{"8.3 delete meter", del, nil},
		{"8.3 delete meter: refused", del, refusal(syscall.ENOENT, "no meter")},
		{"8.4 read port: nothing", port, PortCounters{}},
		{"8.4 read port: every counter", port, counters},
		{"8.4 read port: refused", port, refusal(syscall.EIO, "no counters")},
	}
}

func goldenJob() []exchange {
	done := fullStatus()
	poll, cancel := send((*Client).PollJob, done.ID), send((*Client).CancelJob, done.ID)
	jobs := []struct {
		what string
		j    Job
	}{
		{"fill", Job{Op: JobFill, GPU: 1, Off: 4096, Len: 1 << 20, Seed: 0x1112131415161718, Stream: 0x2122232425262728}},
		{"poison", Job{Op: JobPoison, Off: 0, Len: 1, Seed: 0xdb}},
		{"gather, table in GPU memory", Job{Op: JobGather, TableInGPU: true, GPU: 0x0102, Entries: 0x01020304,
			Table: 0x3132333435363738}},
		{"to guest", Job{Op: JobToGuest, Entries: 1, Table: 1 << 40}},
		{"from guest", Job{Op: JobFromGuest, Entries: 2, Table: 1 << 41}},
		{"SHA-256", Job{Op: JobSHA256, GPU: 2, Off: 0x4142434445464748, Len: 0x5152535455565758}},
		{"nothing set, operation 0", Job{}},
	}
	var exchanges []exchange
	for i, j := range jobs {
		id := uint64(i+1) * 0x0101010101010101
		exchanges = append(exchanges, exchange{"9.1 submit job: " + j.what, send((*Client).SubmitJob, j.j), id})
	}
	fill := send((*Client).SubmitJob, jobs[0].j)
	return append(exchanges, []exchange{
		{"9.1 submit job: refused", fill, refusal(syscall.EAGAIN, "too many jobs")},
		{"9.1 submit job: refused without a number", fill, errors.New("no such operation")},
		{"9.2 poll job: running", poll, JobStatus{ID: done.ID, State: JobRunning}},
		{"9.2 poll job: ended, every field", poll, done},
		{"9.2 poll job: refused", poll, refusal(syscall.ENOENT, "no job")},
		{"9.3 cancel job: cancelled", cancel, JobStatus{ID: done.ID, State: JobDone, Errno: uint16(syscall.ECANCELED),
			Bytes: 42}},
		{"9.3 cancel job: had ended", cancel, done},
		{"9.3 cancel job: refused", cancel, refusal(syscall.ENOENT, "no job")},
	}...)
}

func fullStatus() JobStatus {
	s := JobStatus{ID: 0x0102030405060708, State: JobDone, Errno: uint16(syscall.EFAULT), Entry: 0x11121314,
		Bytes: 0x2122232425262728}
	for i := range s.Sum {
		s.Sum[i] = byte(0x40 + i)
	}
	return s
}

func goldenNotify(t *testing.T) string {
	h := &goldenHandler{generation: 0x0a0b0c0d, answer: uint64(9)}
	l := newGoldenLink(t, h, ClientOptions{})
	l.text.WriteString("# Notifies: session and sequence are 0\n")
	for _, x := range []struct {
		what string
		s    JobStatus
	}{
		{"success", JobStatus{ID: 1, State: JobDone, Bytes: 4096}},
		{"every field", fullStatus()},
		{"cancelled", JobStatus{ID: 2, State: JobDone, Errno: uint16(syscall.ECANCELED)}},
	} {
		l.say("9.4 job completed: %s", x.what)
		l.toDriver(l.d.NotifyJob(nil, driverMAC, &x.s))
		got, err := l.client.WaitJob(t.Context(), x.s.ID)
		if d := cmp.Diff(x.s, got); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", x.what, err, d)
		}
	}
	l.say("a job with its notify: submitted, and completed")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if s, err := l.client.RunJob(t.Context(), Job{Op: JobPoison, Len: 1}); err != nil || s.Bytes != 1 {
			t.Errorf("RunJob: %+v, %v", s, err)
		}
	}()
	synctest.Wait()
	l.toDriver(l.d.NotifyJob(nil, driverMAC, &JobStatus{ID: 9, State: JobDone, Bytes: 1}))
	<-ended
	return l.text.String()
}

func goldenTable() string {
	var b strings.Builder
	b.WriteString("# Entries of a job's table, in memory\n")
	for _, e := range []JobEntry{{}, {Src: 0x0102030405060708, Dst: 0x1112131415161718, Len: 0x21222324}} {
		raw := [JobEntryLen]byte{20: 0xff, 0xff, 0xff, 0xff} // Encode must overwrite the old bytes
		e.Encode(&raw)
		fmt.Fprintf(&b, "\n# source %#x, destination %#x, length %#x\n%x\n", e.Src, e.Dst, e.Len, raw)
	}
	return b.String()
}

// TestGolden compares the frames of commands, replies and notifies between the real client and dispatcher with the
// golden files.
func TestGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		golden.Check(t, goldenDir, map[string]string{
			"1-info":     play(t, "Class 1: information", goldenInfo()),
			"2-split":    play(t, "Class 2: header split", goldenSplit()),
			"3-flow":     play(t, "Class 3: flow rules", goldenFlow()),
			"4-rss":      play(t, "Class 4: receive side scaling", goldenRSS()),
			"5-gpu":      play(t, "Class 5: GPUs", goldenGPU()),
			"6-buffer":   play(t, "Class 6: buffers", goldenBuffer()),
			"7-binding":  play(t, "Class 7: bindings", goldenBinding()),
			"8-meter":    play(t, "Class 8: meters", goldenFlowCounter()),
			"9-job":      play(t, "Class 9: jobs", goldenJob()),
			"9-notify":   goldenNotify(t),
			"9-table":    goldenTable(),
			"10-objects": play(t, "Class 10: RDMA's PDs, MRs and CQs", goldenRDMAObjects()),
			"10-queues":  play(t, "Class 10: queue pairs and work requests", goldenRDMAQueues()),
			"10-pages":   play(t, "Class 10: pages on demand", goldenRDMAPages()),
			"10-notify":  goldenRDMANotify(t),
			"a-protocol": goldenProtocol(t),
		})
	})
}

func goldenProtocol(t *testing.T) string {
	var seen []uint32
	h := &goldenHandler{generation: 77}
	l := newGoldenLink(t, h, ClientOptions{OnGeneration: func(old, now uint32) { seen = append(seen, old, now) }})
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
	l.n, l.lose = 0, func(n int) bool { return n < 2 }
	hello("two requests are lost: the same frame comes again")
	h.calls = 0
	l.n, l.lose = 0, func(n int) bool { return n == 1 }
	hello("a reply is lost: the same frame is answered with the same reply")
	l.lose = nil
	if h.calls != 1 {
		t.Errorf("a repeat was handled: %d calls", h.calls)
	}
	pad := func(frame []byte) []byte { return append(frame, make([]byte, max(0, 60-len(frame)))...) }
	l.change, l.changeAsk = pad, pad
	hello("padding, as Ethernet needs it, both ways")
	l.changeAsk = nil
	l.change = func(frame []byte) []byte {
		var f Frame
		testkit.OK(t, f.Parse(frame))
		f.Data = append(slices.Clone(f.Data), 1, 2, 3, 4, 5, 6, 7, 8)
		return f.Append(nil)
	}
	hello("1.1 hello of a later revision: a longer reply")
	l.change = nil

	refused := func(what string, class Class, cmd Command, data []byte, errno syscall.Errno) {
		t.Helper()
		l.say("%s", what)
		if _, err := l.client.Call(ctx, class, cmd, data); !errors.Is(err, errno) {
			t.Errorf("%s: %v, want %v", what, err, errno)
		}
	}
	refused("no class 0", 0, 1, nil, syscall.EOPNOTSUPP)
	refused("no class 99", 99, 1, []byte{1, 2, 3}, syscall.EOPNOTSUPP)
	for c := ClassInfo; c <= ClassJob; c++ {
		refused(fmt.Sprintf("no command %d.99", c), c, 99, make([]byte, 8), syscall.EOPNOTSUPP)
	}
	refused("a notify's command is no request", ClassJob, JobCompleted, make([]byte, 8), syscall.EOPNOTSUPP)
	refused("the longest request", 99, 1, slices.Repeat([]byte{0xa5}, MaxData), syscall.EOPNOTSUPP)
	h.answer = errors.New(strings.Repeat("0123456789abcdef", 20))
	refused("the longest words of a refusal", ClassInfo, InfoHello, nil, syscall.EIO)
	h.answer = nil
	// RDMA's come last, so that the sequence numbers of the older frames in the golden file stay as they were.
	refused("no command 10.99", ClassRDMA, 99, make([]byte, 8), syscall.EOPNOTSUPP)
	refused("notifies' commands are no requests", ClassRDMA, RDMACompletions, make([]byte, 4), syscall.EOPNOTSUPP)
	refused("notifies' commands are no requests", ClassRDMA, RDMAPages, make([]byte, 24), syscall.EOPNOTSUPP)

	raw := func(what string, seq uint32, change func(b []byte) []byte) {
		frame := change(request(0x01020304, seq, ClassInfo, InfoHello, nil))
		l.say("%s", what)
		if reply := l.toNIC(frame); reply != nil {
			l.write("<", reply)
		} else {
			l.text.WriteString("# (no answer)\n")
		}
	}
	patch := func(i int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[i:], v); return b }
	}
	unchanged := func(b []byte) []byte { return b }
	h.calls = 0
	raw("version 0", 100, patch(14, 0))
	raw("version 2", 100, patch(14, 2))
	raw("version 2 of a reply", 100, patch(14, 2, 2))
	raw("kind 0", 100, patch(15, 0))
	raw("a reply", 100, patch(15, 2))
	raw("a notify", 100, patch(15, 3))
	raw("kind 4", 100, patch(15, 4))
	raw("session 0", 100, patch(18, 0, 0, 0, 0))
	raw("more data promised than there is", 100, patch(32, 1))
	raw("a byte short", 100, func(b []byte) []byte { return b[:len(b)-1] })
	raw("longer than a frame may be", 100, func(b []byte) []byte { return append(b, make([]byte, MaxFrame)...) })
	raw("another EtherType", 100, patch(12, 8, 0))
	raw("to another MAC", 100, patch(0, 3))
	if l.d.Handle(nil, nil) != nil || l.d.Stats().Malformed != 14 || h.calls != 0 {
		t.Errorf("malformed frames: %+v, %d calls", l.d.Stats(), h.calls)
	}
	raw("from a group address", 101, patch(6, 0xff))
	raw("generation and errno in a request", 102, patch(26, 1, 2, 3, 4, 5, 6))
	raw("the newest request", 164, unchanged)
	raw("63 before it", 101, unchanged)
	raw("64 before it", 100, unchanged)
	raw("the largest number, older than all", 0xffffffff, unchanged)
	raw("after a device reset: sessions are forgotten", 100, func(b []byte) []byte { l.d.Reset(); return b })
	if !slices.Equal(seen, []uint32{77, 78}) {
		t.Errorf("generations %v", seen)
	}
	return l.text.String()
}

func declaredCommands(t *testing.T) map[number]string {
	sources, err := filepath.Glob("*.go")
	testkit.OK(t, err)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range sources {
		if !strings.HasSuffix(path, "_test.go") {
			f := testkit.Must(parser.ParseFile(fset, path, nil, 0))(t)
			files = append(files, f)
		}
	}
	conf := types.Config{Error: func(error) {}, IgnoreFuncBodies: true}
	pkg, _ := conf.Check("control", fset, files, nil)
	constants := func(kind string) map[string]uint64 {
		found := make(map[string]uint64)
		for _, name := range pkg.Scope().Names() {
			if c, ok := pkg.Scope().Lookup(name).(*types.Const); ok && c.Type().String() == kind {
				found[name], _ = constant.Uint64Val(c.Val())
			}
		}
		return found
	}
	classes := constants("control.Class")
	found := make(map[number]string)
	for name, cmd := range constants("control.Command") {
		var n number
		longest := ""
		for class, v := range classes {
			if p := strings.TrimPrefix(class, "Class"); strings.HasPrefix(name, p) && len(p) > len(longest) {
				n, longest = number{Class(v), Command(cmd)}, p
			}
		}
		if longest == "" || found[n] != "" {
			t.Fatalf("%s: command %d of class %d: not named for a class, or also %q", name, cmd, n.class, found[n])
		}
		found[n] = name
	}
	return found
}

// TestGoldenIsComplete checks that the golden files have a request, a reply and a refusal of each command, and each
// notify.
func TestGoldenIsComplete(t *testing.T) {
	type kind struct {
		number
		what string
	}
	have := make(map[kind]int)
	for _, b := range goldenFrames(t) {
		var f Frame
		if f.Parse(b) != nil {
			continue
		}
		what := [...]string{KindRequest: "request", KindReply: "reply", KindNotify: "notify"}[f.Kind]
		if f.Kind == KindReply && f.Errno != 0 {
			what = "refusal"
		}
		have[kind{number{f.Class, f.Command}, what}]++
	}
	declared := declaredCommands(t)
	if len(commands) < 2 || len(declared) < 2 {
		t.Fatalf("%d commands answered, %d declared: they are not where this test looks", len(commands), len(declared))
	}
	for c := range commands {
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
		if commands[c] == nil && have[kind{c, "notify"}] == 0 {
			t.Errorf("%d.%d (%s) is neither answered by the dispatcher nor a notify of a golden file", c.class, c.cmd, name)
		}
	}
	t.Logf("%d commands answered, %d declared", len(commands), len(declared))
}
