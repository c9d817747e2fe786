package loader

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// labelled returns a handler that serves ranges of a file. For the n-th response, counted from 1, f returns the size
// in Content-Range, and may set headers.
func labelled(file []byte, f func(n int64, h http.Header) (size string)) http.HandlerFunc {
	var asked atomic.Int64
	return func(rw http.ResponseWriter, r *http.Request) {
		off, last := 0, 0
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &off, &last)
		size := f(asked.Add(1), rw.Header())
		rw.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%s", off, last, size))
		rw.Header().Set("Content-Length", fmt.Sprint(last+1-off))
		rw.WriteHeader(http.StatusPartialContent)
		_, _ = rw.Write(file[off : last+1])
	}
}

// Content-Range may have * in place of the size (RFC 9110, section 14.4).
func TestSizeIsSaidOnce(t *testing.T) {
	file := random(300_000, 70)
	for _, from := range []int64{1, 2, 3} { // number of the first response without the size
		w := newWorld(t)
		w.conf.RangeSize = 100_000
		s := serve(t, labelled(file, func(n int64, _ http.Header) string {
			if n >= from {
				return "*"
			}
			return fmt.Sprint(len(file))
		}))
		if from == 1 {
			w.refused(s.URL, ErrProtocol, "bytes 0-0/*", "does not say how long the file is", "first response")
			continue
		}
		o := w.open(s.URL)
		w.whole(o, file, 3)
		p := make([]byte, 1000)
		testkit.OK(t, o.ReadHost(t.Context(), p, 5))
		testkit.Equal(t, "host bytes", string(p), string(file[5:1005]))
	}
}

func TestValidatorsOfSeveralServers(t *testing.T) {
	file := random(400_000, 71)
	const (
		etag  = "Etag"
		date  = "Last-Modified"
		when  = "Thu, 02 Jan 2020 03:04:05 GMT"
		later = "Thu, 02 Jan 2020 03:04:06 GMT"
	)
	type headers = map[string]string
	for name, c := range map[string]struct {
		first, then, last headers
		says              []string // parts of the error; nil: no error
	}{
		"the same":             {headers{etag: `"a"`, date: when}, headers{etag: `"a"`, date: when}, nil, nil},
		"strong, then weak":    {headers{etag: `"a"`}, headers{etag: `W/"a"`}, nil, nil},
		"weak, then strong":    {headers{etag: `W/"a"`}, headers{etag: `"a"`}, nil, nil},
		"weak":                 {headers{etag: `W/"a"`, date: when}, headers{etag: `W/"a"`, date: when}, nil, nil},
		"another time, strong": {headers{etag: `"a"`, date: when}, headers{etag: `"a"`, date: later}, nil, nil},
		"another time, weak": {headers{etag: `W/"a"`, date: when}, headers{etag: `"a"`, date: later}, nil,
			[]string{date}},
		"another time":             {headers{date: when}, headers{date: later}, nil, []string{date, when, later}},
		"RFC 850":                  {headers{date: when}, headers{date: "Thursday, 02-Jan-20 03:04:05 GMT"}, nil, nil},
		"asctime":                  {headers{date: when}, headers{date: "Thu Jan  2 03:04:05 2020"}, nil, nil},
		"asctime, of another time": {headers{date: when}, headers{date: "Thu Jan  2 03:04:06 2020"}, nil, []string{date}},
		"no dates, alike":          {headers{date: "x"}, headers{date: "x"}, nil, nil},
		"no dates":                 {headers{date: "x"}, headers{date: "y"}, nil, []string{date}},
		"another ETag": {headers{etag: `"n1-a"`, date: when}, headers{etag: `"n2-a"`, date: when}, nil,
			[]string{"ETag", `"n1-a"`, `"n2-a"`}},
		"another weak ETag":         {headers{etag: `W/"a"`}, headers{etag: `W/"b"`}, nil, []string{"ETag"}},
		"another case":              {headers{etag: `"a"`}, headers{etag: `"A"`}, nil, []string{"ETag"}},
		"none later":                {headers{etag: `"a"`, date: when}, nil, nil, nil},
		"none first":                {nil, headers{etag: `"a"`, date: when}, headers{etag: `"a"`, date: when}, nil},
		"none first, then two":      {nil, headers{etag: `"a"`}, headers{etag: `"b"`}, []string{"ETag"}},
		"none first, then two days": {nil, headers{date: when}, headers{date: later}, []string{date}},
		"without quotes":            {headers{etag: "a"}, headers{etag: "a"}, nil, nil},
		"without quotes first":      {headers{etag: "a"}, headers{etag: `"a"`}, nil, nil},
		"without quotes, another":   {headers{etag: "a"}, headers{etag: "b"}, nil, []string{"ETag"}},
		"empty":                     {headers{etag: `""`}, headers{etag: `""`}, nil, nil},
		"empty, then another":       {headers{etag: `""`}, headers{etag: `"a"`}, nil, []string{"ETag"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 512<<10)
			w.conf.RangeSize, w.conf.Connections, w.conf.Pipeline = 100_000, 1, 1
			s := serve(t, labelled(file, func(n int64, h http.Header) string {
				say := c.then
				switch {
				case n == 1:
					say = c.first
				case n > 2 && c.last != nil:
					say = c.last
				}
				for k, v := range say {
					h.Set(k, v)
				}
				return fmt.Sprint(len(file))
			}))
			o := w.open(s.URL)
			if c.says == nil {
				w.whole(o, file, 0)
				return
			}
			_, err := w.fetch(o, Piece{Len: uint64(len(file))})
			testkit.ErrorIs(t, err, ErrChanged)
			testkit.ErrorSays(t, err, c.says...)
		})
	}
}

