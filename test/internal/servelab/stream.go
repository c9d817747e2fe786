package servelab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"
)

// A stream is one TCP connection. It begins with its client's request: a byte, 'd' (the server sends) or 'u' (the
// client sends), and the number of bytes, 8 bytes little-endian. After 'u' the server confirms with one byte.

const (
	whole = 8 << 20
	short = 1 << 20
)

// patience is a time limit of waits, in a guest and in tests.
const patience = time.Minute

// stuff returns the first n bytes of the content of streams, which is always the same pseudo-random bytes.
func stuff(n uint64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

const maxStream = 64 << 20

func serveStreams(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = serveStream(c)
		}()
	}
}

func serveStream(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(head[1:])
	if n > maxStream {
		return errors.New("too long")
	}
	if head[0] == 'd' {
		_, err := c.Write(stuff(n))
		return err
	}
	if err := receive(c, n); err != nil {
		return err
	}
	_, err := c.Write([]byte{1})
	return err
}

func receive(c net.Conn, n uint64) error {
	got := make([]byte, n)
	if k, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("%d of %d bytes: %w", k, n, err)
	}
	if !bytes.Equal(got, stuff(n)) {
		return fmt.Errorf("%d bytes came changed", n)
	}
	return nil
}

func stream(addr string, way byte, n uint64) error {
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = c.Write(binary.LittleEndian.AppendUint64([]byte{way}, n))
	if way == 'd' {
		err = errors.Join(err, receive(c, n))
	} else if err == nil {
		if _, err = c.Write(stuff(n)); err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
	}
	if err := errors.Join(err, c.Close()); err != nil {
		return fmt.Errorf("%s, %c: %w", addr, way, err)
	}
	return nil
}

func streams(addr string, n uint64, k int) error { return several(addr, "du", n, k) }

// several runs k clients at once. Each moves n bytes over one connection after another, in the directions that the
// letters of ways give ('d', 'u'), until one fails.
func several(addr, ways string, n uint64, k int) error {
	errs := make(chan error)
	for range k {
		go func() {
			var err error
			for i := 0; err == nil && i < len(ways); i++ {
				err = stream(addr, ways[i], n)
			}
			errs <- err
		}()
	}
	var err error
	for range k {
		err = errors.Join(err, <-errs)
	}
	return err
}
