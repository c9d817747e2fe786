package stack_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() == "" { // with -fuzz, test.parallel is the number of processes that fuzz
		flag.Set("test.parallel", "32") // the tests of loss mostly wait for timers
	}
	goleak.VerifyTestMain(m)
}

// rig is two stacks, A and B, whose NICs are connected.
type rig struct {
	t          testing.TB
	na, nb     *stacktest.NIC
	a, b       *stack.Stack
	a4, b4, a6 netip.Addr
	b6         netip.Addr
}

func newRig(t testing.TB, o stacktest.Options, change ...func(*stack.Options)) *rig {
	t.Helper()
	w := &rig{t: t}
	w.na, w.nb = stacktest.NewPair(o)
	w.a4, w.b4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	w.a6, w.b6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	mk := func(n *stacktest.NIC, a4, a6 netip.Addr) *stack.Stack {
		c := stack.Options{Addresses: []netip.Prefix{netip.PrefixFrom(a4, 24), netip.PrefixFrom(a6, 64)},
			MinRTO: 200 * time.Millisecond} // limits.MinRTORACK, not longer on a slow machine
		for _, f := range change {
			f(&c)
		}
		s, err := stack.New(n, n, c)
		testkit.OK(t, err)
		testkit.OK(t, s.AskNeighbors(60)) // three seconds are short on a busy machine
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			for _, b := range s.Stats().Bindings {
				t.Errorf("binding left after Close: %+v", b)
			}
		})
		return s
	}
	w.a, w.b = mk(w.na, w.a4, w.a6), mk(w.nb, w.b4, w.b6)
	return w
}

// bindRX binds [off, off+size) of a stack's GPU to queues, and steers TCP packets to port (0: to any port) to the first
// of them.
func bindRX(t testing.TB, s *stack.Stack, off, size uint64, port uint16, queues ...int) devmem.Binding {
	t.Helper()
	buf := testkit.Must(s.Register(0, off, size))(t)
	b, err := s.BindRX(buf, queues...)
	testkit.OK(t, err)
	for _, a := range []string{"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"} {
		_, err := s.AddFlow(devmem.Flow{Dst: netip.AddrPortFrom(netip.MustParseAddr(a), port), Queue: queues[0]})
		testkit.OK(t, err)
	}
	return b
}

func bindTX(t testing.TB, s *stack.Stack, off, size uint64) devmem.Binding {
	t.Helper()
	buf := testkit.Must(s.Register(0, off, size))(t)
	b := testkit.Must(s.BindTX(buf))(t)
	return b
}

func unbind(bs ...devmem.Binding) {
	for _, b := range bs {
		b.Close()
	}
	for _, b := range bs {
		<-b.Done()
	}
}

func (w *rig) addr(port uint16) netip.AddrPort { return netip.AddrPortFrom(w.b4, port) }

func (w *rig) connect(port uint16, v6 bool) (a, b devmem.Conn) {
	w.t.Helper()
	addr := w.b4
	if v6 {
		addr = w.b6
	}
	l, err := w.b.Listen(netip.AddrPortFrom(addr, port))
	testkit.OK(w.t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	got := make(chan devmem.Conn, 1)
	go func() {
		c, err := l.AcceptConn()
		testkit.NoError(w.t, err)
		got <- c
	}()
	a, err = w.a.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(addr, port))
	testkit.OK(w.t, err)
	select {
	case b = <-got:
	case <-ctx.Done():
		w.t.Fatal("not accepted")
	}
	a.SetStallLimit(time.Minute)
	b.SetStallLimit(time.Minute)
	return a, b
}

func write(t testing.TB, c devmem.Conn, s string) {
	t.Helper()
	_, err := c.Write([]byte(s))
	testkit.OK(t, err)
}

func send(t testing.TB, c devmem.Conn, tx devmem.Binding, off, n int) {
	t.Helper()
	k := testkit.Must(c.SendDevmem(tx.ID(), []devmem.Range{{Off: uint64(off), Len: uint64(n)}}))(t)
	if k != n {
		t.Fatalf("%d bytes of %d sent", k, n)
	}
}

func completed(t testing.TB, c devmem.Conn) (lo, hi uint32) {
	t.Helper()
	lo, hi, err := c.ReadCompletion(time.Now().Add(time.Minute))
	testkit.OK(t, err)
	return lo, hi
}

// frag receives n bytes that must come as one frag.
func frag(t testing.TB, c devmem.Conn, n int) devmem.Frag {
	t.Helper()
	var f [1]devmem.Frag
	if k, nf, _, err := c.RecvDevmem(f[:], make([]byte, n), 0); k != n || nf != 1 || err != nil {
		t.Fatalf("%d bytes of %d in %d frags: %v", k, n, nf, err)
	}
	return f[0]
}

