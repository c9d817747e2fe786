package terminal

import (
	"errors"
	"io"
	"sync"
)

// Prefix begins an escape: Ctrl-], as of telnet(1) and virsh(1).
const Prefix = 0x1d

// Help describes the escapes.
const Help = "Ctrl-] q leaves, and the guest is ended; Ctrl-] Ctrl-] sends one Ctrl-]; Ctrl-] ? shows this"

// ErrLeft is the error of a program that the user has left by an escape.
var ErrLeft = errors.New("left by Ctrl-] q")

// Lost is the message for a user when Keys calls Actions.Lost.
const Lost = "more than 1 MiB was typed that the guest has not taken: the rest is dropped"

// MaxKeys is the maximum number of typed bytes that Keys keeps until they are read.
const MaxKeys = 1 << 20

// Actions are functions that Keys calls on its own goroutine.
type Actions struct {
	Leave func() // Ctrl-] q; Keys reads nothing more
	Help  func() // Ctrl-] ?
	Lost  func() // once, when bytes are dropped because MaxKeys bytes wait
}

// Keys reads a terminal, and keeps typed bytes, at most MaxKeys, until Read returns them: escapes work even
// while nobody calls Read.
type Keys struct {
	in      io.ReadCloser
	actions Actions
	pumping sync.WaitGroup
	pending bool // pump's: the last byte was a Prefix that begins an escape
	lost    bool // pump's: Actions.Lost was called

	mu   sync.Mutex
	more *sync.Cond // with mu: buf or err has changed
	buf  []byte     // under mu
	err  error      // under mu: what Read returns once buf is empty; nil: more bytes may come
}

// NewKeys makes Keys that read from in. Keys.Close calls in.Close, which must end a blocked in.Read.
func NewKeys(in io.ReadCloser, a Actions) *Keys {
	k := &Keys{in: in, actions: a}
	k.more = sync.NewCond(&k.mu)
	k.pumping.Go(k.pump)
	return k
}

func (k *Keys) pump() {
	b := make([]byte, 4096)
	for {
		n, err := k.in.Read(b)
		keys, left := k.escapes(b[:n])
		if left {
			err = io.EOF
		} else if err != nil && k.pending {
			keys = append(keys, Prefix)
		}
		k.put(keys, err)
		if left {
			k.actions.Leave()
		}
		if err != nil {
			return
		}
	}
}

// escapes returns the bytes of b that are for the program, without escapes, and calls Actions.Help for Ctrl-] ?.
// left is true after Ctrl-] q: the rest of b is dropped.
func (k *Keys) escapes(b []byte) (keys []byte, left bool) {
	for _, c := range b {
		switch {
		case !k.pending && c == Prefix:
			k.pending = true
			continue
		case !k.pending:
			keys = append(keys, c)
		case c == 'q':
			return keys, true
		case c == '?':
			k.actions.Help()
		case c == Prefix:
			keys = append(keys, c)
		default: // no escape: the guest's program may have a use for Ctrl-], as editors have
			keys = append(keys, Prefix, c)
		}
		k.pending = false
	}
	return keys, false
}

// put appends keys for Read, as far as there is room, and sets the error that Read returns after them. If it drops
// keys for the first time, it calls Actions.Lost.
func (k *Keys) put(keys []byte, err error) {
	k.mu.Lock()
	room := MaxKeys - len(k.buf)
	over := len(keys) > room
	k.buf = append(k.buf, keys[:min(room, len(keys))]...)
	k.err = err
	k.more.Broadcast()
	k.mu.Unlock()
	if over && !k.lost {
		k.lost = true
		k.actions.Lost()
	}
}

// Read implements io.Reader. It waits until there are bytes or an error of the input.
func (k *Keys) Read(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.buf) == 0 && k.err == nil {
		k.more.Wait()
	}
	if len(k.buf) == 0 {
		return 0, k.err
	}
	n := copy(b, k.buf)
	if k.buf = k.buf[n:]; len(k.buf) == 0 {
		k.buf = nil
	}
	return n, nil
}

// Close closes the input, ends blocked Reads, and drops the bytes that no Read has returned.
func (k *Keys) Close() error {
	err := k.in.Close()
	k.pumping.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.buf, k.err = nil, io.EOF
	k.more.Broadcast()
	return err
}
