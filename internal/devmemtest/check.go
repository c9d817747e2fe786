package devmemtest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Result is the result of a case.
type Result struct {
	Name    string   `json:"name"`
	Failed  bool     `json:"failed"`
	Skipped bool     `json:"skipped"`
	Log     []string `json:"log,omitempty"` // errors, and why the case was skipped
}

// Check runs a case outside of `go test`, in the World that newWorld makes. newWorld may fail or skip the case by
// its T.
func Check(ctx context.Context, c Case, newWorld func(T) *World) Result {
	return check(ctx, c.Name, func(t T) { c.Run(t, newWorld(t)) })
}

// CheckMemory is Check for a case of MemoryCases.
func CheckMemory(ctx context.Context, c MemoryCase, newWorld func(T) *MemoryWorld) Result {
	return check(ctx, c.Name, func(t T) { c.Run(t, newWorld(t)) })
}

func check(ctx context.Context, name string, run func(T)) Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &checker{ctx: ctx, result: Result{Name: name}}
	t.do(func() { run(t) })
	cancel()
	for {
		t.mu.Lock()
		n := len(t.cleanups)
		if n == 0 {
			defer t.mu.Unlock()
			return t.result
		}
		f := t.cleanups[n-1]
		t.cleanups = slices.Delete(t.cleanups, n-1, n)
		t.mu.Unlock()
		t.do(f)
	}
}

type checker struct {
	ctx context.Context

	mu       sync.Mutex
	result   Result
	cleanups []func()
}

func (t *checker) do(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (t *checker) note(s string, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.Failed = t.result.Failed || failed
	t.result.Log = append(t.result.Log, strings.TrimSuffix(s, "\n"))
}

// place returns the file and line of up to three nested calls of this package, the innermost last, without the
// methods of checker and the Run of cases.
func place() string {
	var pcs [16]uintptr
	var where []string
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "devmemtest.") && !strings.Contains(f.Function, "checker") &&
			!strings.Contains(f.Function, "Case.Run") {
			where = append(where, fmt.Sprintf("%s:%d", f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line))
		}
		if !more || len(where) == 3 {
			break
		}
	}
	slices.Reverse(where)
	return strings.Join(where, " ")
}

func (t *checker) Helper()                  {}
func (t *checker) Name() string             { return t.result.Name }
func (t *checker) Context() context.Context { return t.ctx }
func (t *checker) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}
func (t *checker) Error(args ...any)            { t.note(place()+": "+fmt.Sprintln(args...), true) }
func (t *checker) Errorf(f string, args ...any) { t.note(place()+": "+fmt.Sprintf(f, args...), true) }
func (t *checker) Fatal(args ...any) {
	t.note(place()+": "+fmt.Sprintln(args...), true)
	runtime.Goexit()
}
func (t *checker) Fatalf(f string, args ...any) {
	t.note(place()+": "+fmt.Sprintf(f, args...), true)
	runtime.Goexit()
}
func (t *checker) Skip(args ...any) {
	t.note(fmt.Sprint(args...), false)
	t.mu.Lock()
	t.result.Skipped = true
	t.mu.Unlock()
	runtime.Goexit()
}
