package qemu

import (
	"bytes"
	"io"
	"sync"
	"time"

	"vnic.dev/vnic/internal/agent"
)

// consoleKept is how much of a guest's console a Machine keeps.
const consoleKept = 256 << 10

// console keeps the last of what a guest wrote.
type console struct {
	mu   sync.Mutex
	tail agent.Tail // under mu
	last time.Time  // under mu: of the last that came, or of the beginning
	also io.Writer  // may be nil
}

func newConsole(also io.Writer) *console {
	return &console{tail: agent.Tail{Max: consoleKept}, last: time.Now(), also: also}
}

// silent is for how long nothing has come.
func (c *console) silent() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.last)
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.last = time.Now()
	_, _ = c.tail.Write(p)
	c.mu.Unlock()
	if c.also != nil {
		_, _ = c.also.Write(p) // a log that cannot be written must not hold the guest up
	}
	return len(p), nil
}

func (c *console) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.tail.Bytes())
}
