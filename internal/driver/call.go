package driver

import "fmt"

// call is a function for the polling goroutine, which owns the receive queues.
type call struct {
	f    func() error
	done chan error
}

// The polling goroutine must not call do.
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

// With ended, later calls are refused.
func (n *NIC) takeCalls(ended bool) []*call {
	n.mu.Lock()
	defer n.mu.Unlock()
	calls := n.calls
	n.calls, n.ended = nil, n.ended || ended
	return calls
}

func (n *NIC) runCalls() {
	if !n.hasCalls.Load() {
		return
	}
	n.hasCalls.Store(false)
	for _, c := range n.takeCalls(false) {
		c.done <- c.f()
	}
}

func (n *NIC) endCalls() {
	for _, c := range n.takeCalls(true) {
		c.done <- fmt.Errorf("NIC: %w", ErrClosed)
	}
}
