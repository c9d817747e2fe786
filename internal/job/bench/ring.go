package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/undo"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

const (
	guestRAM  = 16 << 20
	jumboMTU  = 9000
	mostBatch = 256     // most frames in flight, of all flows together
	batchLen  = 1 << 20 // most bytes in flight, of all flows together
)

// side moves frames from transmit rings to receive rings.
type side interface {
	send(n int) error
	room() int
	take() (frames int, err error) // takes arrived frames and posts their buffers again; takes back sent frames
	rounds(frames int) error       // does the worker's rounds until they have moved at least this many frames
}

type flow struct {
	from, to           *guest
	fromQueue, toQueue int
	tx                 []virtq.Buf
	src                *stretch // pieces of memory with the payload of the next frames; nil: all frames have the same
	out                int      // frames whose transmit buffers have not come back
}

// network is the frontends of a lab's ports, and flows from the first one to the others.
type network struct {
	guests []*guest
	flows  []*flow
	batch  int // most frames in flight of a flow
	ended  bool
	length int // length of a frame, with virtio_net_hdr
	undo   undo.Stack
}

type shape struct {
	ports  int // the first port sends to the others
	queues int // queue pairs of a port: queue i sends to queue i
	rules  int // flow rules of a receiver for each queue; only the last one matches; 0: none
	frame  int // length of a frame, with its link header
	mtu    int
	poll   int // threads that poll the rings; 0: the NICs' workers sleep
	ram    int // of each guest, in bytes; less than guestRAM counts as guestRAM
}

func newNetwork(s shape, log *slog.Logger) (_ *network, err error) {
	n := new(network)
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	d := lab.Uniform(s.ports, lab.NIC{Model: lab.Virtio, QueuePairs: s.queues, NICOptions: lab.NICOptions{MTU: s.mtu}}, 0)
	l, err := lab.Open(d, lab.Options{Log: log, Poll: s.poll})
	if err != nil {
		return nil, err
	}
	n.undo.Add(l.Close)
	for _, p := range l.Ports() {
		g, err := newGuest(p, max(guestRAM, s.ram))
		if err != nil {
			return nil, err
		}
		n.undo.Add(g.undo.All)
		n.guests = append(n.guests, g)
	}
	a, receivers := n.guests[0], n.guests[1:]
	n.batch = max(1, min(mostBatch, batchLen/s.frame)/(len(receivers)*s.queues))
	if err := a.post(0, len(receivers), 2048); err != nil {
		return nil, err
	}
	for _, b := range receivers {
		if err := n.introduce(b, a, s.mtu); err != nil {
			return nil, err
		}
		for q := range s.queues {
			f := newFrame(b.port.MAC, a.port.MAC, tcpPort+uint16(q), s.frame, s.mtu)
			n.length = f.len()
			l := &flow{from: a, to: b, fromQueue: q, toQueue: q}
			if l.tx, err = a.layOut(f); err != nil {
				return nil, err
			}
			if err := b.post(q, n.batch, f.bufferLen()); err != nil {
				return nil, err
			}
			if err := steer(b, q, s.rules); err != nil {
				return nil, err
			}
			if err := n.begin(l); err != nil {
				return nil, err
			}
			n.flows = append(n.flows, l)
		}
	}
	return n, nil
}

// introduce sends a frame from b to a, from which the switch learns b's MAC, and waits until it is sent.
func (n *network) introduce(b, a *guest, mtu int) error {
	tx, err := b.layOut(newFrame(a.port.MAC, b.port.MAC, tcpPort, 64, mtu))
	if err != nil {
		return err
	}
	if err := b.rings[1].Add(tx, nil, 0); err != nil {
		return err
	}
	b.publish(1)
	return until(func() (bool, error) { k, err := b.sent(0); return k > 0, err })
}

// steer adds flow rules for queue q to b, as many as the parameter rules: only the last one matches flow q's frames.
func steer(b *guest, q, rules int) error {
	for i := range rules {
		port := uint16(tcpPort + q)
		if i < rules-1 {
			port = uint16(1<<14 + q*rules + i)
		}
		if _, err := b.port.NIC().AddFlow(control.FlowRule{Proto: splitter.ProtoTCP, Queue: uint16(q), DstPort: port,
			Dst: b.port.Addr4.Addr()}); err != nil {
			return fmt.Errorf("flow rule %d: %w", i, err)
		}
	}
	return nil
}

// begin sends frames of a flow, one at a time, until one arrives: before the receive ring has started they are dropped.
// Then it takes back all of them.
func (n *network) begin(l *flow) error {
	err := until(func() (bool, error) {
		if l.out == 0 {
			if err := n.sendOn(l, 1); err != nil {
				return false, err
			}
		}
		k, err := n.takeOf(l)
		return k > 0, err
	})
	if err != nil {
		return fmt.Errorf("from %s to queue %d of %s: %w", l.from.port.Name, l.toQueue, l.to.port.Name, err)
	}
	if err := until(func() (bool, error) { _, err := n.takeOf(l); return l.out == 0, err }); err != nil {
		return err
	}
	_, err = n.takeOf(l) // frames that arrived since the last look
	return err
}

// until calls f until f returns true or an error. It returns errStuck after limits.Bench.Here().
func until(f func() (bool, error)) error {
	for deadline := time.Now().Add(limits.Bench.Here()); ; {
		if ok, err := f(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errStuck
		}
		runtime.Gosched()
	}
}

func (n *network) close() error {
	if n.ended {
		n.endWorkers() // shows the race detector that the rounds are over
	}
	return n.undo.All()
}

