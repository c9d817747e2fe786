package virtio_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

// fuzzPatience (virtio.Config.Patience) is short: frames often wait for a receiver, which tests nothing more.
const fuzzPatience = time.Millisecond

const (
	fuzzRAM  = 16 << 20
	fuzzSlot = 256
)

// fuzzGuest is a guest and its frontend, whose actions the bytes of an input select.
type fuzzGuest struct {
	*suiteGuest
	b      []byte
	peers  [2]*suiteGuest
	avail  [4]uint16
	ro     rawOptions
	hasGPU bool
}

func (g *fuzzGuest) byte() byte {
	if len(g.b) == 0 {
		return 0
	}
	n := g.b[0]
	g.b = g.b[1:]
	return n
}

func (g *fuzzGuest) bytes(n int) []byte {
	n = min(n, len(g.b))
	b := g.b[:n]
	g.b = g.b[n:]
	return b
}

func (g *fuzzGuest) parts(ring byte) (i int, desc, avail, used []byte) {
	i = int(ring) % len(g.rings)
	d, a, u := g.rings[i].Addrs()
	return i, g.RAM[d:], g.RAM[a:], g.RAM[u:]
}

func (g *fuzzGuest) addr() uint64 {
	n := uint64(g.byte())
	k := n / 8
	switch n % 8 {
	case 4:
		d, a, u := g.rings[k%4].Addrs()
		return [...]uint64{d, a, u, d + 8}[k/4%4]
	case 5:
		return rawGPU + k*4096
	case 6:
		return rawMem - k*16
	case 7:
		return [...]uint64{rawGPU + rawGPUSize - 8, 1 << 45, ^uint64(0) - 63, 0}[k%4] + k/4
	}
	return fuzzRAM + n%8*8*fuzzSlot + k*fuzzSlot
}

func (g *fuzzGuest) length() uint32 {
	n := g.byte()
	return [...]uint32{66, 268, 4096, 12, 256, 1526, 0, 11, 65, 16, 65536, 70000, 1 << 20, ^uint32(0), 32, 80}[n%16] +
		uint32(n/16)
}

func (g *fuzzGuest) step() {
	switch op := g.byte(); op % 10 {
	case 0, 1:
		_, desc, _, _ := g.parts(g.byte())
		d := desc[16*(int(g.byte())%24):]
		le.PutUint64(d, g.addr())
		le.PutUint32(d[8:], g.length())
		le.PutUint16(d[12:], uint16(g.byte()%8))
		le.PutUint16(d[14:], uint16(g.byte()%24))
	case 2:
		i, _, avail, _ := g.parts(g.byte())
		for range g.byte()%4 + 1 {
			le.PutUint16(avail[4+2*(int(g.avail[i])%rawRing):], uint16(g.byte()%24))
			g.avail[i]++
		}
		g.show(i, avail)
	case 3: // avail.idx goes back, or forward to entries that the guest has not written
		i, _, avail, _ := g.parts(g.byte())
		g.avail[i] += uint16(int8(g.byte()))
		g.show(i, avail)
	case 4:
		to := [...]wire.MAC{g.peers[0].mac, g.peers[1].mac, g.mac, nictest.Everyone}[g.byte()%4]
		n := int(g.byte()) * 257
		slot, addr := g.slot()
		f := nictest.Make(to, g.mac, nictest.Spec{Payload: n})
		if f.MSS = uint16(g.byte()) * 16; f.MSS > 0 {
			f.GSO = splitter.GSOTCPv4
		}
		copy(slot, append(netHeader(&f), f.Header...))
		for range g.byte() % 8 {
			slot[g.byte()] = g.byte()
		}
		if op/10%2 == 1 {
			g.send(addr, 66+uint32(n))
		}
	case 5:
		f := control.Frame{Dst: wire.ControlMAC, Src: g.mac}
		f.Kind, f.Class, f.Command, f.Session, f.Seq = control.KindRequest, control.Class(g.byte()%16),
			control.Command(g.byte()%8), 1, uint32(g.byte())
		slot, addr := g.slot()
		f.Data = g.bytes(int(g.byte()) % 64)
		g.send(addr, uint32(copy(slot, f.Append(make([]byte, 12)))))
	case 6:
		b := g.RAM[g.addr()%(rawMem-256):]
		copy(b[g.byte():256], g.bytes(int(g.byte())%16))
	case 7:
		p := g.peers[0]
		f := nictest.Make(g.mac, p.mac, nictest.Spec{Payload: int(g.byte()) * 30, V6: op/10%2 == 1, Port: 2000 +
			uint16(op/20%2), UDP: op/40%2 == 1})
		if p.flight[0] < rawRing/4 {
			p.Queue(0, f)
		}
	case 8:
		g.frontend()
	case 9:
		i, _, avail, used := g.parts(g.byte())
		for end := time.Now().Add(time.Millisecond); time.Now().Before(end) && g.dev.Errors()[i] == "" &&
			le.Uint16(used[2:]) != le.Uint16(avail[2:]); {
			runtime.Gosched()
		}
	}
}

