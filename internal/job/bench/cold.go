package bench

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
)

// coldFrame is the length of a cold flow's frames, link header included.
const coldFrame = 64 << 10

// stretch is a range of memory. Its method next returns consecutive pieces, and begins again at base after the last.
type stretch struct{ base, size, pos uint64 }

func (s *stretch) next(n uint64) (addr uint64) {
	if n > s.size-s.pos {
		s.pos = 0
	}
	addr = s.base + s.pos
	s.pos += n
	return addr
}

// coldFlow is a network of two ports. The payload of each frame is sent from the next piece of one memory, and a
// receive buffer moves to the next piece of another one after each frame. So caches smaller than these memories do
// not keep the bytes to copy.
type coldFlow struct {
	*network
	payload int
	run     runFunc
}

func newColdFlow(size int, log *slog.Logger) (c *coldFlow, err error) {
	s := shape{ports: 2, queues: 1, frame: coldFrame, mtu: jumboMTU, ram: guestRAM + size}
	c = new(coldFlow)
	if c.network, err = newNetwork(s, log); err != nil {
		return nil, err
	}
	c.endWorkers()
	pattern := bytes.Repeat([]byte{1, 2, 3, 5, 7, 11, 13}, 4096)
	for i, m := range []**stretch{&c.flows[0].src, &c.guests[1].dst} {
		addr, b, err := c.guests[i].alloc(size)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		for i == 0 && len(b) > 0 {
			b = b[copy(b, pattern):]
		}
		clear(b)
		*m = &stretch{base: addr, size: uint64(size)}
	}
	c.payload = coldFrame - tcpHeader
	c.run = byRounds(c.network, c.batch, c.payload)
	return c, nil
}

// arrived returns an error unless the newest received frame has the payload of the last sent one.
func (c *coldFlow) arrived() error {
	l := c.flows[0]
	sent := l.from.ram[l.tx[1].Addr:][:c.payload]
	if !bytes.Equal(l.to.ram[l.to.newest:][netHeader+tcpHeader:][:c.payload], sent) {
		return errors.New("what was sent is not there")
	}
	return nil
}

// warm sends twice as much payload as the memory has from which it is sent, so that the pages of both memories are in
// the device's own mapping too.
func (c *coldFlow) warm(ctx context.Context) error {
	for sent := uint64(0); sent < 2*c.flows[0].src.size; {
		w, err := c.run(ctx, MinTime)
		if err != nil {
			return err
		}
		sent += w.bytes
	}
	return nil
}
