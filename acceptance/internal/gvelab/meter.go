package gvelab

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// meter counts bytes that have arrived as they were sent.
type meter struct {
	name string

	mu      sync.Mutex
	n       uint64
	waiting map[chan struct{}]uint64 // closed at that count
	err     error                    // why there will be no more
	dead    chan struct{}            // closed with err
}

func newMeter(name string) *meter {
	return &meter{name: name, waiting: map[chan struct{}]uint64{}, dead: make(chan struct{})}
}

func (m *meter) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n += uint64(n)
	for c, at := range m.waiting {
		if m.n >= at {
			close(c)
			delete(m.waiting, c)
		}
	}
}

func (m *meter) count() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n
}

// fail says that the stream has ended; the first reason counts.
func (m *meter) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
		close(m.dead)
	}
}

// more waits for n bytes more than have arrived now.
func (m *meter) more(ctx context.Context, n uint64) error {
	c := make(chan struct{})
	m.mu.Lock()
	from := m.n
	m.waiting[c] = from + n
	m.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-m.dead:
		return fmt.Errorf("%s: %w", m.name, m.err)
	case <-ctx.Done():
		return fmt.Errorf("%s: %d of %d bytes have come: %w", m.name, m.count()-from, n, context.Cause(ctx))
	}
}

// all waits for n bytes more of each.
func all(ctx context.Context, n uint64, meters ...*meter) error {
	errs := make(chan error)
	for _, m := range meters {
		go func() { errs <- m.more(ctx, n) }()
	}
	var err error
	for range meters {
		err = errors.Join(err, <-errs)
	}
	return err
}
