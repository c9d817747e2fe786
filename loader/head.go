package loader

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
)

const (
	lookStep  = 512      // most bytes of a head that are read at once
	headLimit = 16 << 10 // most bytes of a head
	interims  = 8        // most responses to a request of Fetch: 1xx and the final one
)

var (
	// ErrChanged means that the file changed while it was read, or that a server has another version of it or, after
	// a 412, does not report which version it has.
	ErrChanged = errors.New("the file changed while it was read")

	// ErrProtocol means that the server breaks HTTP, or answers with something else than the request asked for.
	ErrProtocol = errors.New("the server breaks the protocol")
)

func unsupported(what string) error { return fmt.Errorf("%s: %w", what, syscall.EOPNOTSUPP) }

type headParser struct {
	src bytes.Reader
	buf *bufio.Reader
}

// askedBy is the request that http.ReadResponse gets for each response.
var askedBy = &http.Request{Method: http.MethodGet}

// parse parses a head, including its empty line. An error is ErrProtocol. The caller must not read the response's Body.
func (p *headParser) parse(head []byte) (*http.Response, error) {
	p.src.Reset(head)
	if p.buf == nil {
		p.buf = bufio.NewReader(&p.src)
	}
	p.buf.Reset(&p.src)
	resp, err := http.ReadResponse(p.buf, askedBy)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: a head that is none: %v", ErrProtocol, err)
	case resp.ProtoMajor != 1:
		return nil, fmt.Errorf("%w: version %q in an answer to HTTP/1.1", ErrProtocol, resp.Proto)
	case p.buf.Buffered()+p.src.Len() != 0: // net/http finds another end of the head than headEnd
		return nil, fmt.Errorf("%w: a head with an empty line in it", ErrProtocol)
	}
	return resp, nil
}

// headEnd returns the length of the head at the start of b, including its empty line, or -1 if b does not have
// the head's end. The search begins at from. A line ends with LF, with or without a CR before it (RFC 9112,
// section 2.2).
func headEnd(b []byte, from int) int {
	for {
		k := bytes.IndexByte(b[from:], '\n')
		if k < 0 {
			return -1
		}
		from += k + 1
		switch rest := b[from:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return from + 1
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return from + 2
		}
	}
}

// version has the values of a response's headers that identify the file's version, and the server's address.
type version struct {
	size         uint64 // 0: the response does not report it
	etag         string
	lastModified string
	from         net.Addr
}

// conditions sets in h the header by which a server refuses to serve another version than v: If-Match for a strong
// ETag, because it compares only strong ones (RFC 9110, section 13.1.1), else If-Unmodified-Since for a valid date,
// else none.
func (v *version) conditions(h http.Header) {
	if strong(v.etag) {
		h.Set("If-Match", v.etag)
	} else if t, err := http.ParseTime(v.lastModified); err == nil {
		h.Set("If-Unmodified-Since", t.UTC().Format(http.TimeFormat))
	}
}

// same returns an error if now differs from the earlier version v in a value that both have; it does not compare dates
// if both ETags are strong. The weak and the strong form of an ETag are equal (RFC 9110, section 8.8.3.2).
func (v *version) same(now version) error {
	switch {
	case v.size != 0 && now.size != 0 && v.size != now.size:
		return v.changed("size", v.size, now.size, now.from)
	case v.etag != "" && now.etag != "" && opaque(v.etag) != opaque(now.etag):
		return v.changed("ETag", v.etag, now.etag, now.from)
	case strong(v.etag) && strong(now.etag):
		return nil
	case v.lastModified != "" && now.lastModified != "" && !sameDate(v.lastModified, now.lastModified):
		return v.changed("Last-Modified", v.lastModified, now.lastModified, now.from)
	}
	return nil
}

func (v *version) comparable(now version) bool {
	return v.etag != "" && now.etag != "" || v.lastModified != "" && now.lastModified != ""
}

func (v *version) validators() bool { return v.etag != "" || v.lastModified != "" }

func (v *version) changed(what string, was, now any, by net.Addr) error {
	return fmt.Errorf("%w: its %s was %v, from %v, and is %v, from %v", ErrChanged, what, was, v.from, now, by)
}

// opaque returns the part of an ETag that is compared (RFC 9110, section 8.8.3). Some servers omit the
// quotes.
func opaque(etag string) string {
	tag := strings.TrimPrefix(etag, "W/")
	if n := len(tag); n > 1 && tag[0] == '"' && tag[n-1] == '"' {
		return tag[1 : n-1]
	}
	return tag
}

