package stat

import (
	"net/http"
	"sync"
)

// Requests are those inside an HTTP server, whose Close does not wait for them. The zero Requests has none.
type Requests struct {
	mu     sync.Mutex // no request enters inside after ended
	ended  bool
	inside sync.WaitGroup
}

// Handler is next, as long as End was not called: after it a request is answered by nothing.
func (r *Requests) Handler(next http.Handler) http.Handler {
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

// End lets no more requests in; first is false if it was called before.
func (r *Requests) End() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !r.ended
	r.ended = true
	return first
}

// Wait waits for those that are inside, after End.
func (r *Requests) Wait() { r.inside.Wait() }
