package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/splitter"
)

const (
	directFrame  = 64 << 10 // link header included
	directWindow = 32       // most frames under way
)

// pages is the pool of free GPU pages, from which a bound receive queue takes its buffers: the longest free page first.
type pages struct {
	mu   sync.Mutex
	free []uint64
}

func newPages(size int) *pages {
	p := new(pages)
	for off := 0; off < size; off += driver.PageSize {
		p.free = append(p.free, uint64(off))
	}
	return p
}

func (p *pages) TakePages(_ int, dst []uint64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := copy(dst, p.free)
	p.free = p.free[n:]
	return n
}

func (p *pages) ReturnPages(_ int, offs []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, offs...)
}

// sink is the receiving driver's Receiver: it sends the payload length of each frame with payload in GPU memory to
// came, and returns the frame's pages to the pool.
type sink struct {
	nic   *driver.NIC
	pages *pages
	came  chan int
	offs  []uint64
}

func (s *sink) Receive(frames []driver.RxFrame) {
	for i := range frames {
		f := &frames[i]
		if !f.Split {
			continue // its payload is in host memory: direct.measure waits for it in vain, and fails
		}
		s.offs = s.offs[:0]
		for _, r := range f.Payload {
			s.offs = append(s.offs, r.Off)
		}
		s.pages.ReturnPages(f.Queue, s.offs)
		select {
		case s.came <- f.PayloadLen:
		default: // came is full: more frames have arrived than were sent
		}
	}
	s.nic.Refill(gpuQueue)
}

func (s *sink) Completed(int, []uint64) {}
func (s *sink) Wake()                   {}

type nobody struct{}

func (nobody) Receive([]driver.RxFrame) {}
func (nobody) Completed(int, []uint64)  {}
func (nobody) Wake()                    {}

func gpuDirect(f footprint) openFunc { return f.betweenGPUs(1500, f.connectDrivers) }

// tellPlace sends a frame from port 1, whose driver is n, to port 0, so that the switch learns port 1's MAC and does
// not flood frames to that MAC.
func tellPlace(l *lab.Lab, n *driver.NIC) error {
	f := newFrame(l.Port(0).MAC, l.Port(1).MAC, tcpPort, 64, 1500)
	tx := f.transmitted()
	tx.Linear = f.payload
	if _, err := n.Transmit(0, []driver.TxFrame{tx}); err != nil {
		return err
	}
	return until(func() (bool, error) {
		_, sent := l.Port(1).NIC().QueueCounters(0)
		return sent.Packets > 0, n.Err()
	})
}

func (f *frame) transmitted() driver.TxFrame {
	return driver.TxFrame{Header: f.head[netHeader:], NeedsCsum: true, CsumStart: le.Uint16(f.head[6:]),
		CsumOffset: le.Uint16(f.head[8:])}
}

func (f footprint) connectDrivers(ctx context.Context, l *lab.Lab, r *rig) error {
	var nics [2]*driver.NIC
	for i, p := range l.Ports() {
		n, err := p.InProcess(driver.Options{QueuePairs: p.QueuePairs, PagesPerChain: 16, RingSize: 64})
		if err != nil {
			return err
		}
		r.undo.Add(n.Close)
		nics[i] = n
	}
	a, b := nics[0], nics[1]
	s := &sink{nic: b, pages: newPages(f.pool), came: make(chan int, directWindow)}
	if err := errors.Join(a.Start(nobody{}), b.Start(s)); err != nil {
		return err
	}
	gpuA, gpuB := l.Port(0).GPU().ID(), l.Port(1).GPU().ID()
	source, err := a.Control().RegisterBuffer(ctx, uint16(gpuA), 0, uint64(f.source))
	if err != nil {
		return err
	}
	if _, err = a.Control().BindTx(ctx, source); err != nil {
		return err
	}
	pool, err := b.Control().RegisterBuffer(ctx, uint16(gpuB), 0, uint64(f.pool))
	if err != nil {
		return err
	}
	if err = b.BindQueue(gpuQueue, gpuB, s.pages); err != nil {
		return err
	}
	if _, err = b.Control().BindRx(ctx, pool, gpuQueue); err != nil {
		return err
	}
	if _, err = b.Control().AddFlow(ctx, control.FlowRule{Proto: splitter.ProtoTCP, Queue: gpuQueue, DstPort: tcpPort,
		Dst: l.Port(1).Addr4.Addr()}); err != nil {
		return err
	}
	if err := tellPlace(l, b); err != nil {
		return err
	}
	frame := newFrame(l.Port(1).MAC, l.Port(0).MAC, tcpPort, directFrame, 1500)
	tx := []driver.TxFrame{frame.transmitted()}
	tx[0].GSOType, tx[0].GSOSize = splitter.GSOTCPv4, le.Uint16(frame.head[4:])
	tx[0].Device = []driver.Range{{GPU: gpuA, Len: uint32(len(frame.payload))}}
	r.counted = func() uint64 { return counters(l.Port(1)).Rx.DeviceBytes }
	r.ours = (&direct{a, b, tx, uint64(f.source), s.came}).measure
	return nil
}

// direct sends a frame from driver a to driver b again and again, each time with the next piece of a's GPU memory as
// payload.
type direct struct {
	a, b   *driver.NIC
	frames []driver.TxFrame
	source uint64
	came   <-chan int
}

func (x *direct) measure(ctx context.Context, d time.Duration) (w work, err error) {
	late := time.NewTimer(d + limits.Bench.Here())
	defer late.Stop()
	start, out := time.Now(), 0
	for {
		for out < directWindow && (w.frames == 0 && out == 0 || time.Since(start) < d) {
			n, err := x.a.Transmit(0, x.frames)
			if err != nil {
				return w, err
			}
			if n == 0 {
				runtime.Gosched() // the ring is full
				continue
			}
			out++
			if r := &x.frames[0].Device[0]; r.Off+2*directFrame <= x.source {
				r.Off += directFrame
			} else {
				r.Off = 0
			}
		}
		if out == 0 {
			w.spent = time.Since(start)
			return w, ctx.Err()
		}
		select {
		case n := <-x.came:
			w.frames++
			w.bytes += uint64(n)
			out--
		case <-late.C:
			return w, fmt.Errorf("%w: %d frames under way; drivers: %w", errStuck, out, errors.Join(x.a.Err(), x.b.Err()))
		}
	}
}
