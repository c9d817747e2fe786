package selftest

import (
	"io"
	"sync"

	"vnic.dev/vnic/internal/job/selftest/splat"
)

// console passes the output of the guest's kernel console on, and looks for complaints in it.
type console struct {
	mu     sync.Mutex
	scan   *splat.Scanner
	report func(splat.Splat) // nil: complaints are dropped
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

// to sets the function that gets complaints from now on; the former one gets an open complaint.
func (c *console) to(report func(splat.Splat)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scan.Flush()
	c.report = report
}
