package loader

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/diagnosis"
)

const (
	redirects = 10 // most requests in one attempt of Open or ReadHost, redirected ones included
	addresses = 16 // most addresses of a host that dial tries
)

// Object is a file on a server. Only one Fetch runs at a time, a Records or a [Safetensors.Load] included; a second
// one fails with EBUSY.
type Object struct {
	c       Config
	url     *url.URL // after Open's redirects
	name    string   // url without query and user, for messages
	version version

	client *http.Client // for the requests of Open and ReadHost

	conditional, plain asking      // with and without the conditions of version
	refused            atomic.Bool // a server has answered 412

	rx    devmem.Binding
	links []*link // by worker; owned by the Fetch in progress

	stats counters

	mu     sync.Mutex
	learnt version // the first response with a validator, if version has none
	closed bool
	cancel context.CancelCauseFunc // of the Fetch in progress; nil: none
	idle   chan struct{}           // closed when the last Fetch has ended; nil: none has begun

	once sync.Once
	err  error // the result of Close
}

// asking is a request without its range.
type asking struct {
	base *http.Request
	head []byte // of base, in wire format, without the empty line
}

func askingWith(base *http.Request, h http.Header) (asking, error) {
	r := &http.Request{Method: base.Method, URL: base.URL, Header: h, Host: base.Host}
	var b bytes.Buffer
	err := r.Write(&b)
	return asking{r, bytes.TrimSuffix(b.Bytes(), []byte("\r\n"))}, err
}

// asking returns the request without conditions if a server has answered 412, else the one with conditions.
func (o *Object) asking() (_ *asking, conditional bool) {
	if o.refused.Load() {
		return &o.plain, false
	}
	return &o.conditional, true
}

// Stats counts events since Open.
type Stats struct {
	Payload     uint64 // bytes of the file that Fetch received
	HostBytes   uint64 // bytes on Fetch's connections that were received in host memory
	HeaderBytes uint64 // bytes of the file that Open and ReadHost received
	Looked      uint64 // bytes in device memory that were read for response heads, some of the bodies included
	Looks       uint64 // calls of devmem.Memory's Look that read them
	Requests    uint64 // by Fetch; a repeated request counts again
	Connections uint64 // that Fetch made
	// Resumed counts connections that Fetch gave up: they broke, but not between two responses, or the server refused
	// a request for now or with 412.
	Resumed uint64
}

type counters struct {
	payload, host, header, looked, looks, requests, connections, resumed atomic.Uint64
}

// Stats returns a snapshot.
func (o *Object) Stats() Stats {
	s := &o.stats
	return Stats{Payload: s.payload.Load(), HostBytes: s.host.Load(), HeaderBytes: s.header.Load(),
		Looked: s.looked.Load(), Looks: s.looks.Load(), Requests: s.requests.Load(),
		Connections: s.connections.Load(), Resumed: s.resumed.Load()}
}

// Size returns the file's size in bytes; at least 1.
func (o *Object) Size() uint64 { return o.version.size }

// ETag returns the ETag in the server's first response, as the server writes it, or "".
func (o *Object) ETag() string { return o.version.etag }

// URL returns the file's URL after Open's redirects, with its query, which may be secret.
func (o *Object) URL() string { return o.url.String() }

