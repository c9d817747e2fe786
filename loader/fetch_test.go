package loader

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

func TestFetchBringsTheRightBytes(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		size, rangeSize, connections, pipeline int
		copy                                   bool
	}{
		{1, 1, 1, 1, false},
		{511, 100, 3, 2, false},
		{4096, 4096, 1, 1, false},
		{100_003, 1000, 1, 16, false},
		{100_003, 777, 8, 4, false},
		{100_003, 777, 8, 4, true},
		{3<<20 + 7, 1 << 20, 4, 2, false},
		{3<<20 + 7, 1 << 20, 4, 2, true},
		{3<<20 + 7, 65_537, 64, 1, false},
		{7 << 20, 4 << 20, 2, 2, false},
		{7 << 20, 32 << 10, 2, 3, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			file := random(c.size, 1)
			s := serve(t, content(file))
			conf := w.conf
			conf.RangeSize, conf.Connections, conf.Pipeline, conf.Copy = uint64(c.rangeSize), c.connections, c.pipeline, c.copy
			o := testkit.Must(Open(t.Context(), s.URL, conf))(t)
			defer func() { testkit.OK(t, o.Close()) }()
			if n := len(w.dev.Stats().Bindings); c.copy != (n == 0) {
				t.Errorf("%d bindings", n)
			}
			testkit.Equal(t, "size", o.Size(), uint64(c.size))
			testkit.Equal(t, "ETag", o.ETag(), `"v1"`)
			w.whole(o, file, 4097)
			st := o.Stats()
			testkit.Equal(t, "payload", st.Payload, uint64(c.size))
			testkit.Equal(t, "requests", st.Requests, uint64((c.size+c.rangeSize-1)/c.rangeSize))
			if c.copy {
				if st.HostBytes <= st.Payload || st.Looked != 0 {
					t.Errorf("%+v, want all of it in host memory", st)
				}
			} else if st.HostBytes != 0 || st.Looked == 0 || st.Looks < st.Requests {
				t.Errorf("%+v, want none of it in host memory", st)
			}
			w.whole(o, file, 0) // a second Fetch, on the same connections
			if now := o.Stats(); now.Resumed != 0 {
				t.Errorf("%+v: connections did not last", now)
			}
		})
	}
}

// Invariant: loader: with ranges of 1 MiB, and response heads of at most 1000 bytes, the CPU looks
// at less than a thousandth of the received bytes.
func TestLittleIsLookedAt(t *testing.T) {
	w := newWorld(t)
	file := random(8<<20, 2)
	s := serve(t, content(file))
	o := w.open(s.URL)
	w.whole(o, file, 0)
	st := o.Stats()
	if st.Looked*1000 >= st.Payload || st.HostBytes != 0 {
		t.Errorf("%+v", st)
	}
	testkit.Equal(t, "bytes that Memory looked at", w.conf.Memory.Stats().Looked, st.Looked)
	testkit.Equal(t, "bytes put", w.conf.Memory.Stats().Put, 0)
	testkit.Equal(t, "rules of connections", w.dev.added.Load(), int64(st.Connections))
}

func TestPiecesGoWhereTheyBelong(t *testing.T) {
	w := newWorld(t)
	file := random(1<<20, 3)
	s := serve(t, content(file))
	w.conf.RangeSize = 10_000
	o := w.open(s.URL)
	var list []Piece
	want := bytes.Clone(w.mem())
	for i := range 100 { // in memory backwards, with gaps
		p := Piece{Off: uint64(i * 10_007), Len: uint64(1 + i*173), Mem: uint64((99 - i) * 20_011)}
		list = append(list, p)
		copy(want[p.Mem:], file[p.Off:p.Off+p.Len])
	}
	left := make(map[Piece]bool)
	for _, p := range list {
		left[p] = true
	}
	testkit.OK(t, o.Fetch(t.Context(), w.dst, Pieces(list...), func(p Piece) error {
		if !left[p] || !bytes.Equal(w.mem()[p.Mem:p.Mem+p.Len], file[p.Off:p.Off+p.Len]) {
			t.Errorf("%+v is done and was before, or is not there", p)
		}
		delete(left, p)
		return nil
	}))
	testkit.Equal(t, "pieces that were not done", len(left), 0)
	if !bytes.Equal(w.mem(), want) {
		t.Error("the memory is not what it should be")
	}
}

func TestMoreThanOneRequestIsUnderWay(t *testing.T) {
	w := newWorld(t)
	file := random(10_000, 4)
	wait := make(chan struct{}) // closed when two more pieces wait for the only connection
	s := raw(t, file, func(c *net.TCPConn, in *bufio.Reader, a ask) bool {
		switch a.nth {
		case 0:
			<-wait
		case 1: // answer this one only after the next request has come
			if _, err := in.Peek(1); err != nil {
				return false
			}
		}
		return good(c, file, a)
	})
	w.conf.Connections, w.conf.Pipeline = 1, 2
	o := w.open(s.url)
	i := 0
	testkit.OK(t, o.Fetch(t.Context(), w.dst, func(context.Context) (p Piece, ok bool) {
		if i++; i == 4 {
			close(wait)
		}
		return Piece{Off: uint64(i-1) * 1000, Len: 1000, Mem: uint64(i-1) * 1000}, i <= 10
	}, func(Piece) error { return nil }))
	if !bytes.Equal(w.mem()[:10_000], file) {
		t.Error("the file's bytes are not in their place")
	}
	if first := s.all()[0]; first.buffered != 0 {
		t.Error("a request was sent before it was known that the connection goes on")
	}
	testkit.Equal(t, "connections that broke", o.Stats().Resumed, 0)
}

