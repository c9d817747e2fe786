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
	tell func(splat.Splat) // nil: nobody
	next io.Writer         // may be nil
}

func newConsole(next io.Writer) *console {
	c := &console{next: next}
	c.scan = splat.New(func(s splat.Splat) {
		if c.tell != nil {
			c.tell(s)
		}
	})
	return c
}

// Write implements io.Writer.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.scan.Write(b)
	if c.next != nil {
		return c.next.Write(b)
	}
	return len(b), nil
}

// to says who is told of complaints from now on; whoever was before is told of those that are complete.
func (c *console) to(tell func(splat.Splat)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scan.Flush()
	c.tell = tell
}
