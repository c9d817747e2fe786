package loader

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

func TestServerThatIsKilledAndRestarted(t *testing.T) {
	for _, copied := range []bool{false, true} {
		t.Run(fmt.Sprintf("copy=%v", copied), func(t *testing.T) {
			w := newWorld(t)
			w.conf.Copy, w.conf.Connections, w.conf.RangeSize = copied, 1, 1<<20
			file := random(3<<20+11, 11)
			s := &server{t: t, addr: "127.0.0.1:0"}
			const half = 1<<20 + 300_000 // the first server sends the second range's body up to this offset of the file
			reached := make(chan struct{})
			s.start(func(rw http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != fmt.Sprintf("bytes=%d-%d", 1<<20, 2<<20-1) {
					content(file)(rw, r)
					return
				}
				rw.Header().Set("ETag", `"v1"`)
				rw.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 1<<20, 2<<20-1, len(file)))
				rw.Header().Set("Content-Length", fmt.Sprint(1<<20))
				rw.WriteHeader(http.StatusPartialContent)
				_, _ = rw.Write(file[1<<20 : half])
				_ = http.NewResponseController(rw).Flush()
				close(reached)
				<-r.Context().Done()
			})
			o := w.open("http://" + s.addr + "/file")
			var mu sync.Mutex
			var asked []string
			restarted := make(chan struct{})
			go func() {
				defer close(restarted)
				<-reached
				testkit.Eventually(t, "what was sent has come", func() bool { return o.Stats().Payload == half })
				s.kill()
				s.start(func(rw http.ResponseWriter, r *http.Request) {
					mu.Lock()
					asked = append(asked, r.Header.Get("Range"))
					mu.Unlock()
					content(file)(rw, r)
				})
			}()
			w.whole(o, file, 123)
			<-restarted
			s.kill()
			mu.Lock()
			defer mu.Unlock()
			testkit.Equal(t, "the first that is asked for again", asked[0], fmt.Sprintf("bytes=%d-%d", half, 2<<20-1))
			st := o.Stats()
			testkit.Equal(t, "resumed", st.Resumed, 1)
			testkit.Equal(t, "payload", st.Payload, uint64(len(file)))
		})
	}
}

func TestBodiesThatEndEarly(t *testing.T) {
	w := newWorld(t)
	file := random(100_000, 12)
	s := raw(t, file, func(c *net.TCPConn, _ *bufio.Reader, a ask) bool { // sends a third of what is asked for, and closes
		_, _ = c.Write(append(head206(a.off, a.n, len(file)), file[a.off:a.off+(a.n+2)/3]...))
		return false
	})
	w.conf.Connections, w.conf.RangeSize = 2, 10_000
	o := w.open(s.url)
	w.whole(o, file, 1)
	if o.Stats().Resumed == 0 {
		t.Errorf("%+v: nothing broke", o.Stats())
	}
	for i, a := range s.all() {
		if end := a.off + a.n; end%10_000 != 0 && end != len(file) {
			t.Errorf("request %d asks for [%d, +%d), which is no rest of a range", i, a.off, a.n)
		}
	}
}

func TestNoProgressIsAnError(t *testing.T) {
	for name, f := range map[string]func(c *net.TCPConn, in *bufio.Reader, a ask) bool{
		"ends":   func(*net.TCPConn, *bufio.Reader, ask) bool { return false },
		"resets": func(c *net.TCPConn, _ *bufio.Reader, _ ask) bool { _ = c.SetLinger(0); return false },
		"half a head": func(c *net.TCPConn, _ *bufio.Reader, a ask) bool {
			_, _ = c.Write(head206(a.off, a.n, 1000)[:40])
			return false
		},
		"no body": func(c *net.TCPConn, _ *bufio.Reader, a ask) bool {
			_, _ = c.Write(head206(a.off, a.n, 1000))
			return false
		},
		"says nothing": func(_ *net.TCPConn, in *bufio.Reader, _ ask) bool { _, _ = in.Peek(1); return false },
		"goes on to say nothing": func(c *net.TCPConn, in *bufio.Reader, a ask) bool {
			_, _ = c.Write(head206(a.off, a.n, 1000))
			_, _ = in.Peek(1)
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 64<<10)
			file := random(1000, 13)
			var friendly atomic.Bool
			s := raw(t, file, func(c *net.TCPConn, in *bufio.Reader, a ask) bool {
				if friendly.Load() {
					return good(c, file, a)
				}
				return f(c, in, a)
			})
			w.conf.Connections = 1
			o := w.open(s.url)
			o.c.Timeout, o.c.Retry = 50*time.Millisecond, 20*time.Millisecond
			_, err := w.fetch(o, Piece{Len: 1000, Mem: 100})
			testkit.ErrorSays(t, err, "no progress", "bytes 0-999", s.url)
			w.only(0, 0)
			friendly.Store(true)
			o.c.Timeout, o.c.Retry = testkit.Patience, testkit.Patience
			w.whole(o, file, 0)
		})
	}
}

func TestServerThatIsGoneIsAnError(t *testing.T) {
	w := newWorld(t)
	file := random(1000, 14)
	s := &server{t: t, addr: "127.0.0.1:0"}
	s.start(content(file))
	o := w.open("http://" + s.addr)
	o.c.Retry = 20 * time.Millisecond
	s.kill()
	_, err := w.fetch(o, Piece{Len: 1000})
	testkit.ErrorIs(t, err, syscall.ECONNREFUSED)
	testkit.ErrorSays(t, err, "no server listens at its port")
	o.c.Retry = testkit.Patience
	s.start(content(file))
	w.whole(o, file, 0)
	s.kill()
}

func TestServerThatClosesConnections(t *testing.T) {
	file := random(100_000, 15)
	for name, f := range map[string]func(c *net.TCPConn, a ask) bool{
		"and says so": func(c *net.TCPConn, a ask) bool {
			if a.nth < 4 {
				return good(c, file, a)
			}
			_, _ = c.Write(append(head206(a.off, a.n, len(file), "Connection: close\r\n"), file[a.off:a.off+a.n]...))
			return false
		},
		"and does not say so": func(c *net.TCPConn, a ask) bool { return good(c, file, a) && a.nth < 4 },
		"at once, and says so": func(c *net.TCPConn, a ask) bool {
			_, _ = c.Write(append(head206(a.off, a.n, len(file), "Connection: close\r\n"), file[a.off:a.off+a.n]...))
			return false
		},
		"as HTTP/1.0": func(c *net.TCPConn, a ask) bool {
			h := bytes.Replace(head206(a.off, a.n, len(file)), []byte("HTTP/1.1"), []byte("HTTP/1.0"), 1)
			_, _ = c.Write(append(h, file[a.off:a.off+a.n]...))
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 128<<10)
			s := raw(t, file, func(c *net.TCPConn, _ *bufio.Reader, a ask) bool {
				if f(c, a) {
					return true
				}
				// Read the requests that follow, because a close with unread requests would reset the connection.
				_ = c.CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				return false
			})
			w.conf.RangeSize, w.conf.Connections = 1000, 3
			o := w.open(s.url)
			w.whole(o, file, 0)
			st := o.Stats()
			testkit.Equal(t, "connections that broke", st.Resumed, 0)
			if st.Connections < 20 {
				t.Errorf("%d connections of some responses each, for 100", st.Connections)
			}
		})
	}
}