func TestWrongByteIsSeen(t *testing.T) {
	w := newWorld(t)
	file := random(1<<20, 5)
	bad := bytes.Clone(file)
	bad[700_001] ^= 1
	s := serve(t, content(bad))
	o := w.open(s.URL)
	testkit.Must(w.fetch(o, Piece{Len: uint64(len(file))}))(t)
	if sha256.Sum256(w.mem()[:len(file)]) == sha256.Sum256(file) {
		t.Error("the digest is that of the file, which has another byte")
	}
	testkit.Equal(t, "the byte", w.mem()[700_001], bad[700_001])
}

type elsewhere struct{ devmem.Buffer }

func (elsewhere) GPU() int { return 1 }

func TestBadPiecesAreRefused(t *testing.T) {
	w := newWorld(t)
	file := random(100_000, 6)
	s := serve(t, content(file))
	o := w.open(s.URL)
	for _, c := range []struct {
		p    Piece
		want error
	}{
		{Piece{Len: 0}, syscall.EINVAL},
		{Piece{Off: 100_001, Len: 1}, syscall.EINVAL},
		{Piece{Off: 99_999, Len: 2}, syscall.EINVAL},
		{Piece{Off: ^uint64(0), Len: 2}, syscall.EINVAL},
		{Piece{Off: 1, Len: ^uint64(0)}, syscall.EINVAL},
		{Piece{Len: 2, Mem: dstSize - 1}, syscall.EFAULT},
		{Piece{Len: 1, Mem: ^uint64(0)}, syscall.EFAULT},
	} {
		_, err := w.fetch(o, c.p)
		testkit.ErrorIs(t, err, c.want, "%+v", c.p)
	}
	testkit.Equal(t, "requests", o.Stats().Requests, 0)
	err := o.Fetch(t.Context(), w.conf.Pool, Pieces(Piece{Len: 1}), nil)
	testkit.ErrorIs(t, err, syscall.EINVAL, "fetch to the pool")
	err = o.Fetch(t.Context(), elsewhere{w.dst}, Pieces(Piece{Len: 1}), nil)
	testkit.ErrorIs(t, err, syscall.EXDEV, "fetch to another gpu")
	w.whole(o, file, 0)
}

func TestAnErrorOfDoneEndsFetch(t *testing.T) {
	w := newWorld(t)
	file := random(1<<20, 7)
	s := serve(t, content(file))
	w.conf.RangeSize = 1000
	o := w.open(s.URL)
	bad, n := errors.New("bad"), 0
	var list []Piece
	for i := range 1000 {
		list = append(list, Piece{Off: uint64(i * 1000), Len: 1000, Mem: uint64(i * 1000)})
	}
	err := o.Fetch(t.Context(), w.dst, Pieces(list...), func(Piece) error {
		if n++; n == 10 {
			return bad
		}
		return nil
	})
	testkit.ErrorIs(t, err, bad)
	testkit.Equal(t, "pieces done", n, 10)
	w.whole(o, file, 0)
}

func TestContextEndsFetch(t *testing.T) {
	w := newWorld(t)
	file := random(1<<20, 8)
	begun := make(chan struct{}, MaxConnections*MaxPipeline)
	var quiet atomic.Bool
	quiet.Store(true)
	s := raw(t, file, func(c *net.TCPConn, in *bufio.Reader, a ask) bool {
		if !quiet.Load() {
			return good(c, file, a)
		}
		_, _ = c.Write(append(head206(a.off, a.n, len(file)), file[a.off:a.off+a.n/2]...))
		begun <- struct{}{}
		_, _ = in.Peek(1)
		return false
	})
	o := w.open(s.url)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-begun
		cancel(why)
	}()
	err := o.Fetch(ctx, w.dst, Pieces(Piece{Len: uint64(len(file))}), func(Piece) error { return nil })
	testkit.ErrorIs(t, err, why)

	// Fetch also ends if the context ends while next waits.
	ctx, cancel = context.WithCancelCause(t.Context())
	err = o.Fetch(ctx, w.dst, func(ctx context.Context) (p Piece, ok bool) {
		cancel(why)
		<-ctx.Done()
		return p, false
	}, nil)
	testkit.ErrorIs(t, err, why)
	quiet.Store(false)
	w.whole(o, file, 0)
}

