package session

import (
	"context"
	"io"
	"sync"
)

// sink holds what a guest has sent and its writer has not taken yet.
type sink struct {
	to io.Writer

	mu    sync.Mutex
	data  []byte        // under mu
	room  int           // under mu: what the guest may still send
	ended bool          // under mu
	news  chan struct{} // has room for one: data or ended have changed
}

func newSink(to io.Writer) *sink {
	if to == nil {
		to = io.Discard
	}
	return &sink{to: to, room: window, news: make(chan struct{}, 1)}
}

// push says whether there was room. What is taken counts until more room is made, which the guest is then told of.
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

// makeRoom lets the guest send more.
func (s *sink) makeRoom(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room += n
}

// end says that nothing more comes.
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

// pop waits for bytes; nil: there are no more, or ctx has ended.
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
