package driver

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	stateBusy = iota
	stateSpin
	stateAsleep
	states
)

// poller is the state of the polling goroutine.
//
// The goroutine polls all queues as long as one has work; it asks for no calls (interrupts) meanwhile. Then it may
// poll on for a short time, the window, before it asks for calls, checks the queues once more and sleeps. The window
// adapts to the sleeps that the device ended, like KVM's halt polling: a sleep shorter than Options.Spin doubles the
// window, from 5 us on and up to Options.Spin, a longer one halves it, down to nothing.
type poller struct {
	spin spinner

	state                 atomic.Int32
	since                 atomic.Int64         // begin of the current state, in ns after start
	spent                 [states]atomic.Int64 // ns in each state, up to since
	start                 time.Time            // set before the goroutine starts
	sleeps, wakes, rounds atomic.Uint64

	batch   batch
	cookies []uint64
}

func (p *poller) init(n *NIC) {
	p.spin.max = max(0, n.opts.Spin)
	p.start = time.Now()
	p.batch.init(n.opts.RingSize, n.opts.PagesPerChain)
	p.cookies = make([]uint64, 0, doneLen(n.opts.RingSize))
}

func (p *poller) enter(state int32) time.Duration {
	now := int64(time.Since(p.start))
	d := now - p.since.Load()
	p.spent[p.state.Load()].Add(d)
	p.state.Store(state)
	p.since.Store(now)
	return time.Duration(d)
}

func (p *poller) times() (t [states]time.Duration) {
	for i := range t {
		t[i] = time.Duration(p.spent[i].Load())
	}
	if d := int64(time.Since(p.start)) - p.since.Load(); d > 0 {
		t[p.state.Load()] += time.Duration(d)
	}
	return t
}

func (n *NIC) run() {
	defer close(n.done)
	defer n.endCalls()
	err := n.poll()
	if err == nil {
		return
	}
	n.fail(err)
	n.ctl.Fail(err)
	n.log.Error("network device stopped", "error", err)
	n.afterFailure()
}

func (n *NIC) poll() error {
	p := &n.poller
	var end time.Time
	for !n.stop.Load() {
		if err := n.fatal.Load(); err != nil {
			return *err
		}
		n.runCalls()
		worked, err := n.round()
		if err != nil {
			return err
		}
		if worked && n.t.sleeper().ears.worked() {
			n.log.Warn("the device's interrupts do not come: it is looked at every millisecond")
		}
		spinning := p.state.Load() == stateSpin
		switch {
		case worked && spinning:
			p.enter(stateBusy)
			fallthrough
		case worked:
			runtime.Gosched() // so that other goroutines can process the frames
		case !spinning && p.spin.window > 0:
			p.enter(stateSpin)
			end = time.Now().Add(p.spin.window)
		case spinning && time.Now().Before(end):
			runtime.Gosched()
		default:
			if err := n.sleep(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *NIC) round() (worked bool, err error) {
	n.poller.rounds.Add(1)
	for _, q := range n.rx {
		w, err := q.poll(&n.poller.batch)
		if err != nil {
			return worked, fmt.Errorf("receive queue %d: %w", q.index, err)
		}
		worked = worked || w
	}
	for _, q := range n.tx {
		w, err := q.poll(n.poller.cookies[:0])
		if err != nil {
			return worked, fmt.Errorf("transmit queue %d: %w", q.index, err)
		}
		worked = worked || w
	}
	if n.wakePending.Swap(false) {
		if r := n.receiver.Load(); r != nil {
			(*r).Wake()
		}
	}
	return worked, nil
}

func (n *NIC) hasWork() bool {
	return n.hasCalls.Load() || n.stop.Load() || n.wakePending.Load() || n.fatal.Load() != nil
}

// sleep arms the device's call, asks for calls on the queues, checks the queues, and sleeps if they have no work, in
// this order: what the device returns after the check causes a call, except sent frames for which nobody waits
// (txQueue.wanted).
func (n *NIC) sleep() error {
	p := &n.poller
	n.sleeping.Store(true)
	defer n.sleeping.Store(false)
	changed, err := n.t.arm()
	if err != nil {
		return fmt.Errorf("interrupts: %w", err)
	}
	if changed {
		n.configChanged()
	}
	more := false
	for _, q := range n.rx {
		more = q.enableCall() || more
	}
	for _, q := range n.tx {
		more = q.enableCall() || more
	}
	defer func() {
		for _, q := range n.rx {
			q.disableCall()
		}
		for _, q := range n.tx {
			q.disableCall()
		}
	}()
	if more || n.hasWork() {
		p.enter(stateBusy)
		return nil
	}
	p.enter(stateAsleep)
	called, err := n.t.sleeper().sleep()
	slept := p.enter(stateBusy)
	p.sleeps.Add(1)
	switch {
	case errors.Is(err, unix.ENODEV):
		return n.t.lost()
	case err != nil:
		return fmt.Errorf("waiting for the device: %w", err)
	case called:
		p.spin.slept(slept)
	default:
		p.wakes.Add(1)
	}
	return nil
}

func (n *NIC) configChanged() {
	if up := n.linkUp(); up == n.linkDown.Swap(!up) {
		n.log.Info("link changed", "up", up)
		n.wakePending.Store(true)
	}
}

// afterFailure halts the device and reports outstanding cookies (Completed) and then the failure (Wake) to the
// Receiver, if there is one. From then on it only runs functions that callers pass to NIC.do, until Close.
func (n *NIC) afterFailure() {
	n.tmu.Lock()
	if err := n.t.halt(); err != nil {
		n.log.Warn("stopping the network device", "error", err)
	}
	n.tmu.Unlock()
	r := n.receiver.Load()
	for _, q := range n.tx {
		cookies := q.close(n.Err())
		if r != nil && len(cookies) > 0 {
			(*r).Completed(q.index, cookies)
		}
	}
	if r != nil {
		(*r).Wake()
	}
	n.sleeping.Store(true)
	for !n.stop.Load() {
		n.runCalls()
		if !n.hasCalls.Load() && !n.stop.Load() {
			if _, err := n.t.sleeper().sleep(); err != nil {
				n.t.sleeper().rest()
			}
		}
	}
}

type spinner struct {
	max    time.Duration
	window time.Duration
}

const minWindow = 5 * time.Microsecond

func (s *spinner) slept(d time.Duration) {
	if d < s.max {
		s.window = min(s.max, max(minWindow, 2*s.window))
		return
	}
	if s.window /= 2; s.window < minWindow {
		s.window = 0
	}
}