// Open asks a server for the first byte of a file, follows redirects, and binds the pool (without
// Config.Copy). Errors: EINVAL (the URL, or the Config), ENOSPC (the pool is too small), ELOOP (too many
// redirects), EOPNOTSUPP (https, a server that serves no ranges or codes its bodies), ENODATA (an empty file),
// EADDRNOTAVAIL (no address, or none of Local's family), *StatusError, ErrProtocol, the cause of ctx's end, and the
// errors of Config.Resolve, Device.Dial, Device.BindRX, and of the connection.
func Open(ctx context.Context, from string, c Config) (_ *Object, err error) {
	u, err := url.Parse(from)
	if err != nil {
		return nil, fmt.Errorf("open a URL: %w: %w", inner(err), syscall.EINVAL)
	}
	if err := errors.Join(checkURL(u), c.check()); err != nil {
		return nil, fmt.Errorf("open %s: %w", nameOf(u), err)
	}
	o := &Object{c: c, url: u, name: nameOf(u), links: make([]*link, c.Connections)}
	o.client = &http.Client{
		Transport: &http.Transport{
			DialContext:            func(ctx context.Context, _, to string) (net.Conn, error) { return o.dial(ctx, to) },
			DisableCompression:     true,
			MaxResponseHeaderBytes: headLimit,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= redirects {
				return fmt.Errorf("%d redirects: %w", redirects, syscall.ELOOP)
			}
			r.Header.Del("Referer")
			if err := checkURL(r.URL); err != nil {
				return fmt.Errorf("redirect to %s: %w", nameOf(r.URL), err)
			}
			return nil
		},
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open %s: %w", o.name, err), o.Close())
		}
	}()
	if err := o.probe(ctx); err != nil {
		return nil, err
	}
	if !c.Copy {
		if o.rx, err = c.Device.BindRX(c.Pool, c.Queue); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func checkURL(u *url.URL) error {
	switch {
	case u.Scheme == "https":
		return unsupported("https: a TLS record cannot be decrypted in device memory here; use http")
	case u.Scheme != "http" || u.Opaque != "":
		return fmt.Errorf("scheme %q: only http://HOST[:PORT]/PATH is read: %w", u.Scheme, syscall.EINVAL)
	case u.Hostname() == "":
		return fmt.Errorf("no host: %w", syscall.EINVAL)
	case u.User != nil:
		return fmt.Errorf("a user in the URL: give the header Authorization instead: %w", syscall.EINVAL)
	}
	return nil
}

// nameOf formats a URL for messages, with "..." for the query and without the user, as these may be secret.
func nameOf(u *url.URL) string {
	x := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if u.RawQuery != "" {
		x.RawQuery = "..."
	}
	return x.String()
}

// inner returns the error inside a *url.Error, which would show the URL, or err if it is none.
func inner(err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

func (o *Object) probe(ctx context.Context) error {
	o.conditional.base = &http.Request{Method: http.MethodGet, URL: o.url, Header: o.c.Header.Clone(),
		Host: o.c.Header.Get("Host")}
	o.conditional.base.Header.Del("Host")
	var first [1]byte
	resp, v, err := o.get(ctx, first[:], 0) //nolint:bodyclose // get has closed it
	if resp != nil {
		o.url = resp.Request.URL
	}
	o.name = nameOf(o.url)
	if err != nil {
		return err
	}
	o.version = v
	h := resp.Request.Header.Clone() // net/http removed secret headers if a redirect led to another host
	h.Del("Range")
	u := *o.url
	u.Fragment, u.RawFragment = "", ""
	base := &http.Request{Method: http.MethodGet, URL: &u, Host: resp.Request.Host}
	if o.plain, err = askingWith(base, h.Clone()); err != nil {
		return err
	}
	v.conditions(h)
	o.conditional, err = askingWith(base, h)
	return err
}

func (a *asking) ranged(b []byte, off, n uint64) []byte {
	b = append(b, a.head...)
	b = append(b, "Range: bytes="...)
	b = strconv.AppendUint(b, off, 10)
	b = append(b, '-')
	b = strconv.AppendUint(b, off+n-1, 10)
	return append(b, "\r\n\r\n"...)
}

// get reads len(p) bytes of the file from off on to p. It asks again, within Config.Retry, after a *broken of getOnce.
func (o *Object) get(ctx context.Context, p []byte, off uint64) (*http.Response, version, error) {
	var tried retries
	for {
		resp, v, err := o.getOnce(ctx, p, off)
		if later := (*broken)(nil); !errors.As(err, &later) {
			return resp, v, err
		}
		if err := tried.pause(ctx, &o.c, err); err != nil {
			return resp, v, err
		}
	}
}

// getOnce is get with one attempt. It returns a *broken if the request may be repeated.
func (o *Object) getOnce(ctx context.Context, p []byte, off uint64) (*http.Response, version, error) {
	var from net.Addr
	ask, conditional := o.asking()
	r := ask.base.Clone(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { from = i.Conn.RemoteAddr() }}))
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+uint64(len(p))-1))
	resp, err := o.client.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, version{}, context.Cause(ctx)
		}
		return nil, version{}, inner(err)
	}
	defer resp.Body.Close()
	v, err := o.answer(resp, from, conditional, off, uint64(len(p)))
	if err != nil {
		return resp, v, err
	}
	n, err := io.ReadFull(resp.Body, p)
	o.stats.header.Add(uint64(n))
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return resp, v, err
}

// answer checks that a response has the requested range and, unless it is the first, the version of the first. The
// error is a *broken if the server refuses for now, or answers 412 to a request with conditions: If-Match compares
// only strong ETags (RFC 9110, section 13.1.1), so the file may be the same. After a 412, a response to a request
// without conditions must have an ETag or a date to compare with the first.
func (o *Object) answer(resp *http.Response, from net.Addr, conditional bool, off, n uint64) (version, error) {
	first := o.version.size == 0
	if resp.StatusCode == http.StatusPreconditionFailed && !first {
		o.refused.Store(true)
		err := fmt.Errorf("%w: %v answers %q, so it does not have what %v served", ErrChanged, from, resp.Status,
			o.version.from)
		if conditional {
			err = &broken{err}
		}
		return version{}, err
	}
	v, err := partial(resp, off, n)
	v.from = from
	if size, ok := unsatisfied(resp); ok {
		switch {
		case size == 0 && first:
			return v, fmt.Errorf("the file is empty: %w", syscall.ENODATA)
		case size != o.version.size && !first:
			return v, o.version.changed("size", o.version.size, size, from)
		}
	}
	switch {
	case err != nil:
		return v, err
	case first && v.size == 0:
		return v, fmt.Errorf("%w: Content-Range %q does not say how long the file is: have the server say it in its first "+
			"response", ErrProtocol, resp.Header.Get("Content-Range"))
	case first:
		return v, nil
	}
	if err := o.version.same(v); err != nil {
		return v, err
	}
	if !conditional && !o.version.comparable(v) {
		return v, fmt.Errorf("%w: a server answers 412, so it does not have what %v served, and %v says neither its ETag "+
			"nor its Last-Modified", ErrChanged, o.version.from, from)
	}
	return v, o.learn(v)
}

