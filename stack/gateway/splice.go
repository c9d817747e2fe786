package gateway

import (
	"context"
	"io"
	"sync"
)

// stream is an end of a connection.
type stream interface {
	io.ReadWriteCloser
	CloseWrite() error
	reset() // ends it and calls that wait in it, at once; may be called more than once
}

// chunks are what splice copies by.
var chunks = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// splice joins two connections until both directions have ended. The end of a direction is passed
// on as such, and so is a failure, which ends both.
func splice(ctx context.Context, a, b stream) {
	abort := sync.OnceFunc(func() {
		a.reset()
		b.reset()
	})
	stop := context.AfterFunc(ctx, abort)
	var back sync.WaitGroup
	back.Go(func() { pour(a, b, abort) })
	pour(b, a, abort)
	back.Wait()
	if !stop() { // abort is on its way
		abort()
		return
	}
	a.Close()
	b.Close()
}

// pour copies from src to dst, to the end of src.
func pour(dst, src stream, abort func()) {
	chunk := chunks.Get().(*[64 << 10]byte)
	defer chunks.Put(chunk)
	// Not with the ends' own ReadFrom and WriteTo, which would take buffers of theirs.
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, chunk[:])
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		abort()
	}
}
