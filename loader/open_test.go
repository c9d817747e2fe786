package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// refused fails the test unless Open fails with an error that is want, if want is not nil, and that contains each
// string of says.
func (w *world) refused(url string, want error, says ...string) {
	w.t.Helper()
	o, err := Open(w.t.Context(), url, w.conf)
	if err == nil {
		w.t.Errorf("%s: it is opened", url)
		testkit.OK(w.t, o.Close())
		return
	}
	if want != nil {
		testkit.ErrorIs(w.t, err, want, "open %s", url)
	}
	testkit.ErrorSays(w.t, err, says...)
}

func TestURLsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	w.refused("https://127.0.0.1/x", syscall.EOPNOTSUPP, "https", "TLS")
	w.refused("ftp://127.0.0.1/x", syscall.EINVAL, `"ftp"`, "http://")
	w.refused("/x", syscall.EINVAL, `""`)
	w.refused("http:127.0.0.1", syscall.EINVAL)
	w.refused("http:///x", syscall.EINVAL, "no host")
	w.refused("http://a b/", syscall.EINVAL)
	w.refused("http://127.0.0.1:99999/", syscall.EINVAL, "99999")
	w.refused("http://jo:hush@127.0.0.1/x", syscall.EINVAL, "Authorization")
	for _, url := range []string{"http://jo:hush@127.0.0.1/x", "http://127.0.0.1:1/x?key=hush", "http://[::1/x?key=hush"} {
		if _, err := Open(t.Context(), url, w.conf); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("error %v: it fails and keeps the secret", err)
		}
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	file := random(1000, 20)
	s := serve(t, content(file))
	header := func(name, value string) func(*Config) {
		return func(c *Config) { c.Header = http.Header{name: {value}} }
	}
	small := testkit.Must(w.dev.Register(0, dstSize, 4*poolEach-devmem.PageSize))(t)
	for name, c := range map[string]struct {
		set  func(*Config)
		want error
	}{
		"no device":       {func(c *Config) { c.Device = nil }, syscall.EINVAL},
		"no memory":       {func(c *Config) { c.Memory = nil }, syscall.EINVAL},
		"no pool":         {func(c *Config) { c.Pool = nil }, syscall.EINVAL},
		"small pool":      {func(c *Config) { c.Pool = small }, syscall.ENOSPC},
		"queue 0":         {func(c *Config) { c.Queue = 0 }, syscall.ERANGE},
		"65 connections":  {func(c *Config) { c.Connections = 65 }, syscall.EINVAL},
		"-1 connections":  {func(c *Config) { c.Connections = -1 }, syscall.EINVAL},
		"17 requests":     {func(c *Config) { c.Pipeline = 17 }, syscall.EINVAL},
		"long ranges":     {func(c *Config) { c.RangeSize = 1<<30 + 1 }, syscall.EINVAL},
		"negative time":   {func(c *Config) { c.Timeout = -1 }, syscall.EINVAL},
		"negative retry":  {func(c *Config) { c.Retry = -1 }, syscall.EINVAL},
		"Range":           {header("range", "bytes=0-1"), syscall.EINVAL},
		"If-Match":        {header("IF-MATCH", "x"), syscall.EINVAL},
		"Connection":      {header("Connection", "close"), syscall.EINVAL},
		"Content-Length":  {header("Content-Length", "1"), syscall.EINVAL},
		"TE":              {header("Transfer-Encoding", "chunked"), syscall.EINVAL},
		"Accept-Encoding": {header("accept-encoding", "gzip"), syscall.EINVAL},
		"bad name":        {header("a b", "x"), syscall.EINVAL},
		"bad value":       {header("X", "a\r\nRange: bytes=0-0"), syscall.EINVAL},
		"bad Host":        {header("Host", "a b"), syscall.EINVAL},
	} {
		conf := w.conf
		c.set(&conf)
		o, err := Open(t.Context(), s.URL, conf)
		testkit.ErrorIs(t, err, c.want, name)
		if o != nil {
			t.Errorf("%s: there is an Object", name)
		}
	}
	w.whole(w.open(s.URL), file, 0)
}