func (g *fuzzGuest) slot() (mem []byte, addr uint64) {
	n := uint64(g.byte())
	addr = fuzzRAM + n%8*8*fuzzSlot + n/8*fuzzSlot
	return g.RAM[addr:], addr
}

func (g *fuzzGuest) send(addr uint64, n uint32) {
	_, desc, avail, _ := g.parts(1)
	head := g.avail[1] % 24
	le.PutUint64(desc[16*head:], addr)
	le.PutUint64(desc[16*head+8:], uint64(n))
	le.PutUint16(avail[4+2*(g.avail[1]%rawRing):], head)
	g.avail[1]++
	g.show(1, avail)
}

func (g *fuzzGuest) show(i int, avail []byte) {
	le.PutUint16(avail[2:], g.avail[i])
	g.kick(i)
}

// frontend makes one or more requests of a frontend, or reconnects, as the input selects.
func (g *fuzzGuest) frontend() {
	i := int(g.byte()) % len(g.rings)
	switch g.byte() % 8 {
	case 0:
		g.OK(g.front.SetEnable(i, false))
	case 1:
		g.OK(g.front.SetEnable(i, true))
	case 2:
		g.setup(i, g.base(i))
	case 3:
		g.resume(g.pause())
	case 4:
		g.OK(g.front.ResetDevice())
		for i := range g.rings {
			g.setup(i, 0)
		}
	case 5:
		if g.hasGPU {
			g.OK(g.front.RemoveMemory(rawGPU, rawUser+rawGPU, rawGPUSize))
		} else {
			g.OK(g.front.AddMemory(g.GPU.FD(), rawGPU, rawUser+rawGPU, rawGPUSize, 0))
		}
		g.hasGPU = !g.hasGPU
	case 6:
		g.redial(g.ro, func(i int) uint32 { return uint32(g.avail[i]) })
		g.hasGPU = true
	case 7:
		g.base(i)
		g.setup(i, uint32(uint16(g.byte())-128))
	}
}

// fuzzWorld is a switch and two honest guests. All inputs use the same ones.
type fuzzWorld struct {
	files *dma.Files
	sw    *wire.Switch
	peers [2]*suiteGuest
	flows [2]*numbered
	marks [2]uint64
	blank []byte
}

func newFuzzWorld(f *testing.F) *fuzzWorld {
	files, sw := nictest.Switch(f)
	w := &fuzzWorld{files: files, sw: sw, blank: bytes.Repeat([]byte{poison}, rawGPUSize)}
	for i := range w.peers {
		w.peers[i] = newSuiteGuest(f, w.files, w.sw, i, rawOptions{pairs: 3, mtu: 9000, p2p: true, patience: fuzzPatience})
		w.peers[i].Post(0, 4)
		copy(w.peers[i].GPUMem, w.blank)
	}
	for i := range w.flows {
		w.flows[i] = newNumbered(w.peers[i], w.peers[1-i])
	}
	for i, p := range w.peers {
		w.marks[i] = p.Next
	}
	return w
}

