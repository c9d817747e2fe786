// Package atexit runs what must be done even when the process ends in a hurry, at a second signal, and no
// deferred function is called: a terminal set back, a socket's file removed. It is for the process as a
// whole, as its end is.
package atexit

import "sync"

var (
	mu   sync.Mutex
	next int
	all  = map[int]func(){}
)

// Register has f called by Run, until done is called. f must be quick, wait for nobody, and may be
// called at any moment.
func Register(f func()) (done func()) {
	mu.Lock()
	defer mu.Unlock()
	i := next
	next++
	all[i] = f
	return func() {
		mu.Lock()
		defer mu.Unlock()
		delete(all, i)
	}
}

// Run calls all functions, each once.
func Run() {
	mu.Lock()
	defer mu.Unlock()
	for i, f := range all {
		delete(all, i)
		f()
	}
}
