package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/testkit"
)

// configuration holds the settings of an interface that a device may change.
type configuration struct {
	split  dataSplit
	thresh uint32
	ntuple bool
	rules  int
	rss    string
	dflt   bool
	bound  int
}

func (f *fakeNIC) configuration() configuration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return configuration{f.split, f.thresh, f.ntuple, len(f.rules), string(encodeTable(f.rss)), f.dflt, len(f.bound)}
}

func encodeTable(t []uint32) (b []byte) {
	for _, q := range t {
		b = append(b, byte(q))
	}
	return b
}

func (td *testDevice) buffer(t *testing.T, off, size uint64) devmem.Buffer {
	t.Helper()
	b := testkit.Must(td.Register(0, off, size))(t)
	return b
}

func (td *testDevice) bindRX(t *testing.T, queues ...int) *binding {
	t.Helper()
	b := testkit.Must(td.BindRX(td.buffer(t, 0, 1<<20), queues...))(t)
	return b.(*binding)
}

func isDone(b devmem.Binding) bool {
	select {
	case <-b.Done():
		return true
	default:
		return false
	}
}

func flowTo(port uint16) devmem.Flow {
	return devmem.Flow{Dst: netip.AddrPortFrom(localhost, port), Queue: 1}
}

func useAll(t *testing.T, td *testDevice) {
	t.Helper()
	td.bindRX(t, 1, 3)
	testkit.OK(t, errOf(td.BindTX(td.buffer(t, 0, 1<<20))))
	for p := range uint16(3) {
		testkit.OK(t, errOf(td.AddFlow(flowTo(p+1))))
	}
	for _, n := range []int{1, 2} {
		testkit.OK(t, td.SetRSS(n))
	}
}

// Invariant: devmem/kernel: Close restores what was changed at the interface, except for rules that
// Options.Alone deletes, and an unused device changes nothing.
func TestCloseSetsTheInterfaceBack(t *testing.T) {
	for name, prepare := range map[string]func(f *fakeNIC){
		"as it comes":                func(*fakeNIC) {},
		"split off":                  func(f *fakeNIC) { f.split, f.unknown = splitOff, splitOn },
		"split off by default":       func(f *fakeNIC) { f.split, f.unknown = splitUnknown, splitOff },
		"threshold":                  func(f *fakeNIC) { f.thresh = 256 },
		"no threshold":               func(f *fakeNIC) { f.noThresh = true },
		"ntuple on, with a rule":     func(f *fakeNIC) { f.ntuple, f.rules = true, map[uint32][]byte{7: {1}} },
		"an rss table of its own":    func(f *fakeNIC) { f.rss, f.dflt = slices.Repeat([]uint32{3, 0}, 64), false },
		"a driver that places rules": func(f *fakeNIC) { f.special = true },
	} {
		t.Run(name, func(t *testing.T) {
			td := newTestDevice(t)
			prepare(td.nic)
			before := td.nic.configuration()
			useAll(t, td)
			in := td.nic.configuration()
			if in.split != splitOn || in.thresh != 0 || !in.ntuple || in.rules != before.rules+3 || in.bound != 2 ||
				in.rss != string(encodeTable(equalTable(128, 2))) {
				t.Errorf("in use: %+v", in)
			}
			testkit.OK(t, td.Close())
			testkit.Equal(t, "configuration", td.nic.configuration(), before)
		})
	}
}

// Invariant: devmem/kernel: Close restores what was changed at the interface, except for rules that
// Options.Alone deletes, and an unused device changes nothing.
func TestUnusedDeviceChangesNothing(t *testing.T) {
	td := newTestDevice(t)
	before := td.nic.configuration()
	td.buffer(t, 0, 4096)
	testkit.Equal(t, "queues", td.Queues(), 4)
	wantErr(t, "SetRSS to what it is", td.SetRSS(4), nil)
	testkit.Equal(t, "configuration", td.nic.configuration(), before)
}

// Invariant: devmem/kernel: If the exporter of a dma-buf refuses the NIC, the error explains the
// cause, and keeps the kernel's errno; other unsupported operations keep the kernel's message.
func TestRefusedDMABufSaysWhatItMeans(t *testing.T) {
	const means = "that the NIC cannot reach it from where it is in the PCIe tree"
	refusal := func(errno syscall.Errno, message string) error {
		return &netlink.OpError{Op: "receive", Err: errno, Message: message}
	}
	for _, c := range []struct {
		err   error
		says  string // part of the error
		means bool
	}{
		{refusal(syscall.EOPNOTSUPP, "Failed to bind dmabuf to device"), "Failed to bind dmabuf to device", true},
		{refusal(syscall.EOPNOTSUPP, "device does not support TX"), "device does not support TX", false},
		{refusal(syscall.EOPNOTSUPP, ""), "operation not supported", false},
		{refusal(syscall.ENOMEM, "Failed to bind dmabuf to device"), "Failed to bind dmabuf to device", false},
	} {
		td := newTestDevice(t)
		td.nic.refusal = c.err
		buf := td.buffer(t, 0, 1<<20)
		for what, err := range map[string]error{"receive": errOf(td.BindRX(buf, 1)), "transmit": errOf(td.BindTX(buf))} {
			testkit.ErrorIs(t, err, errors.Unwrap(c.err), what)
			testkit.ErrorSays(t, err, c.says)
			testkit.Equal(t, fmt.Sprintf("%v says what it means", err), strings.Contains(err.Error(), means), c.means)
		}
		td.nic.refusal = nil
		td.bindRX(t, 1)
		testkit.OK(t, td.Close())
	}
}