func skip(t testing.TB, c devmem.Conn, n int) {
	t.Helper()
	for got := 0; got < n; {
		k, _, _, err := c.RecvDevmem(nil, make([]byte, n-got), devmem.Trunc)
		if err != nil {
			t.Fatalf("%v\n%s", err, c.State())
		}
		got += k
	}
}

// pattern fills b with bytes of the pattern that seed selects, from position pos of the pattern on.
func pattern(b []byte, seed, pos uint64) {
	for len(b) > 0 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], mix(seed+pos/8))
		n := copy(b, w[pos%8:])
		b, pos = b[n:], pos+uint64(n)
	}
}

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// sender sends total bytes of a pattern in pieces, each from host memory or from ranges of device memory. It overwrites
// this device memory as soon as the send is complete.
type sender struct {
	conn    devmem.Conn
	binding uint32
	mem     []byte
	seed    uint64
	total   int
	rng     *rand.Rand
	linear  float64         // the probability that a piece is sent from host memory
	first   uint32          // number of the first send
	after   <-chan struct{} // if not nil: the sender closes its direction only after this channel is closed
}

const arena = 64 << 10

func (s *sender) run() error {
	free := make(chan int, len(s.mem)/arena)
	for i := range cap(free) {
		free <- i
	}
	var mu sync.Mutex
	owner := map[uint32]int{} // slot of each send, by its number
	sends := s.first
	const sending, failed = -1, -2
	var end atomic.Int64 // sending, failed, or the number after the last send
	end.Store(sending)
	finished := make(chan error, 1)
	go func() {
		for next := s.first; end.Load() != int64(next); {
			lo, hi, err := s.conn.ReadCompletion(time.Now().Add(time.Second / 4))
			if end.Load() == failed {
				break
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			if err != nil || lo != next || hi < lo {
				finished <- fmt.Errorf("completion [%d, %d], next is %d: %w", lo, hi, next, err)
				return
			}
			for next = lo; next <= hi; next++ {
				mu.Lock()
				slot, ok := owner[next]
				delete(owner, next)
				mu.Unlock()
				if ok {
					clear(s.mem[slot*arena : (slot+1)*arena])
					free <- slot
				}
			}
		}
		finished <- nil
	}()
	err := func() error {
		buf := make([]byte, arena)
		for pos := 0; pos < s.total; {
			n := min(s.size(), s.total-pos)
			if s.rng.Float64() < s.linear {
				pattern(buf[:n], s.seed, uint64(pos))
				if m, err := s.conn.Write(buf[:n]); err != nil || m != n {
					return fmt.Errorf("write %d at %d: %d, %w", n, pos, m, err)
				}
				pos += n
				continue
			}
			var slot int
			select {
			case slot = <-free:
			case err := <-finished:
				finished <- err
				return fmt.Errorf("no slot at %d: completions ended: %w", pos, err)
			}
			off := s.rng.IntN(arena - n + 1)
			pattern(s.mem[slot*arena+off:][:n], s.seed, uint64(pos))
			var ranges []devmem.Range
			for done := 0; done < n; {
				m := min(n-done, 1+s.rng.IntN(n))
				ranges = append(ranges, devmem.Range{Off: uint64(slot*arena + off + done), Len: uint64(m)})
				done += m
			}
			mu.Lock()
			owner[sends] = slot
			mu.Unlock()
			sends++
			if m, err := s.conn.SendDevmem(s.binding, ranges); err != nil || m != n {
				return fmt.Errorf("send %d at %d: %d, %w", n, pos, m, err)
			}
			pos += n
		}
		return nil
	}()
	if err != nil {
		end.Store(failed)
	} else {
		end.Store(int64(sends))
	}
	if err = errors.Join(err, <-finished); err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	if s.after != nil {
		<-s.after
	}
	return s.conn.CloseWrite()
}

func newSender(c devmem.Conn, tx devmem.Binding, mem []byte, seed uint64, total int) *sender {
	return &sender{conn: c, binding: tx.ID(), mem: mem, seed: seed, total: total, rng: rand.New(rand.NewPCG(seed, 8))}
}

func (s *sender) size() int {
	switch s.rng.IntN(4) {
	case 0:
		return 1 + s.rng.IntN(100)
	case 1:
		return 1 + s.rng.IntN(4096)
	}
	return 1 + s.rng.IntN(arena)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// receiver reads a pattern through frags, in random pieces, and returns tokens late.
type receiver struct {
	conn   devmem.Conn
	mem    []byte
	seed   uint64
	total  int
	rng    *rand.Rand
	hold   int // most tokens kept between reads
	device int // bytes received in device memory
	linear int
	got    chan struct{} // if not nil, run closes it when total bytes have come, or when it returns
}

func newReceiver(c devmem.Conn, mem []byte, seed uint64, total, hold int) *receiver {
	return &receiver{conn: c, mem: mem, seed: seed, total: total, rng: rand.New(rand.NewPCG(seed, 9)), hold: hold}
}

func (r *receiver) run() error {
	frags := make([]devmem.Frag, 64)
	linear := make([]byte, 256<<10)
	var tokens []devmem.TokenRange
	want := make([]byte, 64<<10)
	check := func(got []byte, pos int) error {
		for len(got) > 0 {
			n := min(len(got), len(want))
			pattern(want[:n], r.seed, uint64(pos))
			for i := range n {
				if got[i] != want[i] {
					return fmt.Errorf("byte %d is %#x, not %#x", pos+i, got[i], want[i])
				}
			}
			got, pos = got[n:], pos+n
		}
		return nil
	}
	got := sync.OnceFunc(func() {
		if r.got != nil {
			close(r.got)
		}
	})
	defer got()
	giveBack := func(k int) error {
		if freed, err := r.conn.DontNeed(tokens[:k]); err != nil || freed != k {
			return fmt.Errorf("dontneed of %d: %d, %w", k, freed, err)
		}
		tokens = tokens[k:]
		return nil
	}
	for pos := 0; ; {
		if pos == r.total {
			got()
		}
		room, size := 1+r.rng.IntN(len(frags)), 1+r.rng.IntN(len(linear))
		if r.rng.IntN(4) == 0 {
			size = 1 + r.rng.IntN(3000)
		}
		n, nf, nl, err := r.conn.RecvDevmem(frags[:room], linear[:size], 0)
		if err == io.EOF && pos == r.total {
			break
		}
		if err != nil {
			return fmt.Errorf("at %d of %d: %w", pos, r.total, err)
		}
		if n > size || nf > room || n == 0 {
			return fmt.Errorf("recv of %d, %d frags gave %d, %d", size, room, n, nf)
		}
		got := 0
		lin := linear[:nl]
		for _, f := range frags[:nf] {
			b := lin
			if f.Kind == devmem.Dmabuf {
				if f.Off/4096 != (f.Off+uint64(f.Size)-1)/4096 {
					return fmt.Errorf("frag %+v crosses a page", f)
				}
				b = r.mem[f.Off:]
				tokens = append(tokens, devmem.TokenRange{Start: f.Token, Count: 1})
				r.device += int(f.Size)
			} else {
				lin = lin[f.Size:]
			}
			if err := check(b[:f.Size], pos+got); err != nil {
				return fmt.Errorf("%+v: %w", f, err)
			}
			got += int(f.Size)
		}
		r.linear += nl
		if nf == 0 {
			if err := check(lin, pos); err != nil {
				return err
			}
			got = nl
		}
		if got != n {
			return fmt.Errorf("recv says %d bytes, frags say %d", n, got)
		}
		pos += n
		if pos > r.total {
			return fmt.Errorf("%d bytes, only %d were sent", pos, r.total)
		}
		for len(tokens) > r.hold {
			k := min(len(tokens), 1+r.rng.IntN(devmem.MaxTokenRanges))
			r.rng.Shuffle(len(tokens), func(i, j int) { tokens[i], tokens[j] = tokens[j], tokens[i] })
			if err := giveBack(k); err != nil {
				return err
			}
		}
	}
	for len(tokens) > 0 {
		if err := giveBack(min(len(tokens), devmem.MaxTokenRanges)); err != nil {
			return err
		}
	}
	return nil
}

func short(n int) int {
	if testing.Short() {
		return n / 4
	}
	return n
}

// all runs functions at the same time, and returns an error if one fails. When one fails, all closes the connections.
func all(conns []devmem.Conn, fs ...func() error) error {
	var g errgroup.Group
	var once sync.Once
	for _, f := range fs {
		g.Go(func() error {
			err := f()
			if err != nil {
				once.Do(func() {
					for _, c := range conns {
						err = fmt.Errorf("%w\n%s", err, c.State())
					}
					for _, c := range conns {
						c.Close()
					}
				})
			}
			return err
		})
	}
	return g.Wait()
}

// balanced waits until each page of receive bindings is free or posted, and no send is incomplete.
func balanced(t testing.TB, s *stack.Stack) {
	t.Helper()
	open := func(b devmem.BindingStats) bool {
		return b.Queued != 0 || b.Held != 0 || b.Sends != 0 || !b.TX && b.Free+b.Posted != b.Pages
	}
	defer func() {
		if t.Failed() {
			t.Logf("%+v", s.Stats().Bindings)
		}
	}()
	testkit.Eventually(t, "bindings are balanced", func() bool { return !slices.ContainsFunc(s.Stats().Bindings, open) })
}
