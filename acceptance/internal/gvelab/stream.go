package gvelab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"
)

// A stream's byte at offset o is table[o%period]: a prime, so that what is shifted, repeated or of
// another packet differs.
const (
	period = 65521
	chunk  = 32 << 10
)

var table = func() []byte {
	b := make([]byte, period+chunk)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b[:period])
	copy(b[period:], b)
	return b
}()

// pattern is n bytes, at most chunk, from offset o on.
func pattern(o uint64, n int) []byte { return table[o%period : o%period+uint64(n)] }

// compare checks what was received at an offset.
func compare(o uint64, got []byte) error {
	for len(got) > 0 {
		n := min(len(got), chunk)
		if want := pattern(o, n); !bytes.Equal(got[:n], want) {
			for i := range want {
				if got[i] != want[i] {
					return fmt.Errorf("byte %d of the stream is %#x, not %#x", o+uint64(i), got[i], want[i])
				}
			}
		}
		got, o = got[n:], o+uint64(n)
	}
	return nil
}

// pace is how long a chunk takes at least: a stream is to be there at all times, not to take all there is.
const pace = 4 * time.Millisecond

// send sends the pattern until the connection ends.
func send(c net.Conn, m *meter) {
	t := time.NewTicker(pace)
	defer t.Stop()
	for o := uint64(0); ; o += chunk {
		<-t.C
		if _, err := c.Write(pattern(o, chunk)); err != nil {
			m.fail(err)
			return
		}
	}
}

// receive compares what comes until the connection ends.
func receive(c io.Reader, m *meter) {
	b := make([]byte, chunk)
	for o := uint64(0); ; {
		n, err := c.Read(b)
		if err == nil {
			err = compare(o, b[:n])
		}
		if err != nil {
			m.fail(err)
			return
		}
		o += uint64(n)
		m.add(n)
	}
}

// duplex is an ordinary TCP connection with a stream in each direction.
type duplex struct {
	in, out *meter // of the interface under test
}

const duplexPort = 7001

func newDuplex(n *namespace) (*duplex, error) {
	var l net.Listener
	err := n.do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf("%v:%d", peerAddr.Addr(), duplexPort))
		return err
	})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	a, err := net.DialTimeout("tcp", l.Addr().String(), time.Minute)
	if err != nil {
		return nil, err
	}
	b, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	d := &duplex{in: newMeter("ordinary TCP, in"), out: newMeter("ordinary TCP, out")}
	go send(a, d.out)
	go receive(b, d.out)
	go send(b, d.in)
	go receive(a, d.in)
	return d, nil
}
