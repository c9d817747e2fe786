package selftest

import (
	"io"
	"sync"

	"vnic.dev/vnic/internal/job/selftest/splat"
)

// console passes the output of the guest's console to next, and looks in it for complaints of the kernel (package
// splat).
type console struct {
	mu     sync.Mutex
	scan   *splat.Scanner
	report func(splat.Splat) // called with mu held, with each complaint that scan reports; nil: it is dropped
	next   io.Writer
}

func newConsole(next io.Writer) *console {
	c := &console{next: next}
	c.scan = splat.New(func(s splat.Splat) {
		if c.report != nil {
			c.report(s)
		}
	})
	return c
}

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.scan.Write(b)
	return c.next.Write(b)
}

// to sets the function that gets complaints from now on; nil: none. Before that the former function gets the complaint
// that has not ended, if there is one.
func (c *console) to(report func(splat.Splat)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scan.Flush()
	c.report = report
}
