package qemu

import (
	"bytes"
	"io"
	"sync"
	"time"

	"vnic.dev/vnic/internal/agent"
)

// consoleKept is how many of a console's last bytes a Machine keeps.
const consoleKept = 256 << 10

type console struct {
	mu   sync.Mutex
	tail agent.Tail // under mu
	last time.Time  // under mu: of the last output, or of newConsole
	also io.Writer  // may be nil
}

func newConsole(also io.Writer) *console {
	return &console{tail: agent.Tail{Max: consoleKept}, last: time.Now(), also: also}
}

// silent returns the time since the last output, or since newConsole if there was none.
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
		_, _ = c.also.Write(p) // after an error the console is read on
	}
	return len(p), nil
}

func (c *console) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.tail.Bytes())
}
