package gvelab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// meter counts the received bytes of a stream.
type meter struct {
	name string
	n    atomic.Uint64

	once sync.Once
	err  error         // why the stream has ended; set before dead is closed
	dead chan struct{} // closed by fail
}

func newMeter(name string) *meter { return &meter{name: name, dead: make(chan struct{})} }

// fail records that the stream has ended, with the first reason.
func (m *meter) fail(err error) {
	m.once.Do(func() {
		m.err = err
		close(m.dead)
	})
}

// ended returns why the stream has ended; nil: it has not.
func (m *meter) ended() error {
	select {
	case <-m.dead:
		return fmt.Errorf("%s: %w", m.name, m.err)
	default:
		return nil
	}
}

func (m *meter) more(ctx context.Context, n uint64) error {
	from := m.n.Load()
	err := poll(ctx, func() (bool, error) {
		if m.n.Load()-from >= n {
			return true, nil
		}
		return false, m.ended()
	})
	if err != nil && m.ended() == nil {
		err = fmt.Errorf("%s: %d of %d bytes have come: %w", m.name, m.n.Load()-from, n, err)
	}
	return err
}

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