// RFC 9110, sections 13.1.1, 13.1.4 and 5.6.7.
func TestConditionsOfRequests(t *testing.T) {
	const date = "Thu, 02 Jan 2020 03:04:05 GMT"
	for _, c := range []struct{ etag, modified, match, unmodified string }{
		{`"a"`, date, `"a"`, ""},
		{`""`, "", `""`, ""},
		{`W/"a"`, date, "", date},
		{`W/"a"`, "", "", ""},
		{"a", date, "", date},
		{`"`, date, "", date},
		{`"a`, date, "", date},
		{"", "Thursday, 02-Jan-20 03:04:05 GMT", "", date},
		{"", "Thu Jan  2 03:04:05 2020", "", date},
		{"", "yesterday", "", ""},
	} {
		h := make(http.Header)
		(&version{etag: c.etag, lastModified: c.modified}).conditions(h)
		testkit.Equal(t, "If-Match for "+c.etag, h.Get("If-Match"), c.match)
		testkit.Equal(t, "If-Unmodified-Since for "+c.etag+c.modified, h.Get("If-Unmodified-Since"), c.unmodified)
	}
}

// RFC 9110, section 13.1.1.
func TestConditionThatIsNotMet(t *testing.T) {
	file := random(400_000, 73)
	for name, c := range map[string]struct {
		etag string // of responses after the first; "": none. The first response has a strong ETag
		date time.Time
		says string // part of the error; "": no error
	}{
		"weak":                     {`W/"v1"`, longAgo, ""},
		"weak, without a date":     {`W/"v1"`, time.Time{}, ""},
		"weak, of another time":    {`W/"v1"`, longAgo.Add(time.Hour), "its Last-Modified was "},
		"another":                  {`"v2"`, longAgo, `its ETag was "v1", from 127.`},
		"another weak":             {`W/"v2"`, longAgo, `and is W/"v2", from 127.`},
		"a date":                   {"", longAgo, ""},
		"another date":             {"", longAgo.Add(time.Hour), "its Last-Modified was "},
		"nothing to compare":       {"", time.Time{}, "neither its ETag nor its Last-Modified"},
		"the same ETag afterwards": {`"v1"`, longAgo, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 512<<10)
			w.conf.RangeSize, w.conf.Connections, w.conf.Pipeline = 10_000, 3, 4
			var asked, refused atomic.Int64
			s := serve(t, func(rw http.ResponseWriter, r *http.Request) {
				if asked.Add(1) == 1 {
					content(file)(rw, r)
					return
				}
				if c.etag != "" {
					rw.Header().Set("Etag", c.etag)
				}
				if r.Header.Get("If-Match") != "" {
					refused.Add(1)
					rw.WriteHeader(http.StatusPreconditionFailed)
					return
				}
				http.ServeContent(rw, r, "", c.date, bytes.NewReader(file))
			})
			o := w.open(s.URL)
			p := make([]byte, 1000)
			if c.says == "" {
				w.whole(o, file, 0)
				testkit.OK(t, o.ReadHost(t.Context(), p, 5))
				testkit.Equal(t, "host bytes", string(p), string(file[5:1005]))
				if n := refused.Load(); n < 1 || n > int64(w.conf.Connections) {
					t.Errorf("%d requests were refused", n)
				}
				testkit.OK(t, o.Close())
				asked.Store(0)
				refused.Store(0)
				o = w.open(s.URL)
				testkit.OK(t, o.ReadHost(t.Context(), p, 7))
				testkit.Equal(t, "host bytes", string(p), string(file[7:1007]))
				testkit.Equal(t, "refused to ReadHost", refused.Load(), 1)
				return
			}
			_, err := w.fetch(o, Piece{Len: uint64(len(file))})
			for _, err := range []error{err, o.ReadHost(t.Context(), p, 5)} {
				testkit.ErrorIs(t, err, ErrChanged)
				testkit.ErrorSays(t, err, c.says)
			}
		})
	}
}