func strong(etag string) bool { return etag == `"`+opaque(etag)+`"` }

// sameDate reports whether a and b are the same text, or the same time in any of the three forms of a date (RFC
// 9110, section 5.6.7).
func sameDate(a, b string) bool {
	x, err1 := http.ParseTime(a)
	y, err2 := http.ParseTime(b)
	return a == b || err1 == nil && err2 == nil && x.Equal(y)
}

// partial checks that a response's head announces exactly the n bytes of the file from off on, without a coding. It
// returns the version: size is 0 if the head does not report it, and from is not set.
func partial(resp *http.Response, off, n uint64) (v version, err error) {
	if err := status(resp); err != nil {
		return v, err
	}
	h := resp.Header
	if len(resp.TransferEncoding) > 0 {
		return v, unsupported(fmt.Sprintf("Transfer-Encoding %q: chunks would lie between the data",
			strings.Join(resp.TransferEncoding, ", ")))
	}
	if c := strings.Join(h.Values("Content-Encoding"), ", "); c != "" && !strings.EqualFold(c, "identity") {
		return v, unsupported(fmt.Sprintf("Content-Encoding %q: nobody decodes it in device memory", c))
	}
	if t, _, _ := mime.ParseMediaType(h.Get("Content-Type")); t == "multipart/byteranges" {
		return v, unsupported("multipart/byteranges for one range")
	}
	if resp.ContentLength < 0 {
		return v, fmt.Errorf("%w: no Content-Length", ErrProtocol)
	}
	ranges := h.Values("Content-Range")
	if len(ranges) != 1 {
		return v, fmt.Errorf("%w: %d headers Content-Range, of one range", ErrProtocol, len(ranges))
	}
	first, last, size, err := contentRange(ranges[0])
	if err != nil {
		return v, err
	}
	if first != off || last != off+n-1 || uint64(resp.ContentLength) != n {
		return v, fmt.Errorf("%w: bytes %d-%d were asked for, and Content-Range %q with Content-Length %d came", ErrProtocol,
			off, off+n-1, ranges[0], resp.ContentLength)
	}
	return version{size: size, etag: h.Get("Etag"), lastModified: h.Get("Last-Modified")}, nil
}

// status returns an error if the status is not 206; it is a *broken if the same request may succeed later.
func status(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusPartialContent:
		return nil
	case http.StatusOK:
		if resp.ContentLength == 0 {
			return fmt.Errorf("the file is empty: %w", syscall.ENODATA)
		}
		return unsupported("the server answers 200 to a request of a range: it serves none; nginx is one that does")
	}
	e := &StatusError{Code: resp.StatusCode, Status: resp.Status, retryAfter: resp.Header.Get("Retry-After"),
		date: resp.Header.Get("Date")}
	if e.transient() {
		return &broken{e}
	}
	return e
}

// unsatisfied returns the size of the file from a response 416 (RFC 9110, section 15.5.17); ok is false for another
// response, or without a size.
func unsatisfied(resp *http.Response) (size uint64, ok bool) {
	unit, rest, _ := strings.Cut(resp.Header.Get("Content-Range"), " ")
	s, ok := strings.CutPrefix(rest, "*/")
	if !ok || !strings.EqualFold(unit, "bytes") || resp.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		return 0, false
	}
	size, err := decimal(s)
	return size, err == nil
}

// contentRange parses "bytes FIRST-LAST/SIZE" (RFC 9110, section 14.4). The size is 0 if the server sends "*"
// for it.
func contentRange(s string) (first, last, size uint64, err error) {
	unit, rest, _ := strings.Cut(s, " ")
	span, total, _ := strings.Cut(rest, "/")
	from, to, _ := strings.Cut(span, "-")
	first, e1 := decimal(from)
	last, e2 := decimal(to)
	beyond, e3 := false, error(nil)
	if total != "*" {
		size, e3 = decimal(total)
		beyond = last >= size
	}
	if !strings.EqualFold(unit, "bytes") || errors.Join(e1, e2, e3) != nil || first > last || beyond {
		return 0, 0, 0, fmt.Errorf("%w: Content-Range %q is no range of a file", ErrProtocol, s)
	}
	return first, last, size, nil
}

func decimal(s string) (uint64, error) { return strconv.ParseUint(s, 10, 63) }
