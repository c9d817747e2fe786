package devmembase

import (
	"maps"
	"slices"
	"sync"
)

// Set has the connections or listeners that a device closes in its own Close. The zero Set is empty. A Set is
// safe for concurrent use.
type Set[E comparable] struct {
	mu     sync.Mutex
	open   map[E]struct{}
	closed bool
}

// Do calls f under the Set's lock. It returns false, and does not call f, if the Set is closed.
func (s *Set[E]) Do(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	f()
	return true
}

// Add adds an element, and then calls then, which may be nil, under the Set's lock. If the Set is closed, Add
// does neither and returns false.
func (s *Set[E]) Add(e E, then func()) bool {
	return s.Do(func() {
		if s.open == nil {
			s.open = map[E]struct{}{}
		}
		s.open[e] = struct{}{}
		if then != nil {
			then()
		}
	})
}

// Remove removes an element.
func (s *Set[E]) Remove(e E) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, e)
}

// All returns the elements.
func (s *Set[E]) All() []E {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.open))
}

// Closed reports whether Close was called.
func (s *Set[E]) Closed() bool { return !s.Do(func() {}) }

// Close closes the Set, and returns its elements. first is false if it was closed before.
func (s *Set[E]) Close() (all []E, first bool) {
	first = s.Do(func() { s.closed = true })
	return s.All(), first
}
