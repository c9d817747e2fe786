// Package atexit has the process's list of cleanup functions for an exit that skips deferred functions: before such
// an os.Exit the program calls [Run].
package atexit

import "sync"

var (
	mu   sync.Mutex
	next int
	all  = map[int]func(){}
)

// Register makes [Run] call f, unless done is called first. f must return soon, wait for no goroutine, and
// call neither this package nor done.
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

// Run calls the registered functions, in no certain order, and removes them from the list.
func Run() {
	mu.Lock()
	defer mu.Unlock()
	for i, f := range all {
		delete(all, i)
		f()
	}
}