func TestErrorsOfTheKernelKeepTheirNumber(t *testing.T) {
	td := newTestDevice(t)
	td.nic.fixed = true
	wantErr(t, "no flow rules", errOf(td.AddFlow(flowTo(1))), syscall.EOPNOTSUPP)
	td.nic.fixed, td.nic.ruleRoom = false, 2
	for p := range uint16(2) {
		testkit.OK(t, errOf(td.AddFlow(flowTo(p+1))))
	}
	wantErr(t, "table full", errOf(td.AddFlow(flowTo(3))), syscall.ENOSPC)
	wantErr(t, "twice", errOf(td.AddFlow(flowTo(2))), syscall.EEXIST)
	mapped := flowTo(2)
	mapped.Dst = netip.AddrPortFrom(netip.AddrFrom16(mapped.Dst.Addr().As16()), mapped.Dst.Port())
	wantErr(t, "twice, as an IPv6 address", errOf(td.AddFlow(mapped)), syscall.EEXIST)
	wantErr(t, "no such rule", td.DelFlow(77), syscall.ENOENT)
	v6 := devmem.Flow{Src: netip.MustParseAddrPort("[::1]:1"), Dst: netip.AddrPortFrom(localhost, 1), Queue: 1}
	wantErr(t, "two families", errOf(td.AddFlow(v6)), syscall.EINVAL)

	wantErr(t, "no buffer", errOf(td.BindRX(nil, 1)), syscall.EBADF)
	td.nic.mu.Lock()
	td.nic.split = splitOn
	td.nic.bound[99] = &fakeBinding{fd: -1, queues: []int{1}} // a binding of another process
	td.nic.mu.Unlock()
	wantErr(t, "bound by another", errOf(td.BindRX(td.buffer(t, 0, 1<<20), 1)), syscall.EEXIST)
	td.nic.let(99)

	td.nic.setQueues(0)
	wantErr(t, "interface down", errOf(td.BindRX(td.buffer(t, 0, 1<<20), 1)), syscall.ENETDOWN)
	wantErr(t, "interface down", td.SetRSS(1), syscall.ENETDOWN)
	td.nic.setQueues(4)
}

func TestRuleOnTheWire(t *testing.T) {
	b := insertRule(devmem.Flow{
		Src: netip.MustParseAddrPort("10.0.0.2:4000"), Dst: netip.MustParseAddrPort("10.0.0.1:5201"), Queue: 3,
	}, 511)
	fs := b[rxnfcSpec:]
	if len(b) != 192 || native.Uint32(b) != ethtoolSRXCLSRLINS || native.Uint32(fs) != tcpV4Flow ||
		native.Uint64(fs[152:]) != 3 || native.Uint32(fs[160:]) != 511 {
		t.Errorf("% x", b)
	}
	testkit.Equal(t, "key", string(fs[4:17]), "\x0a\x00\x00\x02\x0a\x00\x00\x01\x0f\xa0\x14\x51\x00")
	testkit.Equal(t, "mask", string(fs[76:89]), strings.Repeat("\xff", 12)+"\x00")
	b = insertRule(devmem.Flow{Dst: netip.MustParseAddrPort("[fd00::1]:80"), Queue: 1}, 0)
	fs = b[rxnfcSpec:]
	if native.Uint32(fs) != tcpV6Flow || fs[4+16] != 0xfd || fs[4+31] != 1 || string(fs[4+32:4+36]) != "\x00\x00\x00\x50" {
		t.Errorf("% x", fs[4:44])
	}
	testkit.Equal(t, "mask", string(fs[76:112]), strings.Repeat("\x00", 16)+strings.Repeat("\xff", 16)+"\x00\x00\xff\xff")
}

// Invariant: devmem/kernel: A binding is done when the kernel has released its memory.
func TestDoneWaitsForTheKernel(t *testing.T) {
	td := newTestDevice(t)
	buf := td.buffer(t, 0, 1<<20)
	rx := testkit.Must(td.BindRX(buf, 1))(t)
	tx := testkit.Must(td.BindTX(buf))(t)
	td.nic.keep(rx.ID())
	testkit.OK(t, errors.Join(rx.Close(), tx.Close()))
	<-tx.Done()
	wantErr(t, "close of the buffer", buf.Close(), syscall.EBUSY)
	wantErr(t, "bind of the memory", errOf(td.BindRX(td.buffer(t, 4096, 1<<20), 2)), syscall.EBUSY)
	if st := td.Stats(); len(st.Bindings) != 1 || !st.Bindings[0].Closed {
		t.Errorf("%+v", st.Bindings)
	}
	testkit.Equal(t, "done before the kernel is", isDone(rx), false)
	td.nic.let(rx.ID())
	<-rx.Done()
	wantErr(t, "Close", buf.Close(), nil)
}

