// Package atexit has the process's list of cleanup functions for an exit without deferred functions: the
// caller of os.Exit calls [Run] first.
package atexit

import "sync"

var (
	mu   sync.Mutex
	next int
	all  = map[int]func(){}
)

// Register makes [Run] call f, unless done is called first. f must return soon, wait for no goroutine, and
// not call this package.
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

// Run calls the registered functions, and removes them from the list.
func Run() {
	mu.Lock()
	defer mu.Unlock()
	for i, f := range all {
		delete(all, i)
		f()
	}
}