func (w *fuzzWorld) check(t *testing.T) {
	t.Helper()
	for i, p := range w.peers {
		p.Sent(0)
		p.Next = w.marks[i]
		if len(p.dev.Errors()) != 0 {
			t.Errorf("peer %d: %v", i, p.dev.Errors())
		}
		if !bytes.Equal(p.GPUMem, w.blank) {
			t.Errorf("peer %d: its GPU's memory was written", i)
			copy(p.GPUMem, w.blank)
		}
	}
	for i, f := range w.flows {
		deadline := time.Now().Add(10 * time.Second)
		for got := false; !got; { // the first frames may be lost: the switch may have learnt a spoofed address
			if time.Now().After(deadline) {
				t.Fatalf("peer %d does not reach the other", i)
			}
			f.send()
			f.from.Sent(0)
			got = f.arrived()
			w.flows[1-i].arrived()
		}
	}
}

// arrived takes the frames received so far, posts their buffers again, and reports whether the last frame sent is among
// them.
func (n *numbered) arrived() (last bool) {
	var used [rawRing]virtq.Used
	k, err := n.to.rings[0].Poll(used[:])
	n.to.OK(err)
	for _, u := range used[:k] {
		mem := n.to.RAM[n.to.posted[0][u.Cookie][0].Addr:][:u.Len]
		sent := n.mems[(n.sent-1)%inFlight]
		last = last || len(mem) == len(sent) && bytes.Equal(mem[12:], sent[12:])
		n.to.repost(0, u)
	}
	n.to.publish(0)
	return last
}

// Invariant: nic/virtio: A hostile guest harms its own queues only.
func FuzzGuest(f *testing.F) {
	for _, s := range fuzzSeeds() {
		f.Add(s)
	}
	w := newFuzzWorld(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= 2048 {
			w.run(t, b)
		}
	})
}

func (w *fuzzWorld) run(t *testing.T, b []byte) {
	testkit.CheckFDs(t)
	for _, p := range w.peers {
		p.TB = t
	}
	defer w.check(t)
	g := &fuzzGuest{b: b, peers: w.peers, hasGPU: true}
	g.ro = rawOptions{pairs: 2, mtu: 9000, p2p: true, patience: fuzzPatience,
		drop: uint64(g.byte()&1)<<15 | uint64(g.byte()&3)<<28}
	g.suiteGuest = newRawGuest(t, w.files, w.sw, 2, g.ro)
	for len(g.b) > 0 {
		g.step()
	}
	g.hang()
	var behind [rawBehind]byte
	if _, err := unix.Pread(g.FD, behind[:], rawMem); err != nil || behind != [rawBehind]byte{} {
		t.Errorf("written behind the guest's memory: %v", err)
	}
}

