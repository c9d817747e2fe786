// Package devmemtest is the conformance suite of package devmem: it runs over any implementation
// and checks the semantics, mostly Linux's (such as byte accounting, where calls stop, errors by
// number, tokens, limits, meaning of completions, life of bindings). MemoryCases is the suite of
// devmem.Memory.
//
// The implementation's own test makes a World for each case:
//
//	func TestConformance(t *testing.T) {
//		for _, c := range devmemtest.Cases() {
//			t.Run(c.Name, func(t *testing.T) { c.Run(t, newWorld(t)) })
//		}
//	}
//
// A program that is not a test, for example in a guest, runs a case with Check or CheckMemory.
//
// A world is a device and an ordinary TCP host that can reach it, and is used for one case.
//
// The package is not API (README, Stability).
package devmemtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// T is the part of *testing.T that a case needs.
type T interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(f func())
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
}

// World is the environment of a case. The function that makes it registers its end with T.Cleanup.
type World struct {
	Dev  devmem.Device
	Addr netip.Addr
	// Queues are receive queues of Dev that can be bound, at least 2, in rising order. Only flow rules lead
	// packets to them.
	Queues []int
	GPU    int
	// Memory is the GPU's: at least 4 MiB, all zero at first.
	Memory Memory

	Host Host
	// Strict: tokens are issued as on Linux, the lowest free number first, from 1.
	Strict bool
	// Pages: Dev.Stats counts the pages of bindings by their state.
	Pages bool
}

// Memory is device memory as the CPU sees it.
type Memory interface {
	io.ReaderAt
	io.WriterAt
}

// Host is an ordinary TCP host. Its connections have the method SetLinger of net.TCPConn.
type Host interface {
	Listen(local netip.AddrPort) (net.Listener, error)
	Dial(ctx context.Context, local, remote netip.AddrPort) (net.Conn, error)
	Addr() netip.Addr
}

// Bytes is Memory over a slice.
type Bytes []byte

// ReadAt implements io.ReaderAt.
func (b Bytes) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(b)) || len(p) > len(b)-int(off) {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(p, b[off:]), nil
}

// WriteAt implements io.WriterAt.
func (b Bytes) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(b)) || len(p) > len(b)-int(off) {
		return 0, io.ErrShortWrite
	}
	return copy(b[off:], p), nil
}

const (
	port     = 5201
	rxOff    = 0 // offset of the receive buffer in the GPU's memory
	rxSize   = 1 << 20
	txOff    = 2 << 20
	txSize   = 1 << 20
	patience = time.Minute
)

type env struct {
	T
	*World
}

// Case is one case of the suite.
type Case struct {
	Name string
	run  func(e *env)
}

// Run runs the case in w, which no other case has used.
func (c Case) Run(t T, w *World) {
	t.Helper()
	c.run(&env{t, w})
}

// Cases returns the suite, except MemoryCases.
func Cases() (cs []Case) {
	for _, group := range []struct {
		name  string
		cases []testCase
	}{{"bind", bindCases}, {"receive", receiveCases}, {"tokens", tokenCases}, {"send", sendCases}, {"close", closeCases}} {
		for _, c := range group.cases {
			cs = append(cs, Case{group.name + "/" + c.name, c.run})
		}
	}
	return cs
}

type testCase struct {
	name string
	run  func(e *env)
}

func (e *env) buffer(off, size uint64) devmem.Buffer {
	e.Helper()
	b, err := e.Dev.Register(e.GPU, off, size)
	testkit.OK(e, err)
	if b.GPU() != e.GPU || b.Offset() != off || b.Size() != size {
		e.Errorf("buffer [%#x, +%#x) of gpu %d, not [%#x, +%#x)", b.Offset(), b.Size(), b.GPU(), off, size)
	}
	return b
}

