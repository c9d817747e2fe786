package loader

import (
	"cmp"
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

// Defaults for zero fields of a Config. On a slow machine the loader multiplies DefaultTimeout and DefaultRetry by the
// same factor as vnic's other limits.
const (
	DefaultConnections = 4
	DefaultPipeline    = 2
	DefaultRangeSize   = 1 << 20
	DefaultTimeout     = time.Duration(limits.Silence)
	DefaultRetry       = time.Duration(limits.ServerBack)
)

// Bounds of the fields of a Config.
const (
	MaxConnections = 64
	MaxPipeline    = 16
	MaxRangeSize   = 1 << 30

	poolEach = 16 * devmem.PageSize // least size of the pool for each connection, in bytes
)

// Config configures how a file is read.
type Config struct {
	Device devmem.Device
	Memory devmem.Memory // accesses the memory of Device's GPUs

	Queue int           // a receive queue that can be bound and that only the Object uses
	Pool  devmem.Buffer // for received data; at least 64 KiB for each connection (ENOSPC)
	Copy  bool          // use neither queue nor pool: receive in host memory and copy to the destination

	// Local is the local address of the connections; they go only to addresses of its family. The zero Addr: the
	// Device chooses.
	Local netip.Addr
	// Resolve returns a host's addresses; it is called for literal addresses too. nil means net.DefaultResolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	Connections int    // 1 to 64; 0 means DefaultConnections
	Pipeline    int    // most requests in progress on a connection, 1 to 16; 0 means DefaultPipeline
	RangeSize   uint64 // the most bytes that a request of Fetch asks for, up to 1 GiB; 0: DefaultRangeSize

	// Header has headers for the requests, for example Authorization. The value of Host replaces the URL's host
	// in the requests, but not as the address, and not after a redirect to an absolute URL.
	Header http.Header

	// Timeout is how long resolving a host and connecting to it may take together, and how long the server may send
	// nothing after a request. 0 means DefaultTimeout, or more on a slow machine.
	Timeout time.Duration
	// Retry is how long, at most, Fetch replaces a connection that broke, or repeats a request that the server refused
	// for now (408, 429, most 5xx, or 412 to a request with conditions), without receiving a byte of the file on that
	// connection or its successors. Open and ReadHost repeat a request only if the server refused it for now. 0 means
	// DefaultRetry, or more on a slow machine.
	Retry time.Duration

	now   func() time.Time // set by tests, as after; nil: time.Now and time.After
	after func(time.Duration) <-chan time.Time
}

// reserved are the headers that Config.Header must not have.
var reserved = []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
	"Connection", "Content-Length", "Transfer-Encoding", "Accept-Encoding", "Te", "Trailer", "Upgrade", "Expect",
	"Keep-Alive"}

// check sets the defaults of zero fields, replaces Header by a copy, and returns EINVAL or ENOSPC for a bad Config.
func (c *Config) check() error {
	c.Connections = cmp.Or(c.Connections, DefaultConnections)
	c.Pipeline = cmp.Or(c.Pipeline, DefaultPipeline)
	c.RangeSize = cmp.Or(c.RangeSize, DefaultRangeSize)
	c.Timeout = cmp.Or(c.Timeout, limits.Silence.Here())
	c.Retry = cmp.Or(c.Retry, limits.ServerBack.Here())
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
