package driver

import "fmt"

// call is a function to be run by the polling goroutine, which owns the receive queues.
type call struct {
	f    func() error
	done chan error
}

// do runs f on the polling goroutine and waits for it. Not to be called from there.
func (n *NIC) do(f func() error) error {
	c := &call{f: f, done: make(chan error, 1)}
	n.mu.Lock()
	if n.ended {
		n.mu.Unlock()
		return fmt.Errorf("NIC: %w", ErrClosed)
	}
	n.calls = append(n.calls, c)
	n.mu.Unlock()
	n.hasCalls.Store(true)
	n.wake()
	return <-c.done
}

// takeCalls takes what waits; nothing more is let in once it has ended.
func (n *NIC) takeCalls(ended bool) []*call {
	n.mu.Lock()
	defer n.mu.Unlock()
	calls := n.calls
	n.calls, n.ended = nil, n.ended || ended
	return calls
}

// runCalls serves do.
func (n *NIC) runCalls() {
	if !n.hasCalls.Load() {
		return
	}
	n.hasCalls.Store(false)
	for _, c := range n.takeCalls(false) {
		c.done <- c.f()
	}
}

// endCalls refuses what comes too late.
func (n *NIC) endCalls() {
	for _, c := range n.takeCalls(true) {
		c.done <- fmt.Errorf("NIC: %w", ErrClosed)
	}
}