func (e *env) bindRX() devmem.Binding {
	e.Helper()
	b, err := e.Dev.BindRX(e.buffer(rxOff, rxSize), e.Queues[0])
	testkit.OK(e, err)
	return b
}

func (e *env) bindTX() devmem.Binding {
	e.Helper()
	b, err := e.Dev.BindTX(e.buffer(txOff, txSize))
	testkit.OK(e, err)
	return b
}

func (e *env) steer() devmem.FlowID {
	e.Helper()
	id, err := e.Dev.AddFlow(devmem.Flow{Dst: netip.AddrPortFrom(e.Addr, port), Queue: e.Queues[0]})
	testkit.OK(e, err)
	return id
}

func (e *env) accept() (devmem.Conn, net.Conn) {
	e.Helper()
	l, err := e.Dev.Listen(netip.AddrPortFrom(e.Addr, port))
	testkit.OK(e, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(e.Context(), patience)
	defer cancel()
	var host net.Conn
	dialed := e.background(func() (err error) {
		host, err = e.Host.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(e.Addr, port))
		return err
	})
	c, err := l.AcceptConn()
	testkit.OK(e, err)
	dialed()
	e.deadlines(c, host)
	return c, host
}

// steered opens a connection whose received payload goes to a new receive binding.
func (e *env) steered() (devmem.Binding, devmem.Conn, net.Conn) {
	e.Helper()
	b := e.bindRX()
	e.steer()
	c, host := e.accept()
	return b, c, host
}

func (e *env) sender(seed uint64, n int) (b devmem.Binding, c devmem.Conn, host net.Conn, mem []byte) {
	e.Helper()
	b, mem = e.bindTX(), data(seed, n)
	c, host = e.accept()
	e.store(0, mem)
	return b, c, host, mem
}

func (e *env) deadlines(cs ...net.Conn) {
	for _, c := range cs {
		_ = c.SetDeadline(time.Now().Add(patience))
		e.Cleanup(func() { c.Close() })
	}
}

func data(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// background runs f while the case continues. wait waits for f's end, and fails the case if f has returned an
// error. A case sends much data in f, and receives it meanwhile: the windows of both ends limit the data in flight.
func (e *env) background(f func() error) (wait func()) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return func() {
		e.Helper()
		testkit.OK(e, <-done)
	}
}

func writeAll(c net.Conn, b []byte) error {
	if n, err := c.Write(b); err != nil || n != len(b) {
		return fmt.Errorf("write of %d: %d, %w", len(b), n, err)
	}
	return nil
}

func (e *env) write(c net.Conn, b []byte) {
	e.Helper()
	testkit.OK(e, writeAll(c, b))
}

func (e *env) stream(c devmem.Conn, host net.Conn, want []byte) {
	e.Helper()
	wait := e.background(func() error { return writeAll(host, want) })
	e.recvAll(c, want)
	wait()
}

// arrive makes the host write n bytes, waits until they can be read, and returns them.
func (e *env) arrive(c devmem.Conn, host net.Conn, seed uint64, n int) []byte {
	e.Helper()
	b := data(seed, n)
	e.write(host, b)
	e.arrived(c, n)
	return b
}

// arrived waits until one call of RecvDevmem can receive n bytes from c.
func (e *env) arrived(c devmem.Conn, n int) {
	e.Helper()
	frags, linear := make([]devmem.Frag, 256), make([]byte, n)
	got := 0
	for ok := e.poll(func() bool {
		m, nf, _, err := c.RecvDevmem(frags, linear, devmem.Peek)
		if err != nil {
			e.Fatalf("peek: %v", err)
		}
		e.free(c, frags[:nf])
		got = m
		return m == n
	}); !ok; {
		e.Fatalf("%d bytes arrived, not %d", got, n)
	}
}

func (e *env) poll(f func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if f() {
			return true
		}
	}
	return false
}

