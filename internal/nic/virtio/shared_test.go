package virtio_test

import (
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/virtq"
)

const (
	moreMem  = 1 << 32
	moreUser = rawUser + moreMem
	moreSize = 1 << 20
)

// addMore maps file fd with the mmap flags for the guest, and passes the file to the device as more guest memory.
func (g *suiteGuest) addMore(fd, flags int) (mem []byte) {
	g.Helper()
	mem, err := unix.Mmap(fd, 0, moreSize, unix.PROT_READ|unix.PROT_WRITE, flags)
	g.OK(err)
	g.Cleanup(func() { _ = unix.Munmap(mem) })
	g.OK(g.front.AddMemory(fd, moreMem, moreUser, moreSize, 0))
	return mem
}

func (g *suiteGuest) memfd() int { return int(testkit.Memfd(g, moreSize).Fd()) }

func (g *suiteGuest) lost() int { return int(g.Port().Link().Counters().Drops[wire.DropFault]) }

var memoryCases = map[string]struct {
	add     func(g *suiteGuest) (mem []byte) // as the guest sees it
	reached bool
	line    string // text that the log must have about the memory itself; "": none
}{
	"shared": {add: func(g *suiteGuest) []byte { return g.addMore(g.memfd(), unix.MAP_SHARED) }, reached: true},
	"private": {add: func(g *suiteGuest) []byte { return g.addMore(g.memfd(), unix.MAP_PRIVATE) },
		line: `address=0x100000000 size=0x100000 file="/memfd:`},
	"remapped": {add: func(g *suiteGuest) []byte {
		fd := g.memfd()
		mem := g.addMore(fd, unix.MAP_SHARED)
		g.OK(unix.Munmap(mem[:moreSize:moreSize]))
		g.OK(g.front.RemoveMemory(moreMem, moreUser, moreSize))
		return g.addMore(fd, unix.MAP_PRIVATE)
	}, line: `file="/memfd:`},
	"of no file": {add: func(*suiteGuest) []byte { return make([]byte, moreSize) }},
}

// Invariant: nic/virtio: Frames in memory that is not shared are dropped and counted, and their
// queue continues.
func TestMemoryThatIsNotShared(t *testing.T) {
	for name, c := range memoryCases {
		for _, table := range []bool{false, true} { // true: the frontend sends SET_MEM_TABLE
			t.Run(name+map[bool]string{true: ", whole table"}[table], func(t *testing.T) {
				var log lockedBuffer
				w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, table: table,
					log: slog.New(slog.NewTextHandler(&log, nil))})
				g := w.Bad
				mem := c.add(g)
				before := g.lost()

				// Sent: only the payload lies in the additional memory.
				f := tcp(g, w.A, 1000)
				bufs := g.layOut(&f, false)
				copy(mem, f.Payload)
				bufs[1].Addr = moreMem
				w.A.Post(0, 1)
				for range 3 {
					g.OK(g.rings[1].Add(bufs, nil, 0))
					g.flight[0]++
				}
				g.publish(1)
				g.Sent(0)
				if c.reached {
					nictest.Arrives(t, w.A, 0, &f)
				} else {
					testkit.Equal(t, "frames lost", g.lost()-before, 3)
				}

				// Received: the buffer lies in the additional memory.
				g.OK(g.rings[0].Add(nil, []virtq.Buf{{Addr: moreMem + 1<<16, Len: 68 << 10}}, 200))
				g.publish(0)
				in := tcp(w.A, g, 1000)
				w.A.Send(0, in)
				u := g.next(0)
				testkit.Equal(t, "buffer", u.Cookie, 200)
				if want := map[bool]int{true: g.hdr + len(in.Bytes()), false: 0}[c.reached]; int(u.Len) != want {
					t.Errorf("%d bytes in the buffer, want %d", u.Len, want)
				}

				w.A.Post(0, 1)
				f = tcp(g, w.A, 900)
				g.Send(0, f)
				if c.reached { // otherwise frames were lost above
					testkit.Equal(t, "frames lost", g.lost(), before)
				}
				nictest.Arrives(t, w.A, 0, &f)
				g.Post(0, 1)
				in = tcp(w.A, g, 900)
				w.A.Send(0, in)
				nictest.Arrives(t, g, 0, &in)
				testkit.Equal(t, "queues that stopped", len(g.dev.Errors()), 0)
				if c.reached {
					testkit.Equal(t, "lines of share=on", strings.Count(log.String(), "share=on"), 0)
					return
				}
				for _, queue := range []string{"rx0", "tx0"} {
					line := "whose memory is not shared with the device\" port=c queue=" + queue
					testkit.Eventually(t, line, func() bool { return strings.Contains(log.String(), line) })
					testkit.Equal(t, "lines of "+queue, strings.Count(log.String(), line), 1)
				}
				if !strings.Contains(log.String(), c.line) {
					t.Errorf("no %q in the log: %s", c.line, log.String())
				}
				w.Moves(t)
			})
		}
	}
}

