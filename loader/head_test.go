package loader

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func pad(off, n, size, length int) []byte {
	h := head206(off, n, size)
	if more := length - len(h) - len("X: \r\n"); more >= 0 {
		h = head206(off, n, size, "X: "+strings.Repeat("x", more)+"\r\n")
	}
	return h
}

func TestHeadsOfAnyLengthInAnyPieces(t *testing.T) {
	w := newWorldOf(t, 64<<10)
	w.conf.Connections = 1
	file := random(600, 30)
	var length, piece atomic.Int64
	var custom atomic.Pointer[[]byte] // a response head to send; nil: one from pad
	s := raw(t, file, func(c *net.TCPConn, _ *bufio.Reader, a ask) bool {
		h := pad(a.off, a.n, len(file), int(length.Load()))
		if p := custom.Load(); p != nil {
			h = *p
		}
		b := append(bytes.Clone(h), file[a.off:a.off+a.n]...)
		for n := int(piece.Load()); len(b) > 0; {
			k := min(n, len(b))
			if _, err := c.Write(b[:k]); err != nil {
				return false
			}
			b = b[k:]
		}
		return true
	})
	o := w.open(s.url)
	for _, n := range []int{0, 1, 509, 510, 511, 512, 513, 514, 515, 1023, 1024, 1025, 4096, headLimit - 1, headLimit} {
		for _, k := range []int{1 << 20, 7, 511, 512} {
			length.Store(int64(n))
			piece.Store(int64(k))
			before := o.Stats()
			w.whole(o, file, n)
			now := o.Stats()
			if n > 512 && k > 1<<10 && now.Looks-before.Looks < uint64(n/512) {
				t.Errorf("a head of %d bytes was looked at %d times", n, now.Looks-before.Looks)
			}
			if more := now.Looked - before.Looked; more < uint64(n) || more > uint64(n)+lookStep+256 {
				t.Errorf("of a head of %d bytes %d were looked at", n, more)
			}
		}
	}
	piece.Store(1 << 20)
	for _, h := range [][]byte{
		[]byte(strings.ReplaceAll(string(head206(0, 600, 600)), "\r\n", "\n")), // bare LF (RFC 9112, section 2.2)
		append([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"), head206(0, 600, 600)...),
		[]byte("HTTP/1.1 206 \r\ncontent-range: BYTES 0-599/600\r\ncontent-length: 600\r\ncontent-length: 600\r\n\r\n"),
		[]byte("HTTP/1.1 206 x\r\n" +
			"Content-Encoding: identity\r\nContent-Range: bytes 0-599/600\r\nContent-Length: 600\r\n\r\n"),
	} {
		custom.Store(&h)
		w.whole(o, file, 0)
	}
	testkit.Equal(t, "connections that broke", o.Stats().Resumed, 0)
}

const (
	ok = "206 x\r\n"
	cl = "Content-Length: 500\r\n"
	cr = "Content-Range: bytes 1000-1499/10000\r\n"
)

// hostile are heads of responses, without "HTTP/1.1 " and the empty line, to a request for [1000, +500) of 10000
// bytes.
var hostile = map[string]struct {
	head string
	want error
	says string
}{
	"another range": {ok + cl + "Content-Range: bytes 0-499/10000\r\n", ErrProtocol, "bytes 0-499/10000"},
	"less": {ok + "Content-Length: 499\r\nContent-Range: bytes 1000-1498/10000\r\n", ErrProtocol,
		"1000-1499 were"},
	"more":                {ok + "Content-Length: 501\r\nContent-Range: bytes 1000-1500/10000\r\n", ErrProtocol, ""},
	"a long body":         {ok + "Content-Length: 9000\r\n" + cr, ErrProtocol, "Content-Length 9000"},
	"a short body":        {ok + "Content-Length: 5\r\n" + cr, ErrProtocol, "Content-Length 5"},
	"a body of no length": {ok + cr, ErrProtocol, "no Content-Length"},
	"less than nothing":   {ok + "Content-Length: -1\r\n" + cr, ErrProtocol, "Content-Length"},
	"a huge body":         {ok + "Content-Length: 99999999999999999999\r\n" + cr, ErrProtocol, "Content-Length"},
	"two lengths":         {ok + cl + "Content-Length: 501\r\n" + cr, ErrProtocol, "Content-Length"},
	"two ranges":          {ok + cl + cr + "Content-Range: bytes 0-0/10000\r\n", ErrProtocol, "2 headers"},
	"no range":            {ok + cl, ErrProtocol, "0 headers"},
	"a backward range":    {ok + cl + "Content-Range: bytes 1499-1000/10000\r\n", ErrProtocol, "1499-1000"},
	"beyond the file":     {ok + cl + "Content-Range: bytes 1000-1499/1400\r\n", ErrProtocol, "1000-1499/1400"},
	"beyond all files": {ok + cl + "Content-Range: bytes 1000-18446744073709551615/18446744073709551616\r\n",
		ErrProtocol, ""},
	"another size":    {ok + cl + "Content-Range: bytes 1000-1499/20000\r\n", ErrChanged, "20000"},
	"other units":     {ok + cl + "Content-Range: rows 1000-1499/10000\r\n", ErrProtocol, "rows"},
	"signs":           {ok + cl + "Content-Range: bytes +1000-1499/10000\r\n", ErrProtocol, "+1000"},
	"another version": {ok + "ETag: \"v2\"\r\n" + cl + cr, ErrChanged, `"v2"`},
	"chunks":          {ok + "Transfer-Encoding: chunked\r\n" + cr, syscall.EOPNOTSUPP, "chunked"},
	"chunks and more": {ok + "Transfer-Encoding: gzip, chunked\r\n" + cr, ErrProtocol, "gzip"},
	"a coded body":    {ok + "Content-Encoding: br\r\n" + cl + cr, syscall.EOPNOTSUPP, `"br"`},
	"many parts":      {ok + "Content-Type: multipart/byteranges; boundary=x\r\n" + cl, syscall.EOPNOTSUPP, "multipart"},
	"all of it":       {"200 OK\r\nContent-Length: 10000\r\n", syscall.EOPNOTSUPP, "200"},
	"not found":       {"404 Not Found\r\nContent-Length: 0\r\n", nil, `"404 Not Found"`},
	"an odd reason":   {"499 \x1b[31mred\r\nContent-Length: 0\r\n", nil, `\x1b[31mred`},
	"switches":        {"101 Switching Protocols\r\nUpgrade: x\r\n", nil, "101"},
	"goes elsewhere":  {"302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n", nil, "302"},
	"too much":        {ok + "X: " + strings.Repeat("x", headLimit) + "\r\n", ErrProtocol, "16384"},
	"for ever":        {strings.Repeat("100 Continue\r\n\r\nHTTP/1.1 ", 20) + "100 Continue\r\n", ErrProtocol, "1xx"},
	"no header":       {ok + "no header\r\n", ErrProtocol, "no header"},
	"no status":       {"x\r\n", ErrProtocol, ""},
	"an empty line":   {"\n206 x\r\n", ErrProtocol, ""},
	"folded":          {ok + "X: y\r\n \r\nContent-Length: 501\r\n" + cr, ErrProtocol, ""},
}

// Invariant: loader: whatever a server answers, no byte outside of the destination of the request
// is written.
func TestHostileResponsesAreRefused(t *testing.T) {
	w := newWorldOf(t, 64<<10)
	file := random(10_000, 31)
	var now atomic.Pointer[string]
	s := raw(t, file, func(c *net.TCPConn, in *bufio.Reader, a ask) bool {
		h := now.Load()
		if h == nil {
			return good(c, file, a)
		}
		_, _ = c.Write(append([]byte(*h), file...))
		_, _ = in.Peek(1)
		return false
	})
	o := w.open(s.url)
	list := map[string]string{
		"HTTP/2":      "HTTP/2.0 206 x\r\nContent-Length: 500\r\nContent-Range: bytes 1000-1499/10000\r\n\r\n",
		"HTTP/0.9":    "<html>\n\n",
		"binary":      string(random(1000, 32)) + "\n\n",
		"an SSH host": "SSH-2.0-x\r\n\r\n",
	}
	for name, h := range list {
		w.poison()
		now.Store(&h)
		_, err := w.fetch(o, Piece{Off: 1000, Len: 500, Mem: 5000})
		testkit.ErrorIs(t, err, ErrProtocol, name)
		w.only(0, 0)
	}
	for name, c := range hostile {
		h := "HTTP/1.1 " + c.head + "\r\n"
		w.poison()
		now.Store(&h)
		n, err := w.fetch(o, Piece{Off: 1000, Len: 500, Mem: 5000})
		if c.want == nil {
			e := (*StatusError)(nil)
			if !errors.As(err, &e) {
				t.Errorf("%s: %v is no StatusError", name, err)
			}
		} else {
			testkit.ErrorIs(t, err, c.want, name)
		}
		testkit.ErrorSays(t, err, c.says, "bytes 1000-1499")
		testkit.Equal(t, name+": pieces", n, 0)
		w.only(0, 0)
	}
	now.Store(nil)
	w.whole(o, file, 77)
	testkit.Equal(t, "connections that broke", o.Stats().Resumed, 0)
}

func TestBytesBehindABodyAreNotPayload(t *testing.T) {
	w := newWorldOf(t, 64<<10)
	w.conf.Connections = 1
	file := random(10_000, 33)
	s := raw(t, file, func(c *net.TCPConn, in *bufio.Reader, a ask) bool {
		if a.conn > 1 {
			return good(c, file, a)
		}
		_, _ = c.Write(append(append(head206(a.off, a.n, len(file)), file[a.off:a.off+a.n]...), file...))
		_, _ = in.Peek(1)
		return true
	})
	o := w.open(s.url)
	testkit.Must(w.fetch(o, Piece{Off: 1000, Len: 500, Mem: 5000}))(t)
	if !bytes.Equal(w.mem()[5000:5500], file[1000:1500]) {
		t.Error("the piece is not there")
	}
	w.only(5000, 500)
	_, err := w.fetch(o, Piece{Off: 1000, Len: 500, Mem: 5000}) // the loader parses the extra bytes as a head
	testkit.ErrorIs(t, err, ErrProtocol)
	w.only(5000, 500)
	w.whole(o, file, 0)
}

func FuzzHead(f *testing.F) {
	for _, c := range hostile {
		f.Add([]byte("HTTP/1.1 " + c.head + "\r\n"))
	}
	f.Add(head206(1000, 500, 10_000))
	f.Add([]byte("HTTP/1.1 " + ok + cl + "Content-Range: bytes 1000-1499/*\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 206 x\nContent-Range: bytes 1000-1499/10000\nContent-Length: 500\n\nbody"))
	f.Fuzz(func(t *testing.T, b []byte) {
		end := headEnd(b, 0)
		for _, step := range []int{1, 2, 7} { // bytes of each read
			seen := -1
			for have := 0; have < len(b) && seen < 0; have += step {
				seen = headEnd(b[:min(have+step, len(b))], max(0, have-2))
			}
			if seen != end {
				t.Fatalf("the end of %q is %d in steps of %d, and %d at once", b, seen, step, end)
			}
		}
		if end < 0 {
			return
		}
		var p headParser
		resp, err := p.parse(b[:end]) //nolint:bodyclose // the parsed head has no body
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("%q: %v", b, err)
			}
			return
		}
		v, err := partial(resp, 1000, 500)
		if err == nil && (resp.StatusCode != 206 || resp.ContentLength != 500 || v.size != 0 && v.size < 1500 ||
			len(resp.TransferEncoding) > 0) {
			t.Fatalf("%q passes: %+v", b, resp)
		}
		if err == nil {
			h := resp.Header.Get("Content-Range")
			want := fmt.Sprintf("bytes 1000-1499/%d", v.size)
			if v.size == 0 {
				want = "bytes 1000-1499/*"
			}
			if len(h) == len(want) && !strings.EqualFold(h, want) {
				t.Fatalf("Content-Range %q passes", h)
			}
		}
	})
}