func TestServersThatDifferAreNamed(t *testing.T) {
	file := random(100_000, 72)
	x, y := testkit.Loopback()
	for name, c := range map[string]struct {
		there http.HandlerFunc
		says  []string
	}{
		"ETag": {labelled(file, func(_ int64, h http.Header) string { h.Set("Etag", `"v2"`); return "100000" }),
			[]string{`"v1", from %v`, `"v2", from %v`}},
		"size": {labelled(file, func(int64, http.Header) string { return "100001" }),
			[]string{"100000, from %v", "100001, from %v"}},
		"size, and no such range": {func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Range", "Bytes */7")
			rw.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		}, []string{"100000, from %v", "7, from %v"}},
		"ETag, by the condition": {func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Etag", `"v2"`)
			http.ServeContent(rw, r, "", longAgo, bytes.NewReader(file))
		}, []string{`"v1", from %v`, `"v2", from %v`}},
		"the condition": {func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusPreconditionFailed) },
			[]string{"what %v served", `%v answers "412 Precondition Failed"`}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, 128<<10)
			first := httptest.NewUnstartedServer(content(file))
			testkit.OK(t, first.Listener.Close())
			first.Listener = testkit.Must(net.Listen("tcp", netip.AddrPortFrom(x, 0).String()))(t)
			port := first.Listener.Addr().(*net.TCPAddr).AddrPort().Port()
			second := httptest.NewUnstartedServer(c.there)
			testkit.OK(t, second.Listener.Close())
			second.Listener = testkit.Must(net.Listen("tcp", netip.AddrPortFrom(y, port).String()))(t)
			for _, s := range []*httptest.Server{first, second} {
				s.Start()
				t.Cleanup(s.Close)
			}
			var resolved atomic.Int64
			w.conf.Resolve = func(context.Context, string) ([]netip.Addr, error) {
				if resolved.Add(1) == 1 {
					return []netip.Addr{x}, nil
				}
				return []netip.Addr{y}, nil
			}
			o := w.open(fmt.Sprintf("http://data.example:%d/file", port))
			_, err := w.fetch(o, Piece{Len: 100_000})
			testkit.ErrorIs(t, err, ErrChanged)
			for i, addr := range []netip.Addr{x, y} {
				testkit.ErrorSays(t, err, fmt.Sprintf(c.says[i], netip.AddrPortFrom(addr, port)))
			}
			if err := o.ReadHost(t.Context(), make([]byte, 1), 5); err != nil { // ReadHost uses Open's connection
				t.Error(err)
			}
		})
	}
}