func TestRingInPrivateMemoryIsRefused(t *testing.T) {
	var log lockedBuffer
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, log: slog.New(slog.NewTextHandler(&log, nil))})
	g := w.Bad
	g.addMore(g.memfd(), unix.MAP_PRIVATE)
	base := g.base(1)
	if err := g.front.SetVringAddr(1, moreUser, moreUser+0x10000, moreUser+0x20000); err != nil {
		g.Fatal(err)
	}
	if err := g.front.SetVringKick(1, g.kicks[1]); err == nil {
		t.Error("the ring has started")
	}
	if !strings.Contains(log.String(), "mapped privately, not shared (share=on)") {
		t.Errorf("log: %s", log.String())
	}
	desc, avail, used := g.rings[1].Addrs()
	g.OK(g.front.SetVringAddr(1, rawUser+desc, rawUser+avail, rawUser+used))
	g.setup(1, base)
	w.Moves(t)
}

// Invariant: nic/virtio: A hostile guest harms its own queues only.
func TestReceiveBuffersOutOfReachComeBack(t *testing.T) {
	for name, c := range map[string]struct {
		split  bool
		chains [][]virtq.Buf
	}{
		"unmapped":          {chains: [][]virtq.Buf{{{Addr: 1 << 45, Len: 4096}}}},
		"beyond its region": {chains: [][]virtq.Buf{{{Addr: rawMem - 64, Len: 4096}}}},
		"wraps":             {chains: [][]virtq.Buf{{{Addr: ^uint64(0) - 63, Len: 4096}}}},
		"the third of a frame's": {chains: [][]virtq.Buf{{{Addr: rawMem - 8192, Len: 64}}, {{Addr: rawMem - 4096, Len: 64}},
			{{Addr: 1 << 45, Len: 4096}}}},
		"payload unmapped": {split: true, chains: [][]virtq.Buf{{{Addr: rawMem - 4096, Len: 268},
			{Addr: rawGPU + rawGPUSize, Len: 4096}}}},
		"header is unmapped": {split: true, chains: [][]virtq.Buf{{{Addr: 1 << 45, Len: 268}, {Addr: rawGPU, Len: 4096}}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			q := 0
			if c.split {
				q = 1
				nictest.SplitTo(t, w.Bad, 1, 2000)
			}
			before := w.Bad.lost()
			for range 2 {
				for i, chain := range c.chains {
					w.Bad.OK(w.Bad.rings[2*q].Add(nil, chain, uint32(i)))
				}
				w.Bad.publish(2 * q)
				w.A.Send(0, tcp(w.A, w.Bad, 1000)) // lost, not held
				for i := range c.chains {
					if u := w.Bad.next(q); u.Cookie != uint32(i) || u.Len != 0 {
						t.Errorf("buffer %d: %+v", i, u)
					}
				}
			}
			testkit.Equal(t, "frames lost", w.Bad.lost()-before, 2)
			w.Bad.Post(q, 1)
			f := tcp(w.A, w.Bad, 1000)
			w.A.Send(0, f)
			got := w.Bad.Receive(q)
			testkit.Equal(t, "then", string(got.Bytes()), string(f.Bytes()))
			testkit.Equal(t, "queues that stopped", len(w.Bad.dev.Errors()), 0)
			w.Moves(t)
		})
	}
}

// Invariant: nic/virtio: A hostile guest harms its own queues only.
func TestFramesSentFromOutOfReachAreLost(t *testing.T) {
	for name, out := range map[string][]virtq.Buf{
		"unmapped":          {{Addr: 1 << 45, Len: 200}},
		"beyond its region": {{Addr: rawMem - 64, Len: 200}},
		"huge":              {{Addr: 0, Len: ^uint32(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := w.Bad.lost()
			w.A.Post(0, 2)
			first, last := tcp(w.Bad, w.A, 50), tcp(w.Bad, w.A, 60)
			w.Bad.Add(0, &first, false)
			for range 100 {
				w.Bad.OK(w.Bad.rings[1].Add(out, nil, 9))
				w.Bad.flight[0]++
			}
			w.Bad.Add(0, &last, false)
			w.Bad.publish(1)
			nictest.Arrives(t, w.A, 0, &first)
			nictest.Arrives(t, w.A, 0, &last)
			w.Bad.Sent(0)
			testkit.Equal(t, "frames lost", w.Bad.lost()-before, 100)
			testkit.Equal(t, "queues that stopped", len(w.Bad.dev.Errors()), 0)
			w.Moves(t)
		})
	}
}

// Invariant: nic: A merge that does not fit is undone, and loses no frame that fits alone.
func TestMergeThatMeetsMemoryOutOfReach(t *testing.T) {
	const frames = 10
	w := newWorld(t)
	for i := range uint32(frames) {
		addr, _ := w.B.Alloc(4096)
		if i == 1 {
			addr = 1 << 45
		}
		w.B.OK(w.B.rings[0].Add(nil, []virtq.Buf{{Addr: addr, Len: 4096}}, i))
	}
	w.B.publish(0)
	var fs []nictest.Frame
	for i := range uint32(frames) {
		fs = append(fs, nictest.Make(w.B.mac, w.A.mac, nictest.Spec{V6: true, Payload: 1448, Seq: i * 1448}))
	}
	before := w.B.lost()
	w.A.Send(0, fs...)
	for i := range uint32(frames) {
		want := uint32(w.B.hdr + len(fs[i].Bytes()))
		if i == 1 {
			want = 0
		}
		if u := w.B.next(0); u.Cookie != i || u.Len != want {
			t.Errorf("chain %d: %+v, want %d bytes", i, u, want)
		}
	}
	testkit.Equal(t, "frames lost", w.B.lost()-before, 1)
	testkit.Equal(t, "queues that stopped", len(w.B.dev.Errors()), 0)
	w.Moves(t)
}
