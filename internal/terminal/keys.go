package terminal

import (
	"errors"
	"io"
	"sync"
)

// Prefix begins an escape: Ctrl-], as of telnet(1) and virsh(1).
const Prefix = 0x1d

// Help says what the escapes are.
const Help = "Ctrl-] q leaves, and the guest is ended; Ctrl-] Ctrl-] sends one Ctrl-]; Ctrl-] ? shows this"

// ErrLeft is the end that a user asked for by an escape.
var ErrLeft = errors.New("left by Ctrl-] q")

// Lost says what Actions.Lost is about.
const Lost = "more than 1 MiB was typed that the guest has not taken: the rest is dropped"

// MaxKeys bounds what is kept of what is typed until somebody reads it, in bytes.
const MaxKeys = 1 << 20

// Actions are what escapes do. They are called by the goroutine that reads the terminal, and must not wait for it.
type Actions struct {
	Leave func() // nothing is read from then on
	Help  func()
	Lost  func() // more than MaxKeys wait: told once
}

// Keys reads what is typed from the moment it is made, and keeps it until it is asked for: so an escape is seen when
// nobody else reads, as while a guest boots or hangs, and what is typed meanwhile is not lost.
type Keys struct {
	in      io.ReadCloser
	actions Actions
	pumping sync.WaitGroup
	pending bool // the pump's: Prefix was the last byte
	lost    bool // the pump's

	mu   sync.Mutex
	more *sync.Cond // with mu
	buf  []byte     // under mu
	err  error      // under mu: what there is behind buf
}

// NewKeys begins to read. Close closes in, which has to end a Read of it.
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

// escapes gives what of the bytes is for the guest; left: the rest is for nobody.
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

// put keeps keys for Read.
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

// Read implements io.Reader.
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

// Close ends reading, here and of Read, and drops what nobody has asked for.
func (k *Keys) Close() error {
	err := k.in.Close()
	k.pumping.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.buf, k.err = nil, io.EOF
	k.more.Broadcast()
	return err
}
