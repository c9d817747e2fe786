package bench

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

var le = binary.LittleEndian

// plainRing is a ring of descriptors in a memory file. The entries of table, avail ring and used ring have the
// layout of a split virtqueue; the indices are Go atomics.
//
// This file shares no code with virtq, and does not change: a plainLoop with two rings is the yardstick of
// the measurements worker-*, ring-* and poll-*.
type plainRing struct {
	size               uint32
	table, avail, used []byte
	made               atomic.Uint32 // number of chains that the driver (plainSide) has made available
	_                  [60]byte      // separate cache lines
	done               atomic.Uint32 // number of chains that the loop has given back
	_                  [60]byte

	added, seen uint32 // set by the driver
	taken       uint32 // set by the loop
}

const (
	plainDesc = 16 // bytes of a descriptor: address, length, flags, next
	plainNext = 1  // VIRTQ_DESC_F_NEXT
	plainUsed = 8  // bytes of an entry of the used ring: head and length
)

// newPlainRing makes a ring in mem. The function pieces returns the address and length of each descriptor of a chain;
// all chains must have equally many.
func newPlainRing(mem []byte, chains uint32, pieces func(chain uint32) [][2]uint64) *plainRing {
	r := &plainRing{size: chains}
	per := uint32(len(pieces(0)))
	cut := func(n uint32) (b []byte) {
		b, mem = mem[:n:n], mem[n:]
		clear(b)
		return b
	}
	r.table, r.avail, r.used = cut(chains*per*plainDesc), cut(2*chains), cut(plainUsed*chains)
	for i := range chains {
		for k, p := range pieces(i) {
			pos := i*per + uint32(k)
			d := r.table[pos*plainDesc:]
			le.PutUint64(d, p[0])
			le.PutUint32(d[8:], uint32(p[1]))
			if uint32(k) < per-1 {
				le.PutUint16(d[12:], plainNext)
				le.PutUint16(d[14:], uint16(pos+1))
			}
		}
	}
	return r
}

func (r *plainRing) add(head uint16) {
	le.PutUint16(r.avail[2*(r.added%r.size):], head)
	r.added++
}

func (r *plainRing) publish() { r.made.Store(r.added) }

func (r *plainRing) poll() (head uint16, n uint32, ok bool) {
	if r.seen == r.done.Load() {
		return 0, 0, false
	}
	u := r.used[plainUsed*(r.seen%r.size):]
	r.seen++
	return uint16(le.Uint32(u)), le.Uint32(u[4:]), true
}

// plainLoop copies frames from the buffers of ring tx, which lie in src, to the buffers of ring rx, which lie in dst.
// It does nothing else that a switch does.
type plainLoop struct {
	tx, rx *plainRing
	src    []byte
	dst    []byte
}

func (r *plainRing) give(pos uint32, head uint16, n uint32) {
	u := r.used[plainUsed*(pos%r.size):]
	le.PutUint32(u, uint32(head))
	le.PutUint32(u[4:], n)
}

// round moves as many frames as both rings have chains for, but at most the parameter most.
func (l *plainLoop) round(most uint32) (frames int, err error) {
	tx, rx := l.tx, l.rx
	n := min(tx.made.Load()-tx.taken, rx.made.Load()-rx.taken, most)
	for range n {
		from := le.Uint16(tx.avail[2*(tx.taken%tx.size):])
		to := le.Uint16(rx.avail[2*(rx.taken%rx.size):])
		d := rx.table[uint32(to)*plainDesc:]
		addr, room := le.Uint64(d), uint64(le.Uint32(d[8:]))
		if room > uint64(len(l.dst)) || addr > uint64(len(l.dst))-room {
			return frames, fmt.Errorf("a buffer of %d bytes at %#x: not in memory", room, addr)
		}
		free := l.dst[addr:][:room]
		written := 0
		for pos := from; ; {
			d := tx.table[uint32(pos)*plainDesc:]
			addr, size := le.Uint64(d), uint64(le.Uint32(d[8:]))
			if size > uint64(len(l.src)) || addr > uint64(len(l.src))-size || size > uint64(len(free)-written) {
				return frames, fmt.Errorf("%d bytes at %#x: not in memory, or too many", size, addr)
			}
			written += copy(free[written:], l.src[addr:][:size])
			if le.Uint16(d[12:])&plainNext == 0 {
				break
			}
			pos = le.Uint16(d[14:])
		}
		rx.give(rx.taken, to, uint32(written))
		tx.give(tx.taken, from, 0)
		tx.taken++
		rx.taken++
		frames++
	}
	if frames == 0 {
		return 0, nil
	}
	rx.done.Store(rx.taken)
	tx.done.Store(tx.taken)
	return frames, nil
}

// plainSide is the driver of both rings of a plainLoop, and runs the loop.
type plainSide struct {
	loop  plainLoop
	batch int
	frame uint32 // length of a frame, virtio_net_hdr included
	out   int    // frames whose transmit buffers have not come back
	mem   *memory
}

// newPlainSide makes a loop with two rings of batch chains, in new memory. All transmit chains point to one copy of f;
// each receive chain has its own buffer.
func newPlainSide(f *frame, batch int) (*plainSide, error) {
	size := f.bufferLen()
	rings := batch * 64
	m, err := newMemory(rings+2*4096+len(f.payload)+4096, rings+batch*size)
	if err != nil {
		return nil, err
	}
	head, body := uint64(rings), uint64(rings+4096)
	copy(m.src[head:], f.head)
	copy(m.src[body:], f.payload)
	p := &plainSide{batch: batch, frame: uint32(len(f.head) + len(f.payload)), mem: m}
	p.loop.src, p.loop.dst = m.src, m.dst
	p.loop.tx = newPlainRing(m.src, uint32(batch), func(uint32) [][2]uint64 {
		return [][2]uint64{{head, uint64(len(f.head))}, {body, uint64(len(f.payload))}}
	})
	p.loop.rx = newPlainRing(m.dst, uint32(batch), func(i uint32) [][2]uint64 {
		return [][2]uint64{{uint64(rings) + uint64(i)*uint64(size), uint64(size)}}
	})
	for i := range batch {
		p.loop.rx.add(uint16(i))
	}
	p.loop.rx.publish()
	return p, nil
}

func (p *plainSide) close() error { return p.mem.close() }

func (p *plainSide) send(n int) error {
	for range n {
		p.loop.tx.add(uint16(2 * (p.loop.tx.added % p.loop.tx.size)))
	}
	p.loop.tx.publish()
	p.out += n
	return nil
}

func (p *plainSide) room() int { return p.batch - p.out }

func (p *plainSide) take() (frames int, err error) {
	for {
		head, n, ok := p.loop.rx.poll()
		if !ok {
			break
		}
		if n != p.frame {
			return frames, fmt.Errorf("a frame of %d bytes arrived as %d", p.frame, n)
		}
		p.loop.rx.add(head)
		frames++
	}
	if frames > 0 {
		p.loop.rx.publish()
	}
	for {
		if _, _, ok := p.loop.tx.poll(); !ok {
			return frames, nil
		}
		p.out--
	}
}

// rounds runs the loop until it has moved at least this many frames; a round that moves none is an error.
func (p *plainSide) rounds(frames int) error {
	for moved := 0; moved < frames; {
		n, err := p.loop.round(burst)
		if err != nil {
			return err
		}
		if moved += n; n == 0 {
			return fmt.Errorf("the plain loop moved %d frames of %d", moved, frames)
		}
	}
	return nil
}
