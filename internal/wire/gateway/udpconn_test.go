package gateway

import (
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/internal/testkit"
)

// fullEndpoint has no space for its first writes, as many as full, and signals space before each of these returns.
type fullEndpoint struct {
	tcpip.Endpoint
	wq     waiter.Queue
	full   int
	writes int
}

func (e *fullEndpoint) Write(p tcpip.Payloader, _ tcpip.WriteOptions) (int64, tcpip.Error) {
	if e.writes++; e.writes <= e.full {
		e.wq.Notify(waiter.WritableEvents)
		return 0, &tcpip.ErrWouldBlock{}
	}
	return int64(p.Len()), nil
}

func TestWriterSeesSpace(t *testing.T) {
	for full := range 4 {
		e := &fullEndpoint{full: full}
		n, err := newUDPConn(&e.wq, e).send(make([]byte, 10), nil)
		testkit.OK(t, err)
		testkit.Equal(t, "bytes", n, 10)
		testkit.Equal(t, "writes", e.writes, full+1)
	}
}
