package nic

import (
	"sync/atomic"
	"time"

	"vnic.dev/vnic/wire"
)

const (
	// DefaultPatience is how long a frame waits for a receiver without buffers, unless a user says otherwise.
	DefaultPatience = 500 * time.Millisecond
	// firstGrudge is how long after that frames to the same receiver are not waited for at all, unless it gets buffers
	// before; it doubles each time, up to maxGrudge.
	firstGrudge = 2 * time.Second
	maxGrudge   = 32 * time.Second
)

// Patience decides for a transmit queue's worker how long frames wait for busy receivers: a dead guest must not stall frames
// to others again and again. The zero value, with Limit set, is ready.
type Patience struct {
	Limit   time.Duration
	grudges [4]grudge
}

// grudge is held against a receiver that was waited for in vain. It ends as soon as the receiver gets buffers.
type grudge struct {
	queue wire.Waitable // nil: none
	until time.Time     // the next frame is waited for again
	span  time.Duration
	eased atomic.Bool // the receiver got buffers
}

// Wake implements wire.Waker, on any goroutine.
func (g *grudge) Wake() { g.eased.Store(true) }

// Worth says whether a frame that waits for w since then is to wait on.
func (p *Patience) Worth(w wire.Waitable, since, now time.Time) bool {
	g := p.on(w)
	if g != nil && g.eased.Load() {
		g.end()
		g = nil
	}
	if g != nil && now.Before(g.until) {
		return false
	}
	if now.Sub(since) < p.Limit {
		return true
	}
	p.resent(g, w, now)
	return false
}

func (p *Patience) on(w wire.Waitable) *grudge {
	for i := range p.grudges {
		if g := &p.grudges[i]; g.queue == w {
			return g
		}
	}
	return nil
}

// resent begins a grudge, or one more span of g.
func (p *Patience) resent(g *grudge, w wire.Waitable, now time.Time) {
	if g != nil {
		g.span = min(2*g.span, maxGrudge)
		g.until = now.Add(g.span)
		return
	}
	g = &p.grudges[0] // a free one, else that which ends first
	for i := range p.grudges {
		if o := &p.grudges[i]; o.queue == nil || g.queue != nil && o.until.Before(g.until) {
			g = o
		}
	}
	g.end()
	g.eased.Store(false)
	if w.Arm(g) {
		g.queue, g.span, g.until = w, firstGrudge, now.Add(firstGrudge)
	}
}

func (g *grudge) end() {
	if g.queue != nil {
		g.queue.Disarm(g)
		g.queue = nil
	}
}

// Forgive ends all grudges, as the queue stops.
func (p *Patience) Forgive() {
	for i := range p.grudges {
		p.grudges[i].end()
	}
}
