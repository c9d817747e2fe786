package devmembase

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var progress atomic.Uint64
		errStalled := errors.New("stalled")
		var stalled time.Duration
		s := Stall{Limit: 8 * time.Second, Progress: progress.Load,
			Stalled: func(idle time.Duration) error { stalled = idle; return errStalled }}
		open, closed := make(chan struct{}), make(chan struct{})
		close(closed)
		testkit.OK(t, s.Wait(closed, open, open))
		testkit.ErrorIs(t, s.Wait(open, closed, open), net.ErrClosed)
		testkit.ErrorIs(t, s.Wait(open, open, closed), os.ErrDeadlineExceeded)
		time.AfterFunc(5500*time.Millisecond, func() { progress.Add(1) })
		begin := time.Now()
		testkit.ErrorIs(t, s.Wait(open, open, open), errStalled)
		testkit.Equal(t, "time", time.Since(begin), 14*time.Second)
		testkit.Equal(t, "time without progress", stalled, 8*time.Second)
	})
}

func TestSet(t *testing.T) {
	var s Set[int]
	testkit.Equal(t, "added", s.Add(1, nil) && s.Add(2, nil), true)
	s.Remove(1)
	all, first := s.Close()
	testkit.Equal(t, "elements", len(all), 1)
	testkit.Equal(t, "first", first, true)
	_, first = s.Close()
	testkit.Equal(t, "first", first, false)
	testkit.Equal(t, "added when closed", s.Add(3, nil), false)
	testkit.Equal(t, "closed", s.Closed(), true)
}
