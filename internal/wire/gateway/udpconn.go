package gateway

import (
	"bytes"
	"fmt"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/waiter"
)

// udpConn is a UDP endpoint in netstack whose send waits for space in the send buffer. gonet's Write may wait
// for ever: after a write that found no space it registers for a wake, and waits without another write, although there
// may have been space in between.
type udpConn struct {
	*gonet.UDPConn
	ep tcpip.Endpoint
	wq *waiter.Queue
}

func newUDPConn(wq *waiter.Queue, ep tcpip.Endpoint) *udpConn {
	return &udpConn{gonet.NewUDPConn(wq, ep), ep, wq}
}

// send sends a datagram to an address; nil: the one to which the endpoint is connected.
func (c *udpConn) send(b []byte, to *tcpip.FullAddress) (int, error) {
	var r bytes.Reader
	r.Reset(b)
	o := tcpip.WriteOptions{To: to}
	n, err := c.ep.Write(&r, o)
	if isFull(err) {
		entry, free := waiter.NewChannelEntry(waiter.WritableEvents)
		c.wq.EventRegister(&entry)
		defer c.wq.EventUnregister(&entry)
		for n, err = c.ep.Write(&r, o); isFull(err); n, err = c.ep.Write(&r, o) {
			<-free
		}
	}
	if err != nil {
		return int(n), fmt.Errorf("netstack: %s", err)
	}
	return int(n), nil
}

func isFull(err tcpip.Error) bool {
	_, full := err.(*tcpip.ErrWouldBlock)
	return full
}
