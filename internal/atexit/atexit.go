// Package atexit has a list of cleanup functions for an exit without deferred functions, for example at a second
// signal: the caller of os.Exit calls Run first. The functions set a terminal back, or remove a socket's file. A
// process has one list.
package atexit

import "sync"

var (
	mu   sync.Mutex
	next int
	all  = map[int]func(){}
)

// Register makes Run call f, unless done is called first. f must return soon, must not wait for other goroutines, and
// must not call this package. Run may call it at any moment.
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

// Run calls each registered function, and removes it from the list.
func Run() {
	mu.Lock()
	defer mu.Unlock()
	for i, f := range all {
		delete(all, i)
		f()
	}
}
