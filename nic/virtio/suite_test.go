package virtio_test

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

func TestMain(m *testing.M) {
	r, w, err := os.Pipe() // the poller's own descriptors are there from now on
	if err != nil {
		panic(err)
	}
	_, _ = r.Close(), w.Close()
	goleak.VerifyTestMain(m)
}

func checkFDs(t testing.TB) {
	t.Helper()
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		testkit.OK(t, err)
		return len(names)
	}
	before := count()
	t.Cleanup(func() {
		if after := count(); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func TestNIC(t *testing.T) {
	nictest.Run(t, func(t testing.TB, o nictest.Options) (nictest.Guest, nictest.Guest) {
		checkFDs(t)
		files := dma.NewFiles()
		sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
		t.Cleanup(func() { _ = sw.Close() })
		ro := rawOptions{pairs: 3, mtu: 9000, p2p: !o.NoP2P, patience: patient}
		a := newSuiteGuest(t, files, sw, 0, ro)
		if o.NoOffload {
			ro.drop = fOffloads
		}
		return a, newSuiteGuest(t, files, sw, 1, ro)
	}, nictest.Traits{RingHeader: 12})
}

// patient is for tests with frames that wait until the test goes on, however long a loaded machine keeps it from that.
const patient = time.Minute

// newSuiteGuest makes a guest with a GPU that has told the switch where it is, and wants flows on
// queue 0 but for rules.
func newSuiteGuest(t testing.TB, files *dma.Files, sw *wire.Switch, i int, ro rawOptions) *suiteGuest {
	g := newRawSuiteGuest(t, files, sw, i, ro)
	r, err := g.Port().RSS()
	g.must(err)
	g.must(g.Port().SetRSS(r))
	return g
}

// newRawSuiteGuest makes one that has asked for nothing.
func newRawSuiteGuest(t testing.TB, files *dma.Files, sw *wire.Switch, i int, ro rawOptions) *suiteGuest {
	ro.gpu = i
	g := &suiteGuest{rawGuest: newRawGuestWith(t, files, sw, string(rune('a'+i)), byte(i+1), ro)}
	for q := range g.posted {
		g.posted[q] = map[uint32][]virtq.Buf{}
	}
	for k := range uint64(2) {
		_, err := g.Port().RegisterBuffer(control.Buffer{GPU: uint16(i), Off: k * rawGPUSize / 2, Size: rawGPUSize / 2})
		g.must(err)
	}
	everyone := wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} // dropped where there are no buffers
	g.Send(0, nictest.Frame{Header: tcpFrame(everyone, g.mac, 0)})
	return g
}

// suiteGuest is a nictest.Guest over raw rings.
type suiteGuest struct {
	*rawGuest
	posted [3]map[uint32][]virtq.Buf
	cookie uint32
	used   [3][]virtq.Used // come, not yet received
	flight [3]int          // sent, not yet done
}

func (g *suiteGuest) Port() *nic.Port { return g.dev.Port() }
func (g *suiteGuest) MAC() wire.MAC   { return g.mac }

// Copied asks the queue's worker.
func (g *suiteGuest) Copied(q int) *dma.Counts { return g.dev.Counts(q) }

func (g *suiteGuest) SetSplit(q int, on bool) {
	g.t.Helper()
	g.must(g.Port().SetSplit(control.Split{Queue: uint16(q), On: on}))
}

func (g *suiteGuest) split(q int) bool {
	s, err := g.Port().Split(uint16(q))
	g.must(err)
	return s.On
}

const poison = 0xee

func (g *suiteGuest) Post(q, n int) {
	g.t.Helper()
	for range n {
		var bufs []virtq.Buf
		if g.split(q) {
			addr, mem := g.alloc(268)
			copy(mem, bytes.Repeat([]byte{poison}, len(mem)))
			bufs = []virtq.Buf{{Addr: addr, Len: 268}, {Addr: rawGPU + g.gpuNext, Len: nictest.PayloadBuf}}
			g.gpuNext = (g.gpuNext + nictest.PayloadBuf) % (rawGPUSize / 2)
		} else {
			addr, _ := g.alloc(68 << 10)
			bufs = []virtq.Buf{{Addr: addr, Len: 68 << 10}}
		}
		g.cookie = (g.cookie + 1) % rawRing
		g.posted[q][g.cookie] = bufs
		g.must(g.rings[2*q].Add(nil, bufs, g.cookie))
	}
	g.publish(2 * q)
}

func (g *suiteGuest) at(addr uint64) []byte {
	if addr >= rawGPU {
		return g.gpuMem[addr-rawGPU:]
	}
	return g.mem[addr:]
}

func (g *suiteGuest) add(q int, f *nictest.Frame, gpu bool) {
	g.t.Helper()
	hdr := make([]byte, 12)
	if f.Partial {
		hdr[0] = 1
		binary.LittleEndian.PutUint16(hdr[6:], f.Start)
		binary.LittleEndian.PutUint16(hdr[8:], f.Offset)
	}
	if f.GSO != splitter.GSONone {
		hdr[1] = map[splitter.GSOType]byte{splitter.GSOTCPv4: 1, splitter.GSOTCPv6: 4}[f.GSO]
		binary.LittleEndian.PutUint16(hdr[4:], f.MSS)
	}
	head := append(hdr, f.Header...)
	addr, mem := g.alloc(len(head))
	copy(mem, head)
	bufs := []virtq.Buf{{Addr: addr, Len: uint32(len(head))}}
	if len(f.Payload) > 0 {
		if addr = rawGPU + rawGPUSize/2; !gpu {
			addr, _ = g.alloc(len(f.Payload))
		}
		copy(g.at(addr), f.Payload)
		bufs = append(bufs, virtq.Buf{Addr: addr, Len: uint32(len(f.Payload))})
	}
	g.must(g.rings[2*q+1].Add(bufs, nil, 0))
	g.flight[q]++
}

func (g *suiteGuest) Queue(q int, fs ...nictest.Frame) {
	g.t.Helper()
	for i := range fs {
		g.add(q, &fs[i], false)
	}
	g.publish(2*q + 1)
}

func (g *suiteGuest) Sent(q int) {
	g.t.Helper()
	var used [rawRing]virtq.Used
	for g.flight[q] > 0 {
		g.flight[q] -= g.poll(2*q+1, used[:])
	}
}

func (g *suiteGuest) Send(q int, fs ...nictest.Frame) {
	g.t.Helper()
	g.Queue(q, fs...)
	g.Sent(q)
}

func (g *suiteGuest) SendGPU(q int, f nictest.Frame) {
	g.t.Helper()
	g.add(q, &f, true)
	g.publish(2*q + 1)
	g.Sent(q)
}

func (g *suiteGuest) next(q int) virtq.Used {
	if len(g.used[q]) == 0 {
		var used [rawRing]virtq.Used
		n := g.poll(2*q, used[:])
		g.used[q] = append(g.used[q], used[:n]...)
	}
	u := g.used[q][0]
	g.used[q] = g.used[q][1:]
	return u
}

func (g *suiteGuest) Receive(q int) (f nictest.Frame) {
	g.t.Helper()
	u := g.next(q)
	bufs := g.posted[q][u.Cookie]
	if f.Split = len(bufs) == 2; u.Len == 0 {
		return f // given back
	}
	first := g.at(bufs[0].Addr)[:bufs[0].Len]
	hdr := first[:12]
	le := binary.LittleEndian
	f.Partial, f.Good = hdr[0]&1 != 0, hdr[0]&2 != 0
	f.Start, f.Offset, f.MSS = le.Uint16(hdr[6:]), le.Uint16(hdr[8:]), le.Uint16(hdr[4:])
	f.GSO = map[byte]splitter.GSOType{0: splitter.GSONone, 1: splitter.GSOTCPv4, 4: splitter.GSOTCPv6}[hdr[1]&0x7f]
	f.Buffers = int(le.Uint16(hdr[10:]))
	if !f.Split {
		f.Header = bytes.Clone(first[12:u.Len])
		if n := le.Uint16(hdr[2:]); n != 0 && f.GSO == splitter.GSONone {
			g.t.Errorf("hdr_len %d of a frame that is not split", n)
		}
		return f
	}
	n := uint32(le.Uint16(hdr[2:]))
	f.Header = bytes.Clone(first[12 : 12+n])
	clean := 12 + n
	left := u.Len - 12 - n
	for i := range f.Buffers {
		if i > 0 {
			u = g.next(q)
			bufs = g.posted[q][u.Cookie]
			clean, left = 0, u.Len
		}
		for _, b := range g.at(bufs[0].Addr)[clean:bufs[0].Len] {
			f.Dirty = f.Dirty || b != poison
		}
		f.Payload = append(f.Payload, g.at(bufs[1].Addr)[:left]...)
	}
	return f
}