func TestCloseEndsFetch(t *testing.T) {
	w := newWorld(t)
	file := random(1<<20, 9)
	begun := make(chan struct{}, MaxConnections)
	s := raw(t, file, func(_ *net.TCPConn, in *bufio.Reader, _ ask) bool {
		begun <- struct{}{}
		_, _ = in.Peek(1)
		return false
	})
	o := testkit.Must(Open(t.Context(), s.url, w.conf))(t)
	ended := make(chan error)
	go func() {
		_, err := w.fetch(o, Piece{Len: uint64(len(file))})
		ended <- err
	}()
	<-begun
	_, err := w.fetch(o, Piece{Len: 1})
	testkit.ErrorIs(t, err, syscall.EBUSY, "a second Fetch")
	testkit.OK(t, o.Close())
	testkit.ErrorIs(t, <-ended, net.ErrClosed)
	_, err = w.fetch(o, Piece{Len: 1})
	testkit.ErrorIs(t, err, net.ErrClosed)
	testkit.OK(t, o.Close())
	w.whole(w.open(serve(t, content(file)).URL), file, 0)
}

func TestRuleThatIsRefusedIsAnError(t *testing.T) {
	w := newWorld(t)
	file := random(10_000, 18)
	o := w.open(serve(t, content(file)).URL)
	w.dev.full.Store(true)
	_, err := w.fetch(o, Piece{Len: 10_000})
	testkit.ErrorIs(t, err, syscall.ENOSPC)
	testkit.Equal(t, "requests that nobody would have got the answer of", o.Stats().Requests, 0)
	w.only(0, 0)
	w.dev.full.Store(false)
	w.whole(o, file, 0)
}

type brokenMemory struct{ devmem.Memory }

func (brokenMemory) Gather(context.Context, devmem.Buffer, devmem.Buffer, []devmem.Move) error {
	return syscall.EIO
}

func TestMemorysErrorIsFinal(t *testing.T) {
	w := newWorld(t)
	s := serve(t, content(random(1<<20, 10)))
	w.conf.Memory = brokenMemory{w.conf.Memory}
	o := w.open(s.URL)
	n, err := w.fetch(o, Piece{Len: 1 << 20})
	testkit.ErrorIs(t, err, syscall.EIO)
	testkit.Equal(t, "pieces", n, 0)
	testkit.Equal(t, "connections that were made anew", o.Stats().Resumed, 0)
}

// server serves on its address until it is killed, and can be started again.
type server struct {
	t    *testing.T
	addr string
	http *http.Server
	done chan struct{}
}

func (s *server) start(h http.HandlerFunc) {
	l := testkit.Must(net.Listen("tcp4", s.addr))(s.t)
	s.addr = l.Addr().String()
	s.http, s.done = &http.Server{Handler: h}, make(chan struct{})
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l)
	}()
}

func (s *server) kill() {
	_ = s.http.Close()
	<-s.done
}

func TestFileThatChanges(t *testing.T) {
	file, other := random(100_000, 16), random(100_000, 17)
	for name, c := range map[string]struct {
		etag, modified bool // which validators responses have
		deaf           bool // the server ignores conditions
		now            []byte
		says           string
	}{
		"by ETag":                       {true, true, false, other, `is "v2"`},
		"by Last-Modified":              {false, true, false, other, "Last-Modified"},
		"by ETag of the response":       {true, false, true, other, "ETag"},
		"by the date of the response":   {false, true, true, other, "Last-Modified"},
		"by its size":                   {false, false, true, append(other, 1), "size"},
		"by its size, which is shorter": {false, false, true, other[:10], "size"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 128<<10)
			var changed atomic.Bool
			s := serve(t, func(rw http.ResponseWriter, r *http.Request) {
				now, tag, date := file, `"v1"`, longAgo
				if changed.Load() {
					now, tag, date = c.now, `"v2"`, longAgo.Add(time.Hour)
				}
				if c.etag {
					rw.Header().Set("ETag", tag)
				}
				if !c.modified {
					date = time.Time{}
				}
				if c.deaf {
					r.Header.Del("If-Match")
					r.Header.Del("If-Unmodified-Since")
				}
				http.ServeContent(rw, r, "x.bin", date, bytes.NewReader(now))
			})
			w.conf.RangeSize, w.conf.Connections, w.conf.Pipeline = 1000, 1, 1
			o := w.open(s.URL)
			var list []Piece
			for i := range 100 {
				list = append(list, Piece{Off: uint64(i * 1000), Len: 1000, Mem: uint64(i * 1000)})
			}
			n := 0
			err := o.Fetch(t.Context(), w.dst, Pieces(list...), func(Piece) error {
				n++
				changed.Store(n >= 50)
				return nil
			})
			testkit.ErrorIs(t, err, ErrChanged)
			testkit.ErrorSays(t, err, c.says)
			if n < 50 || n > 60 || !bytes.Equal(w.mem()[:50_000], file[:50_000]) {
				t.Errorf("%d pieces done; those before the change are to be the file's", n)
			}
			testkit.ErrorIs(t, o.ReadHost(t.Context(), make([]byte, 10), 5000), ErrChanged)
			changed.Store(false)
			w.whole(o, file, 0)
		})
	}
}
