package driver

import "fmt"

// call is a function that the polling goroutine, the owner of the receive queues, is to run. done gets f's error, or
// ErrClosed if the goroutine ends before it has run f.
type call struct {
	f    func() error
	done chan error
}

// do makes the polling goroutine run f, and returns f's error, or ErrClosed if that goroutine has ended. The polling
// goroutine must not call do.
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

// takeCalls removes and returns the calls that wait. If ended is true, do returns ErrClosed from now on.
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