// learn does nothing if Open's response had an ETag or a date, or v has neither. Otherwise it compares v with the first
// version with one of the two that it got.
func (o *Object) learn(v version) error {
	if o.version.validators() || !v.validators() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.learnt.from == nil {
		o.learnt = v
	}
	return o.learnt.same(v)
}

// ReadHost reads len(p) bytes of the file from off on to host memory, over a connection without a flow rule.
// Errors: EINVAL (beyond the file), ErrChanged, and Open's. A connection that breaks in a response is not replaced.
func (o *Object) ReadHost(ctx context.Context, p []byte, off uint64) error {
	if n := uint64(len(p)); off > o.Size() || n > o.Size()-off {
		return fmt.Errorf("%s: bytes [%d, +%d) of %d: %w", o.name, off, n, o.Size(), syscall.EINVAL)
	}
	if len(p) == 0 {
		return nil
	}
	if _, _, err := o.get(ctx, p, off); err != nil { //nolint:bodyclose // get has closed it
		return fmt.Errorf("%s: bytes [%d, +%d): %w", o.name, off, len(p), err)
	}
	return nil
}

func (o *Object) dial(ctx context.Context, to string) (devmem.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.c.Timeout,
		fmt.Errorf("no connection within %v: %w", o.c.Timeout, syscall.ETIMEDOUT))
	defer cancel()
	host, service, err := net.SplitHostPort(to)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", service, syscall.EINVAL)
	}
	addrs, err := o.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range addrs {
		server := netip.AddrPortFrom(a, uint16(port))
		c, err := o.c.Device.Dial(ctx, netip.AddrPortFrom(o.c.Local, 0), server)
		if err == nil {
			c.SetStallLimit(o.c.Timeout)
			return c, nil
		}
		err = diagnosis.DialServer(err, server)
		if errs = append(errs, fmt.Errorf("%s at %v: %w", host, a, err)); ctx.Err() != nil {
			return nil, errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return nil, errors.Join(errs...)
}

// resolve returns 1 to 16 addresses of the host, of Local's family if Local is set, or an error.
func (o *Object) resolve(ctx context.Context, host string) (list []netip.Addr, err error) {
	all, err := o.c.Resolve(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	local := o.c.Local.Unmap()
	for _, a := range all {
		a = a.Unmap()
		if a.IsValid() && len(list) < addresses && (!local.IsValid() || local.Is4() == a.Is4()) {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no address that %v could reach, of %d: %w", host, o.c.Local, len(all),
			syscall.EADDRNOTAVAIL)
	}
	return list, nil
}

func (o *Object) address() string {
	return net.JoinHostPort(o.url.Hostname(), cmp.Or(o.url.Port(), "80"))
}

func (o *Object) begin(ctx context.Context) (_ context.Context, cancel context.CancelCauseFunc, end func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil, nil, nil, net.ErrClosed
	case o.cancel != nil:
		return nil, nil, nil, fmt.Errorf("another one is under way: %w", syscall.EBUSY)
	}
	ctx, cancel = context.WithCancelCause(ctx)
	idle := make(chan struct{})
	o.cancel, o.idle = cancel, idle
	return ctx, cancel, func() {
		cancel(nil)
		o.mu.Lock()
		o.cancel = nil
		o.mu.Unlock()
		close(idle)
	}, nil
}

// Close ends the Fetch in progress and waits for it, closes the connections, and closes the binding and waits until it
// is done. It is idempotent, and must not be called from a callback of Fetch. It does not close buffers.
func (o *Object) Close() error {
	o.once.Do(func() {
		o.mu.Lock()
		o.closed = true
		idle := o.idle
		if o.cancel != nil {
			o.cancel(net.ErrClosed)
		}
		o.mu.Unlock()
		if idle != nil {
			<-idle
		}
		var errs []error
		for _, l := range o.links {
			errs = append(errs, l.close())
		}
		o.client.CloseIdleConnections()
		if o.rx != nil {
			errs = append(errs, o.rx.Close())
			<-o.rx.Done()
		}
		o.err = errors.Join(errs...)
	})
	return o.err
}
