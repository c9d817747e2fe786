package httpserver

import (
	"net/http"
	"sync"
)

// requests are those inside an HTTP server, whose Close does not wait for them. The zero requests has none.
type requests struct {
	mu     sync.Mutex // no request enters inside after ended
	ended  bool
	inside sync.WaitGroup
}

// handler is next, as long as end was not called: after it a request is answered by nothing.
func (r *requests) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		if r.ended {
			r.mu.Unlock()
			return
		}
		r.inside.Add(1)
		r.mu.Unlock()
		defer r.inside.Done()
		next.ServeHTTP(w, q)
	})
}

// end lets no more requests in; first is false if it was called before.
func (r *requests) end() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !r.ended
	r.ended = true
	return first
}

// wait waits for the requests that are still being served, after end.
func (r *requests) wait() { r.inside.Wait() }
