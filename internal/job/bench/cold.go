package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// coldFrame is how long the frames of a flow through cold memory are, link header included.
const coldFrame = 64 << 10

// stretch is memory that is used piece after piece, and from its start again.
type stretch struct{ base, size, pos uint64 }

func (s *stretch) next(n uint64) (addr uint64) {
	if n > s.size-s.pos {
		s.pos = 0
	}
	addr = s.base + s.pos
	s.pos += n
	return addr
}

// coldFlow is a network of two ports whose frames are sent from one buffer after another of much memory, and come to
// one after another: what is copied is in no cache. Its side is done by one goroutine, the worker's rounds too.
type coldFlow struct {
	*network
	src, dst stretch
	newest   uint64 // where the frame lies that came last
	payload  int
	run      runFunc
}

// newColdFlow makes a flow from memory of a size to as much.
func newColdFlow(size int, log *slog.Logger) (c *coldFlow, err error) {
	s := shape{ports: 2, queues: 1, frame: coldFrame, mtu: jumboMTU, ram: guestRAM + size}
	c = new(coldFlow)
	if c.network, err = newNetwork(s, log); err != nil {
		return nil, err
	}
	c.endWorkers()
	pattern := bytes.Repeat([]byte{1, 2, 3, 5, 7, 11, 13}, 4096)
	for i, m := range []*stretch{&c.src, &c.dst} {
		addr, b, err := c.guests[i].alloc(size)
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		for i == 0 && len(b) > 0 {
			b = b[copy(b, pattern):]
		}
		clear(b) // its pages are there from now on
		*m = stretch{base: addr, size: uint64(size)}
	}
	c.payload = coldFrame - tcpHeader
	c.run = byRounds(c, c.batch, c.payload)
	return c, nil
}

func (c *coldFlow) send(frames int) error {
	l := c.flows[0]
	for range frames {
		l.tx[1].Addr = c.src.next(coldFrame)
		if err := l.from.rings[1].Add(l.tx, nil, 0); err != nil {
			return err
		}
	}
	l.out += frames
	l.from.publish(1)
	return nil
}

func (c *coldFlow) take() (frames int, err error) {
	l := c.flows[0]
	g := l.to
	if frames, err = g.rings[0].Poll(g.used); err != nil {
		return 0, err
	}
	for _, u := range g.used[:frames] {
		b := &g.bufs[u.Cookie]
		if int(u.Len) != c.length {
			return frames, fmt.Errorf("a frame of %d bytes arrived as %d", c.length, u.Len)
		}
		c.newest = b.Addr
		b.Addr = c.dst.next(uint64(b.Len))
		if err := g.repost(0, u.Cookie); err != nil {
			return frames, err
		}
	}
	g.publish(0)
	k, err := l.from.sent(0)
	l.out -= k
	return frames, err
}

// arrived returns an error unless the frame that came last has the payload of the frame that was sent last.
func (c *coldFlow) arrived() error {
	l := c.flows[0]
	sent := l.from.ram[l.tx[1].Addr:][:c.payload]
	if !bytes.Equal(l.to.ram[c.newest:][netHeader+tcpHeader:][:c.payload], sent) {
		return errors.New("what was sent is not there")
	}
	return nil
}

// warm has all of the memory touched by the device too, whose mapping is another one.
func (c *coldFlow) warm(ctx context.Context) error {
	for sent := uint64(0); sent < 2*c.src.size; {
		w, err := c.run(ctx, MinTime)
		if err != nil {
			return err
		}
		sent += w.bytes
	}
	return nil
}
