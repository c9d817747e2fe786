package loader

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
)

// What a Config has where it says nothing.
const (
	DefaultConnections = 4
	DefaultPipeline    = 2
	DefaultRangeSize   = 1 << 20
	DefaultTimeout     = time.Duration(limits.Silence)
	DefaultRetry       = time.Duration(limits.ServerBack)
)

// Bounds of a Config.
const (
	MaxConnections = 64
	MaxPipeline    = 16
	MaxRangeSize   = 1 << 30

	poolEach = 16 * devmem.PageSize // of the pool, for each connection: the head that it waits for, and more
)

// Config says how a file is read.
type Config struct {
	Device devmem.Device
	Memory devmem.Memory // of the Device's GPUs

	Queue int           // a receive queue that can be bound, which the Object takes
	Pool  devmem.Buffer // where what comes lands: bound by the Object; 64 KiB for each connection at least (ENOSPC)
	Copy  bool          // no queue and no pool are used: all comes in host memory and is put in its place, as a baseline

	// Local is the address that connections are from, whose family is the server's; zero: the
	// Device chooses.
	Local netip.Addr
	// Resolve finds a host's addresses, also of one that is an address; nil means net.DefaultResolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	Connections int    // 1 to 64; 0 means DefaultConnections
	Pipeline    int    // requests under way on each, 1 to 16; 0 means DefaultPipeline
	RangeSize   uint64 // bytes that a request asks for at most, up to 1 GiB; 0 means DefaultRangeSize

	// Header is sent with each request, such as Authorization; Host is instead of the URL's. What
	// the loader itself says is refused (EINVAL): ranges, conditions, codings and what belongs to a
	// connection.
	Header http.Header

	// Timeout is for how long a server that was asked may send nothing, and for connecting; 0 means
	// DefaultTimeout.
	Timeout time.Duration
	// Retry is for how long it is tried again without a byte of progress, where a connection breaks or
	// the server answers 408, 429 or 5xx: each connection for itself. 0 means DefaultRetry.
	Retry time.Duration

	now   func() time.Time // a test's clock; nil: package time's
	after func(time.Duration) <-chan time.Time
}

// ours are the headers that users do not set.
var ours = []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
	"Connection", "Content-Length", "Transfer-Encoding", "Accept-Encoding", "Te", "Trailer", "Upgrade", "Expect",
	"Keep-Alive"}

// check fills in what is not set, and says what is wrong.
func (c *Config) check() error {
	set(&c.Connections, DefaultConnections)
	set(&c.Pipeline, DefaultPipeline)
	set(&c.RangeSize, DefaultRangeSize)
	set(&c.Timeout, limits.Silence.Here())
	set(&c.Retry, limits.ServerBack.Here())
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.now == nil {
		c.now, c.after = time.Now, time.After
	}
	switch {
	case c.Device == nil || c.Memory == nil || c.Pool == nil && !c.Copy:
		return fmt.Errorf("a loader needs Device, Memory and, but for Copy, Pool: %w", syscall.EINVAL)
	case c.Connections < 1 || c.Connections > MaxConnections:
		return fmt.Errorf("%d connections: 1 to %d: %w", c.Connections, MaxConnections, syscall.EINVAL)
	case c.Pipeline < 1 || c.Pipeline > MaxPipeline:
		return fmt.Errorf("%d requests under way on a connection: 1 to %d: %w", c.Pipeline, MaxPipeline, syscall.EINVAL)
	case c.RangeSize > MaxRangeSize:
		return fmt.Errorf("ranges of %d bytes: %d at most: %w", c.RangeSize, MaxRangeSize, syscall.EINVAL)
	case c.Timeout < 0 || c.Retry < 0:
		return fmt.Errorf("a timeout of %v and %v of retries: %w", c.Timeout, c.Retry, syscall.EINVAL)
	case !c.Copy && c.Pool.Size() < uint64(c.Connections)*poolEach:
		return fmt.Errorf("a pool of %d bytes for %d connections: %d for each at least: %w", c.Pool.Size(), c.Connections,
			poolEach, syscall.ENOSPC)
	}
	return c.checkHeader()
}

func set[V comparable](v *V, otherwise V) {
	if *v == *new(V) {
		*v = otherwise
	}
}

// checkHeader checks the headers, and completes them.
func (c *Config) checkHeader() error {
	if err := CheckHeader(c.Header); err != nil {
		return err
	}
	h := make(http.Header, len(c.Header))
	for name, values := range c.Header {
		canonical := http.CanonicalHeaderKey(name)
		h[canonical] = append(h[canonical], values...)
	}
	if h.Get("User-Agent") == "" {
		h.Set("User-Agent", "vnic-loader")
	}
	c.Header = h
	return nil
}
