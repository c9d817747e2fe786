package selftest

import (
	"io"
	"sync"

	"vnic.dev/vnic/cmd/vnic/internal/selftest/splat"
)

// console takes what the guest's kernel prints, looks for complaints in it, and hands it on.
type console struct {
	mu   sync.Mutex
	scan *splat.Scanner
	seen []splat.Splat
	to   io.Writer // may be nil
}

func newConsole(to io.Writer) *console {
	c := &console{to: to}
	c.scan = splat.New(func(s splat.Splat) { c.seen = append(c.seen, s) })
	return c
}

// Write implements io.Writer.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.scan.Write(b)
	if c.to != nil {
		return c.to.Write(b)
	}
	return len(b), nil
}

// take gives the complaints since the call before.
func (c *console) take() []splat.Splat {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scan.Flush()
	list := c.seen
	c.seen = nil
	return list
}
