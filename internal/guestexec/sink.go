package guestexec

import (
	"context"
	"io"
	"sync"
)

type sink struct {
	to io.Writer

	mu    sync.Mutex
	data  []byte        // under mu
	room  int           // under mu: bytes that the guest may still send
	ended bool          // under mu
	news  chan struct{} // capacity 1: has a value after data or ended has changed
}

func newSink(to io.Writer) *sink {
	if to == nil {
		to = io.Discard
	}
	return &sink{to: to, room: window, news: make(chan struct{}, 1)}
}

// push appends b to the data; false: there was no room, and nothing was appended.
func (s *sink) push(b []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(b) > s.room {
		return false
	}
	s.room -= len(b)
	s.data = append(s.data, b...)
	s.tell()
	return true
}

func (s *sink) makeRoom(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room += n
}

func (s *sink) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.tell()
}

func (s *sink) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *sink) pop(ctx context.Context) []byte {
	for {
		s.mu.Lock()
		b, ended := s.data, s.ended
		s.data = nil
		s.mu.Unlock()
		if len(b) > 0 {
			return b
		}
		if ended {
			return nil
		}
		select {
		case <-s.news:
		case <-ctx.Done():
			return nil
		}
	}
}