func TestServersThatAreRefused(t *testing.T) {
	file := random(1000, 21)
	answer := func(code int, body string, headers ...string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				rw.Header().Set(headers[i], headers[i+1])
			}
			rw.WriteHeader(code)
			_, _ = io.WriteString(rw, body)
		}
	}
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want error
		says []string
	}{
		"no ranges": {answer(200, "all of it"), syscall.EOPNOTSUPP, []string{"200", "nginx"}},
		"chunked": {func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Range", "bytes 0-0/10")
			rw.WriteHeader(206)
			_ = http.NewResponseController(rw).Flush()
			_, _ = io.WriteString(rw, "x")
		}, syscall.EOPNOTSUPP, []string{"chunked"}},
		"gzip": {answer(206, "x", "Content-Encoding", "gzip", "Content-Range", "bytes 0-0/10"), syscall.EOPNOTSUPP,
			[]string{"gzip"}},
		"multipart": {answer(206, "x", "Content-Type", "multipart/byteranges; boundary=B", "Content-Range", "bytes 0-0/10"),
			syscall.EOPNOTSUPP, []string{"multipart/byteranges"}},
		"no Content-Range": {answer(206, "x"), ErrProtocol, []string{"Content-Range"}},
		"size is not known": {answer(206, "x", "Content-Range", "bytes 0-0/*"), ErrProtocol,
			[]string{"0-0/*", "how long the file is"}},
		"another range": {answer(206, "x", "Content-Range", "bytes 1-1/10"), ErrProtocol, []string{"1-1/10"}},
		"more than the range": {answer(206, "xy", "Content-Range", "bytes 0-0/10"), ErrProtocol,
			[]string{"Content-Length 2"}},
		"range beyond": {answer(206, "x", "Content-Range", "bytes 0-0/0"), ErrProtocol, nil},
		"huge size": {answer(206, "x", "Content-Range", "bytes 0-0/99999999999999999999"), ErrProtocol,
			[]string{"99999999999999999999"}},
		"not found":       {answer(404, "no such file"), nil, []string{"404 Not Found"}},
		"cannot at all":   {answer(501, ""), nil, []string{"501 Not Implemented"}},
		"empty":           {content(nil), syscall.ENODATA, []string{"empty"}},
		"empty, as nginx": {answer(416, "", "Content-Range", "bytes */0"), syscall.ENODATA, []string{"empty"}},
		"no place to go":  {answer(302, ""), nil, []string{"302 Found"}},
		"to https": {answer(301, "", "Location", "https://127.0.0.1/x"), syscall.EOPNOTSUPP,
			[]string{"https", "redirect"}},
		"to another thing": {answer(301, "", "Location", "file:///etc/passwd"), syscall.EINVAL, []string{`"file"`}},
		"with a user":      {answer(301, "", "Location", "http://a:b@127.0.0.1/"), syscall.EINVAL, []string{"Authorization"}},
		"in a circle":      {answer(307, "", "Location", "/again"), syscall.ELOOP, []string{"10 redirects"}},
		"a head of 100 KB": {answer(206, "x", "X", strings.Repeat("x", 100<<10), "Content-Range", "bytes 0-0/10"), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 64<<10)
			w.refused(serve(t, c.h).URL, c.want, c.says...)
			if _, err := Open(t.Context(), serve(t, c.h).URL, w.conf); strings.HasPrefix(name, "not found") {
				e := (*StatusError)(nil)
				if !errors.As(err, &e) || e.Code != 404 {
					t.Errorf("%v is no StatusError", err)
				}
			}
			w.whole(w.open(serve(t, content(file)).URL), file, 0)
		})
	}
}

func TestRedirectsAreFollowed(t *testing.T) {
	w := newWorld(t)
	file := random(50_000, 22)
	var asked atomic.Int64
	var auth atomic.Value
	there := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		auth.Store(r.Header.Get("Authorization") + "|" + r.Header.Get("X-Mine") + "|" + r.Header.Get("Referer"))
		content(file)(rw, r)
	})
	here := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		n := 0
		_, _ = fmt.Sscan(r.URL.Path[1:], &n)
		// For net/http another name is another host, also with the same address.
		http.Redirect(rw, r, strings.Replace(there.URL, "127.0.0.1", "there.example", 1)+"/file?key=1", n)
	})
	w.conf.Header = http.Header{"Authorization": {"Bearer hush"}, "X-Mine": {"mine"}}
	w.conf.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
		if host != "127.0.0.1" && host != "there.example" { // Resolve also gets literal addresses
			t.Errorf("host %s", host)
		}
		return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}, nil
	}
	for i, code := range []int{301, 302, 303, 307, 308} {
		o := testkit.Must(Open(t.Context(), fmt.Sprintf("%s/%d#part", here.URL, code), w.conf))(t)
		w.whole(o, file, i)
		testkit.Equal(t, "URL", o.URL(), strings.Replace(there.URL, "127.0.0.1", "there.example", 1)+"/file?key=1")
		testkit.OK(t, o.Close())
		testkit.Equal(t, "requests that were redirected", asked.Load(), int64(i+1))
		testkit.Equal(t, "headers on another host", auth.Load().(string), "|mine|")
	}
}