func fuzzSeeds() [][]byte {
	desc := func(ring, i, addr, n, flags, next byte) []byte { return []byte{0, ring, i, addr, n, flags, next} }
	avail := func(ring, head byte) []byte { return []byte{2, ring, 0, head} }
	frame := func(to, n, slot byte) []byte { return []byte{4, to, n, slot, 0, 0} }
	work := func(ring byte) []byte { return []byte{9, ring} }
	start := []byte{0, 0}
	sends := func(to byte) []byte {
		return bytes.Join([][]byte{frame(to, 0, 0), desc(1, 0, 0, 0, 0, 0), avail(1, 0), work(1)}, nil)
	}
	receives := bytes.Join([][]byte{desc(0, 0, 8, 2, 2, 0), desc(0, 1, 16, 5, 2, 0), avail(0, 0), avail(0, 1), {7, 3},
		{7, 100}, work(0)}, nil)
	ctx := context.Background()
	commands := bytes.Join([][]byte{
		seedCommand(1, func(c *control.Client) { _, _ = c.Hello(ctx) }),
		seedCommand(2, func(c *control.Client) { _ = c.SetSplit(ctx, control.Split{Queue: 1, On: true}) }),
		seedCommand(3, func(c *control.Client) { _, _ = c.RegisterBuffer(ctx, 2, 0, 1<<20) }),
		seedCommand(4, func(c *control.Client) {
			_, _ = c.AddFlow(ctx, control.FlowRule{Proto: 6, DstPort: 2000, Queue: 1})
		}),
		seedCommand(5, func(c *control.Client) { _, _ = c.BindRx(ctx, 1, 1) }),
		seedCommand(6, func(c *control.Client) {
			_, _ = c.AddFlowCounter(ctx, control.FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.3:2000"),
				Remote: netip.MustParseAddrPort("10.0.0.1:1000")})
		}),
		work(1),
	}, nil)
	jobs := bytes.Join([][]byte{
		seedCommand(7, func(c *control.Client) {
			_, _ = c.SubmitJob(ctx, control.Job{Op: control.JobFill, GPU: 2, Len: 1 << 20, Seed: 1})
		}),
		seedCommand(8, func(c *control.Client) {
			_, _ = c.SubmitJob(ctx, control.Job{Op: control.JobGather, GPU: 2, Len: 4096, Table: fuzzRAM, Entries: 3})
		}),
		seedCommand(9, func(c *control.Client) { _, _ = c.PollJob(ctx, 1) }),
		seedCommand(10, func(c *control.Client) { _, _ = c.CancelJob(ctx, 2) }),
		seedCommand(11, func(c *control.Client) { _, _ = c.PortCounters(ctx) }),
		work(1),
	}, nil)
	undone := bytes.Join([][]byte{
		seedCommand(12, func(c *control.Client) { _ = c.Unbind(ctx, 1) }),
		seedCommand(13, func(c *control.Client) { _ = c.UnregisterBuffer(ctx, 1) }),
		seedCommand(14, func(c *control.Client) { _ = c.SetSplit(ctx, control.Split{Queue: 1}) }),
		work(1),
	}, nil)
	split := bytes.Join([][]byte{desc(2, 0, 24, 1, 3, 1), desc(2, 1, 5, 2, 2, 0), avail(2, 0), {7, 50}, work(2)}, nil)
	var seeds [][]byte
	for _, parts := range [][][]byte{
		{sends(0), sends(1), sends(2), sends(3)},
		{receives, sends(0)},
		{receives, commands, split, {8, 0, 2}, split},
		{receives, commands, jobs, split, {8, 2, 6}, jobs, undone, split},
		{sends(0), {8, 1, 2}, sends(0), {8, 1, 6}, sends(1), receives},
		{receives, {8, 0, 4}, receives, {8, 0, 5}, receives, {3, 0, 255}, work(0)},
		{desc(1, 0, 4, 9, 4, 0), avail(1, 0), work(1), desc(1, 3, 0, 0, 1, 3), avail(1, 3), work(1)},
		{frame(0, 200, 0), desc(1, 0, 0, 0, 1, 1), desc(1, 1, 5, 10, 0, 0), avail(1, 0), work(1)},
	} {
		seeds = append(seeds, append(bytes.Clone(start), bytes.Join(parts, nil)...))
	}
	return seeds
}

func seedCommand(seq byte, do func(*control.Client)) []byte {
	var b firstFrame
	do(control.NewClient(&b, control.ClientOptions{}))
	var f control.Frame
	if err := f.Parse(b); err != nil || len(f.Data) > 63 {
		panic(fmt.Sprint("seed: ", err, len(f.Data)))
	}
	return append([]byte{5, byte(f.Class), byte(f.Command), seq, 8 * seq, byte(len(f.Data))}, f.Data...)
}

// firstFrame is a control.Sender that keeps a copy of the frame, and returns an error so that the client gives up.
type firstFrame []byte

func (b *firstFrame) Send(frame []byte) error {
	*b = bytes.Clone(frame)
	return net.ErrClosed
}