func (e *env) free(c devmem.Conn, frags []devmem.Frag) {
	e.Helper()
	var list devmem.Tokens
	for _, f := range frags {
		if f.Kind == devmem.Dmabuf {
			list.Add(f.Token)
		}
	}
	testkit.OK(e, list.GiveBack(c))
}

// bytes returns the bytes of the frags, or linear if there are no frags.
func (e *env) bytes(frags []devmem.Frag, linear []byte) []byte {
	e.Helper()
	if len(frags) == 0 {
		return linear
	}
	var out []byte
	for _, f := range frags {
		if f.Kind == devmem.Linear {
			out = append(out, linear[:f.Size]...)
			linear = linear[f.Size:]
			continue
		}
		b := make([]byte, f.Size)
		if _, err := e.Memory.ReadAt(b, int64(rxOff+f.Off)); err != nil {
			e.Fatalf("frag %+v: %v", f, err)
		}
		out = append(out, b...)
	}
	if len(linear) > 0 {
		e.Errorf("%d linear bytes that no frag has", len(linear))
	}
	return out
}

func (e *env) recv(c devmem.Conn, room, n int, flags devmem.RecvFlags) ([]devmem.Frag, []byte) {
	e.Helper()
	frags, linear := make([]devmem.Frag, room), make([]byte, n)
	m, nf, nl, err := c.RecvDevmem(frags, linear, flags)
	if err != nil {
		e.Fatalf("recv: %v", err)
	}
	b := e.bytes(frags[:nf], linear[:nl])
	if len(b) != m {
		e.Fatalf("recv gave %d bytes in %d frags, and says %d", len(b), nf, m)
	}
	return frags[:nf], b
}

func (e *env) recvAll(c devmem.Conn, want []byte) {
	e.Helper()
	e.recvEach(c, 256, want, func([]devmem.Frag) {})
}

// recvEach is recvAll with at most room frags in each call. After a call it calls check, and then returns the
// tokens.
func (e *env) recvEach(c devmem.Conn, room int, want []byte, check func(frags []devmem.Frag)) {
	e.Helper()
	for got := 0; got < len(want); {
		frags, b := e.recv(c, room, len(want)-got, 0)
		check(frags)
		e.equal("received", b, want[got:got+len(b)])
		e.free(c, frags)
		got += len(b)
	}
}

func (e *env) dontNeed(c devmem.Conn, what string, known int, ranges ...devmem.TokenRange) {
	e.Helper()
	if n, err := c.DontNeed(ranges); n != known || err != nil {
		e.Errorf("%s: %d were known, not %d, %v", what, n, known, err)
	}
}

// unused checks, if Pages is set, that a binding's pages hold no data, and no token is held.
func (e *env) unused(b devmem.Binding) {
	e.Helper()
	if s, _ := e.binding(b.ID()); e.Pages && s.Held+s.Queued != 0 {
		e.Errorf("all tokens are back: %+v", s)
	}
}

func (e *env) readAll(c net.Conn, want []byte) {
	e.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil {
		e.Fatalf("read %d of %d: %v", n, len(want), err)
	}
	e.equal("read", got, want)
}

func (e *env) readWhile(c net.Conn, want []byte, f func() error) {
	e.Helper()
	wait := e.background(f)
	e.readAll(c, want)
	wait()
}

func (e *env) equal(what string, got, want []byte) {
	e.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < len(got) && i < len(want) && got[i] == want[i] {
			i++
		}
		e.Fatalf("%s: %d bytes, want %d; they differ from byte %d on", what, len(got), len(want), i)
	}
}

func errOf(results ...any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

func (e *env) errorIs(what string, err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (e *env) store(off int, b []byte) {
	e.Helper()
	testkit.OK(e, errOf(e.Memory.WriteAt(b, int64(txOff+off))))
}

func (e *env) binding(id uint32) (devmem.BindingStats, bool) {
	for _, b := range e.Dev.Stats().Bindings {
		if b.ID == id {
			return b, true
		}
	}
	return devmem.BindingStats{}, false
}
