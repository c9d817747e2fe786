package gvelab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"vnic.dev/vnic/gpumem"
)

// Bytes that are shifted, repeated or from another packet differ from the pattern.
const seed = 1

const chunk = 32 << 10

func compare(o uint64, got []byte) error {
	n := gpumem.MatchAt(got, seed, o)
	if n == len(got) {
		return nil
	}
	var want [1]byte
	gpumem.FillAt(want[:], seed, o+uint64(n))
	return fmt.Errorf("byte %d of the stream is %#x, not %#x", o+uint64(n), got[n], want[0])
}

// pace is the time between two writes of a stream: a stream must not use all processor time.
const pace = 4 * time.Millisecond

func send(c net.Conn, m *meter) {
	t := time.NewTicker(pace)
	defer t.Stop()
	b := make([]byte, chunk)
	for o := uint64(0); ; o += chunk {
		<-t.C
		gpumem.FillAt(b, seed, o)
		if _, err := c.Write(b); err != nil {
			m.fail(err)
			return
		}
	}
}

// receive receives and compares bytes until the connection ends or a byte differs.
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
		m.n.Add(uint64(n))
	}
}

type duplex struct {
	in, out *meter // bytes that the interface under test received and sent
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