func TestHeadersAreSent(t *testing.T) {
	w := newWorld(t)
	file := random(5000, 23)
	var mu sync.Mutex
	var seen []http.Header
	s := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		mu.Lock()
		seen = append(seen, r.Header.Clone())
		mu.Unlock()
		content(file)(rw, r)
	})
	w.conf.RangeSize = 1000
	w.conf.Header = http.Header{"authorization": {"Bearer x"}, "Host": {"data.example"}, "X-Two": {"a", "b"}}
	o := w.open(s.URL)
	w.whole(o, file, 0)
	testkit.OK(t, o.ReadHost(t.Context(), make([]byte, 7), 10))
	mu.Lock()
	defer mu.Unlock()
	for i, h := range seen {
		if i > 0 {
			testkit.Equal(t, "If-Match", h.Get("If-Match"), `"v1"`)
		}
		got := h.Get("Host") + h.Get("Authorization") + strings.Join(h["X-Two"], "+") + h.Get("User-Agent") +
			h.Get("Accept-Encoding")
		testkit.Equal(t, "headers", got, "data.exampleBearer xa+bvnic-loader")
	}
	testkit.Equal(t, "requests", len(seen), 7)
}

func TestReadHostReadsToTheHost(t *testing.T) {
	w := newWorld(t)
	file := random(100_000, 24)
	o := w.open(serve(t, content(file)).URL)
	p := make([]byte, 5001)
	testkit.OK(t, o.ReadHost(t.Context(), p, 777))
	if !bytes.Equal(p, file[777:777+5001]) {
		t.Error("it has other bytes than the file")
	}
	testkit.OK(t, o.ReadHost(t.Context(), nil, 100_000))
	testkit.ErrorIs(t, o.ReadHost(t.Context(), p, 95_000), syscall.EINVAL)
	testkit.ErrorIs(t, o.ReadHost(t.Context(), p, ^uint64(0)), syscall.EINVAL)
	testkit.Equal(t, "stats", o.Stats(), Stats{HeaderBytes: 1 + 5001})
	testkit.Equal(t, "bytes looked at", w.conf.Memory.Stats().Looked, 0)
}

func TestAddressesThatCannotBeReached(t *testing.T) {
	w := newWorld(t)
	file := random(1000, 25)
	s := serve(t, content(file))
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.URL, "http://"))
	gone := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	addr := gone.Addr().String()
	testkit.OK(t, gone.Close())
	w.refused("http://"+addr, syscall.ECONNREFUSED, addr)

	var give []netip.Addr
	bad := errors.New("no such host")
	w.conf.Resolve = func(context.Context, string) ([]netip.Addr, error) {
		if give == nil {
			return nil, bad
		}
		return give, nil
	}
	url := "http://data.example:" + port
	w.refused(url, bad, "data.example")
	w.conf.Local = netip.MustParseAddr("127.0.0.1")
	give = []netip.Addr{netip.MustParseAddr("::1")}
	w.refused(url, syscall.EADDRNOTAVAIL, "127.0.0.1")
	w.refused("http://[::1]:"+port, syscall.EADDRNOTAVAIL)
	give = []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("127.0.0.1")}
	w.whole(w.open(url), file, 0) // the second one refuses, the third one accepts
}

func TestOpenEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	asked := make(chan struct{})
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-asked
		cancel(why)
	}()
	_, err := Open(ctx, s.URL, w.conf)
	testkit.ErrorIs(t, err, why)
	w.conf.Timeout = 20 * time.Millisecond
	quiet := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if _, err := Open(t.Context(), quiet.URL, w.conf); err == nil {
		t.Error("a server that says nothing is waited for")
	}
}
