// Package peertest has what the tests of vhostuser and vfiouser share.
package peertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// Rig is the memory and the log of a device under test, and a record of calls of its methods. At the end of the test it
// checks that nothing is mapped, no error is recorded, and Disconnected was the last call if there was a call.
type Rig struct {
	T     testing.TB
	Space *dma.Space
	Files *dma.Files
	Logs  Logs

	mu    sync.Mutex
	calls []string
	last  string
	wrong []string
	fail  map[string]error
	hook  func(method string)
}

// NewRig makes a Rig.
func NewRig(t testing.TB) *Rig {
	t.Helper()
	files := dma.NewFiles()
	r := &Rig{T: t, Space: dma.NewSpace("test", files), Files: files, fail: map[string]error{}}
	t.Cleanup(r.check)
	return r
}

func (r *Rig) check() {
	r.T.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.wrong {
		r.T.Errorf("device: %s", w)
	}
	if r.last != "" && r.last != "Disconnected" {
		r.T.Errorf("device: Disconnected was not the last call: %q", r.calls)
	}
	testkit.Equal(r.T, "regions that are left", len(r.Space.Regions()), 0)
	testkit.Equal(r.T, "files that are mapped", r.Files.Len(), 0)
}

// Log returns a logger whose lines are in Logs.
func (r *Rig) Log() *slog.Logger { return slog.New(slog.NewTextHandler(&r.Logs, nil)) }

// Note calls the function set by OnCall, records the call of a method of the device, and returns the error that
// FailWith has set for the method.
func (r *Rig) Note(method, format string, args ...any) error {
	r.mu.Lock()
	hook := r.hook
	r.mu.Unlock()
	if hook != nil {
		hook(method)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls, r.last = append(r.calls, method+fmt.Sprintf(format, args...)), method
	return r.fail[method]
}

// OnCall makes Note call f with the name of each called method; with nil, Note calls no function.
func (r *Rig) OnCall(f func(method string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hook = f
}

// FailWith makes Note return err for a method, so that the device's method can return it.
func (r *Rig) FailWith(method string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail[method] = err
}

// Fails returns the error that FailWith has set for a method.
func (r *Rig) Fails(method string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fail[method]
}

// Errorf records an error, with which the test fails when it ends, unless ClearErrors drops the error.
func (r *Rig) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// ClearErrors drops the errors that Errorf has recorded.
func (r *Rig) ClearErrors() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = nil
}

// Take returns the calls that Note has recorded since the last Take.
func (r *Rig) Take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// WantCalls fails the test unless exactly these calls were recorded since the last Take. It is a Take, too.
func (r *Rig) WantCalls(want ...string) {
	r.T.Helper()
	if got := r.Take(); !slices.Equal(got, want) {
		r.T.Errorf("device was told\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// ByteAt reads a byte as the device does.
func (r *Rig) ByteAt(iova uint64) (byte, error) {
	defer r.Space.Leave(r.Space.Enter())
	segs, err := r.Space.Translate(nil, iova, 1, dma.Read)
	if err != nil {
		return 0, err
	}
	var b [1]byte
	_, err = dma.NewCopier().Read(b[:], segs)
	return b[0], err
}

// SetByteAt writes a byte as the device does.
func (r *Rig) SetByteAt(iova uint64, v byte) error {
	defer r.Space.Leave(r.Space.Enter())
	segs, err := r.Space.Translate(nil, iova, 1, dma.Write)
	if err != nil {
		return err
	}
	_, err = dma.NewCopier().Write(segs, []byte{v})
	return err
}

// WantError fails the test unless err is want or wraps it.
func WantError(t testkit.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

// Script is a fuzzer's input, from which Play plays a session.
type Script []byte

// Next removes and returns the first byte of the script; at the end it returns 0.
func (s *Script) Next() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

// Play calls step, which sends a message, until the script is at its end or step fails, and hangs up. It fails
// the test if served ends with an error that wraps none of errs.
func (s *Script) Play(t testing.TB, sock *net.UnixConn, served *Served, step func() error, errs ...error) {
	t.Helper()
	drained := make(chan struct{})
	go func() { // so that Serve does not block in a write
		defer close(drained)
		_, _ = io.Copy(io.Discard, sock)
	}()
	for len(*s) > 0 {
		if err := step(); err != nil {
			break
		}
	}
	_ = sock.CloseWrite()
	err := served.Wait()
	if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return errors.Is(err, e) }) {
		t.Errorf("Serve: %v", err)
	}
	<-drained
	_ = sock.Close()
}

// Logs stores log lines.
type Logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *Logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// ErrStop is the cause with which Stop ends a connection.
var ErrStop = errors.New("stopped by the test")

// Served is a connection that a device serves. The peer hangs up at the end of the test at the latest. If the test has
// not waited for the end of serve (Wait) by then, serve must return no error.
type Served struct {
	Cancel context.CancelCauseFunc
	t      testing.TB
	hangUp func() error
	result chan error
	waited bool
}

// Serve runs serve on a goroutine of its own; hangUp closes the peer's end.
func Serve(t testing.TB, serve func(context.Context) error, hangUp func() error) *Served {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &Served{Cancel: cancel, t: t, hangUp: hangUp, result: make(chan error, 1)}
	go func() { c.result <- serve(ctx) }()
	t.Cleanup(func() {
		if c.waited {
			_ = hangUp()
		} else if err := c.HangUp(); err != nil {
			t.Errorf("Serve, after the peer hung up: %v", err)
		}
	})
	return c
}

// HangUp closes the peer's end and returns the error of serve.
func (c *Served) HangUp() error {
	_ = c.hangUp()
	return c.Wait()
}

// Wait waits for the end of serve and returns its error. It may be called once.
func (c *Served) Wait() error {
	c.waited = true
	err := <-c.result
	c.Cancel(nil)
	return err
}

// WantEnd waits for the end of serve, and fails the test unless its error is want or wraps it.
func (c *Served) WantEnd(want error) {
	c.t.Helper()
	if err := c.Wait(); !errors.Is(err, want) {
		c.t.Errorf("Serve: %v, want %v", err, want)
	}
}

// Stop cancels the context of serve with ErrStop, and fails the test unless serve then returns that error.
func (c *Served) Stop() {
	c.t.Helper()
	c.Cancel(ErrStop)
	c.WantEnd(ErrStop)
}