func (n *network) sendOn(l *flow, frames int) error {
	ring := 2*l.fromQueue + 1
	for range frames {
		if l.src != nil {
			l.tx[1].Addr = l.src.next(coldFrame)
		}
		if err := l.from.rings[ring].Add(l.tx, nil, 0); err != nil {
			return err
		}
	}
	l.out += frames
	l.from.publish(ring)
	return nil
}

func (n *network) takeOf(l *flow) (frames int, err error) {
	if frames, err = l.to.take(l.toQueue, n.length); err != nil {
		return frames, err
	}
	k, err := l.from.sent(l.fromQueue)
	l.out -= k
	return frames, err
}

func (n *network) send(frames int) error {
	for _, l := range n.flows {
		if err := n.sendOn(l, frames/len(n.flows)); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) room() int { return n.batch - n.flows[0].out }

func (n *network) take() (frames int, err error) {
	for _, l := range n.flows {
		k, err := n.takeOf(l)
		if frames += k; err != nil {
			return frames, err
		}
	}
	return frames, nil
}

// endWorkers ends the workers of the sender's transmit queues: from then on rounds does their work.
func (n *network) endWorkers() {
	n.ended = true
	for q := range n.guests[0].port.QueuePairs {
		n.guests[0].dev.EndWorker(q)
	}
}

func (n *network) rounds(frames int) error {
	a := n.guests[0]
	for moved, idle := 0, 0; moved < frames; {
		k := 0
		for q := range a.port.QueuePairs {
			done, err := a.dev.Round(q)
			if k += done; err != nil {
				return err
			}
		}
		if moved += k; k > 0 {
			idle = 0
		} else if idle++; idle > 1000 {
			return fmt.Errorf("the worker moved %d frames of %d", moved, frames)
		}
	}
	return nil
}

func (n *network) received() (sum uint64) {
	for _, g := range n.guests[1:] {
		sum += counters(g.port).Rx.HostBytes
	}
	return sum
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// burst is how many frames a round of the plain loop moves at most.
const burst = 32

// byRounds returns a run that measures the processor time in which its thread does the worker's rounds, without the
// time for filling and emptying the rings.
func byRounds(s side, batch, payload int) runFunc {
	return func(ctx context.Context, d time.Duration) (w work, err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for begin := time.Now(); time.Since(begin) < d || w.frames == 0; {
			if err := s.send(batch); err != nil {
				return w, err
			}
			start := threadTime()
			err := s.rounds(batch)
			w.spent += threadTime() - start
			if err != nil {
				return w, err
			}
			n, err := s.take()
			if err == nil && n != batch {
				err = fmt.Errorf("%d frames arrived of %d", n, batch)
			}
			if err != nil {
				return w, err
			}
			w.frames += uint64(n)
		}
		w.bytes = w.frames * uint64(payload)
		return w, ctx.Err()
	}
}

// byStream returns a run that measures the elapsed time for each frame from ring to ring, while the rings are kept
// full. It calls the function meanwhile again and again, which does the work of the plain loop's worker; a network's
// workers have their own threads.
func byStream(s side, payload int, meanwhile func() error) runFunc {
	return func(ctx context.Context, d time.Duration) (w work, err error) {
		start, last, most := time.Now(), time.Now(), s.room()
		for out := 0; ; {
			now := time.Now()
			if now.Sub(start) < d || w.frames == 0 && out == 0 {
				if n := s.room(); n >= min(burst, most) {
					if err := s.send(n); err != nil {
						return w, err
					}
					out += n
				}
			}
			if err := meanwhile(); err != nil {
				return w, err
			}
			n, err := s.take()
			if err != nil {
				return w, err
			}
			out -= n
			w.frames += uint64(n)
			switch {
			case n > 0:
				last = now
			case now.Sub(last) > limits.Bench.Here():
				return w, errStuck
			case out > 0:
				runtime.Gosched()
			}
			if out == 0 && now.Sub(start) >= d {
				w.spent = time.Since(start)
				w.bytes = w.frames * uint64(payload)
				return w, ctx.Err()
			}
		}
	}
}

// ring measures frames of size bytes from ring to ring, moved by workers that sleep, if poll is 0, or by that many
// threads that poll.
func ring(size, poll int) openFunc {
	return besidePlain(shape{ports: 2, queues: 1, frame: size, mtu: jumboMTU, poll: poll},
		func(n *network, p *plainSide, payload int) (ours, yardstick runFunc) {
			return byStream(n, payload, func() error { return nil }),
				byStream(p, payload, func() error { _, err := p.loop.round(burst); return err })
		})
}

func rounds(size int) openFunc {
	return besidePlain(shape{ports: 2, queues: 1, frame: size, mtu: jumboMTU},
		func(n *network, p *plainSide, payload int) (ours, yardstick runFunc) {
			n.endWorkers()
			return byRounds(n, n.batch, payload), byRounds(p, p.batch, payload)
		})
}

// besidePlain returns an openFunc that sets up a network and a plain loop; the function way returns the runs that
// measure them.
func besidePlain(s shape, way func(n *network, p *plainSide, payload int) (ours, yardstick runFunc)) openFunc {
	return func(_ context.Context, log *slog.Logger, r *rig) error {
		n, err := newNetwork(s, log)
		if err != nil {
			return err
		}
		r.undo.Add(n.close)
		f := newFrame(n.guests[1].port.MAC, n.guests[0].port.MAC, tcpPort, s.frame, s.mtu)
		p, err := newPlainSide(f, n.batch)
		if err != nil {
			return err
		}
		r.undo.Add(p.close)
		r.counted = n.received
		r.ours, r.yardstick = way(n, p, len(f.payload))
		return nil
	}
}

func inKiB(n int, kib, bytes string) string {
	if n >= 1<<10 && n%(1<<10) == 0 {
		return fmt.Sprint(n>>10, kib)
	}
	return fmt.Sprint(n, bytes)
}