// Unsent packets may use a binding's memory: after flushTime, Close of the device makes the interface drop them.
func TestCloseDropsWhatTheInterfaceForgot(t *testing.T) {
	defer func(was limits.Limit) { flushTime = was }(flushTime)
	flushTime = limits.Limit(time.Millisecond)
	td := newTestDevice(t)
	buf := td.buffer(t, 0, 1<<20)
	tx := testkit.Must(td.BindTX(buf))(t)
	td.nic.keep(tx.ID())
	dropped := 0
	td.flush = func() error {
		dropped++
		td.nic.let(tx.ID())
		return nil
	}
	testkit.OK(t, tx.Close())
	testkit.Equal(t, "dropped before Close", dropped, 0)
	wantErr(t, "Close", td.Close(), nil)
	<-tx.Done()
	testkit.Equal(t, "dropped", dropped, 1)
}

func TestCloseGivesUpOnMemoryThatStaysInUse(t *testing.T) {
	defer func(was limits.Limit) { closeTime = was }(closeTime)
	closeTime = limits.Limit(50 * time.Millisecond)
	td := newTestDevice(t)
	rx := td.bindRX(t, 1)
	td.nic.keep(rx.ID())
	if err := td.Close(); err == nil || !strings.Contains(err.Error(), "still in use") {
		t.Errorf("%v", err)
	}
	testkit.Equal(t, "done", isDone(rx), false)
	if c := td.nic.configuration(); c.split != splitUnknown {
		t.Errorf("%+v", c)
	}
}

func TestStats(t *testing.T) {
	td := newTestDevice(t)
	td.nic.strings, td.nic.values = []string{"rx_packets", "rx_no_buffers_posted[0]", "rx_no_buffers_posted[1]"},
		[]uint64{100, 3, 4}
	testkit.Equal(t, "drops", td.Stats().NICDrops, 7) // they were 0 at Open
	td.nic.values = []uint64{100, 0, 0}               // the driver cleared its counters
	td.nic.drops = 9
	testkit.Equal(t, "drops", td.Stats().NICDrops, 9)
	rx := td.bindRX(t, 2)
	td.nic.pages[rx.ID()] = 100
	st := td.Stats()
	want := devmem.BindingStats{ID: rx.ID(), Pages: 256, Free: 156, Posted: 100}
	if len(st.Queues) != 4 || st.Queues[2].Binding != rx.ID() || st.Queues[1].Binding != 0 || st.Bindings[0] != want {
		t.Errorf("%+v", st)
	}
	testkit.OK(t, td.Close())
	testkit.Equal(t, "drops after Close", td.Stats().NICDrops, 9)
}

// The kernel issues the lowest free token first.
//
// Invariant: devmem/kernel: The issued tokens are tracked.
func TestTokensAreFollowed(t *testing.T) {
	td := newTestDevice(t)
	rx := td.bindRX(t, 2)
	var ts tokens
	var frags []devmem.Frag
	for i := range uint32(20) {
		frags = append(frags, devmem.Frag{Token: i + 1, Binding: rx.ID(), Size: 1}, devmem.Frag{Kind: devmem.Linear, Size: 4})
	}
	ts.issued(td.Device, frags)
	// Tokens of another program's binding, and tokens too high to be recorded.
	ts.issued(td.Device, []devmem.Frag{{Token: 21, Binding: 12345}, {Token: 1 << 31, Binding: rx.ID()}})
	for _, c := range []struct {
		name   string
		ranges []devmem.TokenRange
		want   int64
	}{
		{"two", []devmem.TokenRange{{Start: 1, Count: 2}}, 18},
		{"again", []devmem.TokenRange{{Start: 1, Count: 2}}, 18},
		{"beyond the limit", []devmem.TokenRange{{Start: 1000, Count: 1023}, {Start: 3, Count: 2}}, 17},
		{"around the end of numbers", []devmem.TokenRange{{Start: ^uint32(0), Count: 6}}, 16},
		{"another's", []devmem.TokenRange{{Start: 21, Count: 1}}, 16},
	} {
		ts.returned(c.ranges)
		testkit.Equal(t, c.name+": held", rx.held.Load(), c.want)
	}
	ts.clear()
	testkit.Equal(t, "held at the end", rx.held.Load(), 0)
}

// The rules are as a killed process leaves them.
func TestRulesOfTheDeadAreDeleted(t *testing.T) {
	td := newTestDevice(t)
	for i := range uint16(3) {
		testkit.OK(t, errOf(td.AddFlow(devmem.Flow{Dst: netip.AddrPortFrom(localhost, 7000+i), Queue: 1})))
	}
	again := func(alone bool) {
		d := testkit.Must(newDevice(Options{Interface: td.name, Alone: alone}, td.index, td.nic.dial, td.nic.ioctl))(t)
		wantErr(t, "Close", d.Close(), nil)
	}
	again(false)
	testkit.Equal(t, "rules", len(td.nic.rules), 3)
	again(true)
	testkit.Equal(t, "rules of the dead", len(td.nic.rules), 0)
	again(true)
}
