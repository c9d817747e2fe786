package loader

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	dstSize  = 8 << 20
	poolSize = 4 << 20
	poison   = 0xa5
)

type rules struct {
	devmem.Device
	n, added atomic.Int64
	full     atomic.Bool // if set, AddFlow fails with ENOSPC
}

func (r *rules) AddFlow(f devmem.Flow) (devmem.FlowID, error) {
	if r.full.Load() {
		return 0, syscall.ENOSPC
	}
	id, err := r.Device.AddFlow(f)
	if err == nil {
		r.n.Add(1)
		r.added.Add(1)
	}
	return id, err
}

func (r *rules) DelFlow(id devmem.FlowID) error {
	err := r.Device.DelFlow(id)
	if err == nil {
		r.n.Add(-1)
	}
	return err
}

// world has a device with a GPU, a destination buffer in its memory, and the configuration for Open.
type world struct {
	t    *testing.T
	gpu  *plain.GPU
	dev  *rules
	dst  devmem.Buffer
	conf Config
}

func newWorld(t *testing.T) *world { return newWorldOf(t, dstSize) }

func newWorldOf(t *testing.T, size uint64) *world {
	t.Helper()
	testkit.LeavesNothing(t)
	w := &world{t: t, gpu: testkit.Must(plain.NewGPU(dstSize + poolSize))(t)}
	dev := testkit.Must(plain.New(plain.Options{GPUs: []*plain.GPU{w.gpu}}))(t)
	w.dev = &rules{Device: dev}
	t.Cleanup(func() {
		testkit.Equal(t, "flow rules that are left", w.dev.n.Load(), 0)
		testkit.Equal(t, "bindings that are left", len(dev.Stats().Bindings), 0)
		testkit.OK(t, dev.Close())
		testkit.OK(t, w.gpu.Close())
	})
	w.dst = testkit.Must(dev.Register(0, 0, size))(t)
	w.conf = Config{Device: w.dev, Memory: plain.NewMemory(w.gpu), Queue: 1,
		Pool: testkit.Must(dev.Register(0, dstSize, poolSize))(t), Timeout: testkit.Patience, Retry: testkit.Patience}
	w.poison()
	return w
}

// clock is the clock behind Config.now. Only calls of Config.after advance it: at once, and by the whole duration.
type clock struct {
	mu     sync.Mutex
	now    time.Time
	paused []time.Duration
}

func (w *world) clock() *clock {
	c := &clock{now: longAgo}
	w.conf.now = func() time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.now
	}
	w.conf.after = func(d time.Duration) <-chan time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now = c.now.Add(d)
		c.paused = append(c.paused, d)
		ch := make(chan time.Time, 1)
		ch <- c.now
		return ch
	}
	return c
}

func (c *clock) pauses() (list []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, c.paused = c.paused, nil
	return list
}

func (w *world) mem() []byte { return w.gpu.Bytes()[:w.dst.Size()] }

func (w *world) poison() { copy(w.mem(), bytes.Repeat([]byte{poison}, len(w.mem()))) }

// only fails the test unless all bytes of the destination outside [off, off+n) are poison.
func (w *world) only(off, n int) {
	w.t.Helper()
	for _, part := range [][]byte{w.mem()[:off], w.mem()[off+n:]} {
		if bytes.Count(part, []byte{poison}) != len(part) {
			w.t.Errorf("memory outside of [%d, +%d) was touched", off, n)
		}
	}
}

func (w *world) open(url string) *Object {
	w.t.Helper()
	o := testkit.Must(Open(w.t.Context(), url, w.conf))(w.t)
	w.t.Cleanup(func() { testkit.OK(w.t, o.Close()) })
	return o
}

func (w *world) fetch(o *Object, list ...Piece) (n int, err error) {
	err = o.Fetch(w.t.Context(), w.dst, Pieces(list...), func(Piece) error {
		n++
		return nil
	})
	return n, err
}

// whole poisons the destination, fetches the whole file to its offset off, and checks all bytes of the destination.
func (w *world) whole(o *Object, file []byte, off int) {
	w.t.Helper()
	w.poison()
	n := testkit.Must(w.fetch(o, Piece{Len: uint64(len(file)), Mem: uint64(off)}))(w.t)
	testkit.Equal(w.t, "pieces", n, 1)
	if !bytes.Equal(w.mem()[off:off+len(file)], file) {
		w.t.Error("the file's bytes are not in their place")
	}
	w.only(off, len(file))
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

var longAgo = time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)

func content(file []byte) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("ETag", `"v1"`)
		http.ServeContent(rw, r, "x.bin", longAgo, bytes.NewReader(file))
	}
}

type ask struct {
	conn     int // number of the connection, from 0
	nth      int // number of the request on the connection, from 0
	off, n   int
	r        *http.Request
	buffered int // how many bytes after the request the server has read already
}

// rawServer is a server whose responses a function of the test writes to the connection as bytes.
type rawServer struct {
	*net.TCPListener
	url  string
	mu   sync.Mutex
	asks []ask
}

// raw starts a server. On the first connection the server itself answers requests for the first byte of the file,
// such as Open's. f answers all other requests, and returns whether the connection stays open.
func raw(t *testing.T, file []byte, f func(c *net.TCPConn, in *bufio.Reader, a ask) bool) *rawServer {
	t.Helper()
	l := testkit.Must(net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	s := &rawServer{TCPListener: l, url: fmt.Sprintf("http://%v/file", l.Addr())}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for conn := 0; ; conn++ {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			work.Go(func() {
				defer stop()
				defer c.Close()
				s.serve(c, conn, file, f)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		cancel()
		work.Wait()
	})
	return s
}

func (s *rawServer) serve(c *net.TCPConn, conn int, file []byte, f func(*net.TCPConn, *bufio.Reader, ask) bool) {
	in := bufio.NewReader(c)
	for nth := 0; ; nth++ {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		a := ask{conn: conn, nth: nth, r: r, buffered: in.Buffered()}
		last := 0
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &a.off, &last)
		if a.n = last + 1 - a.off; a.n == 1 && a.off == 0 && conn == 0 {
			_, _ = c.Write(append(head206(0, 1, len(file)), file[:1]...))
			continue
		}
		s.mu.Lock()
		s.asks = append(s.asks, a)
		s.mu.Unlock()
		if !f(c, in, a) {
			return
		}
	}
}

// all returns the requests so far, without the requests that the server itself answered.
func (s *rawServer) all() []ask {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asks
}

func head206(off, n, size int, more ...string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n"+
		"ETag: \"v1\"\r\n%s\r\n", n, off, off+n-1, size, strings.Join(more, ""))
}

func good(c *net.TCPConn, file []byte, a ask) bool {
	_, err := c.Write(append(head206(a.off, a.n, len(file)), file[a.off:a.off+a.n]...))
	return err == nil
}
