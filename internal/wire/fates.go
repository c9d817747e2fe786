package wire

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"vnic.dev/vnic/splitter"
)

// Impairment is what a bad link does to the segments that pass it in one direction. The zero value does
// nothing. The random fates, Loss, Burst, Reorder, Duplicate and Corrupt, depend only on Seed, the direction and the
// segment's number on the link, if the link has the Impairment from the start. A GSO packet counts as its segments. A
// segment meets at most one fate: the first that applies, in the order of the fields; but Drop also loses a segment
// that ECN would mark.
type Impairment struct {
	Seed uint64
	Loss float64 // probability that a segment is lost
	// ECN marks ECN-capable TCP segments (RFC 3168) instead of losing them by Loss or Burst. See Rate, too.
	ECN   bool
	Burst Burst // in addition to Loss
	// Drop are the numbers of the segments that each TCP connection loses once: at most MaxDrop, in order. Number k is
	// the segment with byte k*n of the connection's data in this direction, where n is the length of the longest
	// segment so far. Drop applies to connections whose SYN has passed in this direction, with the first 4,096 pairs of
	// addresses and ports.
	Drop      []uint32
	Reorder   float64 // probability that a segment is held back
	Duplicate float64 // probability that a segment comes twice
	// Corrupt is the probability that a TCP or UDP segment has one bit flipped, behind its IP header, after its
	// checksum was completed.
	Corrupt float64
	// ReorderDepth is the largest number of the link's later segments that overtake a segment that is held back, unless
	// its receiver is busy; 0 means 3. The number is random, from 1, and smaller if HoldMax passes first.
	ReorderDepth int
	// HoldMax is the longest time for which a segment is held back, unless its receiver is busy; 0 means 10 ms.
	HoldMax time.Duration
	// MaxPackets and MaxBytes bound the number of segments that Reorder holds back at a time, and the bytes of their
	// buffers. 0 means 256 and 4 MiB.
	MaxPackets int
	MaxBytes   int

	// Delay is how long the link delays packets that Reorder does not hold back, after the queue of Rate, give or take at
	// most Jitter, and longer if a packet would overtake another one or its receiver is busy.
	Delay, Jitter time.Duration
	// Rate, in bytes a second on the wire, is the rate of a queue that holds Limit bytes and drops packets that
	// do not fit behind others; 0: no queue. With ECN, the queue marks ECN-capable TCP packets while it is more than
	// half full.
	Rate  float64
	Limit int
}

// Burst is the model of Gilbert and Elliott, gemodel p r 1-h 1-k of tc-netem: a link is good or bad.
type Burst struct {
	P, R      float64 // probability that a good link turns bad, and a bad one good, at a segment
	Bad, Good float64 // probability that a bad link, and a good one, loses a segment; Bad: 0 means 1
}

// Bounds of an Impairment.
const (
	MaxDrop  = 1024
	MaxDelay = time.Hour
	MaxLimit = 1 << 30
)

// Lossy reports whether the link may lose, reorder, duplicate or change segments. A Rate counts as lossy.
func (im *Impairment) Lossy() bool {
	return im.Loss > 0 || im.Burst.P > 0 || im.Burst.Good > 0 || len(im.Drop) > 0 || im.Reorder > 0 ||
		im.Duplicate > 0 || im.Corrupt > 0 || im.Rate > 0
}

func (im *Impairment) does() bool { return im.Lossy() || im.Delay > 0 || im.Jitter > 0 }

func (im *Impairment) check() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", im.Loss}, {"reorder", im.Reorder}, {"duplicate", im.Duplicate}, {"corrupt", im.Corrupt},
		{"p of bursts", im.Burst.P}, {"r of bursts", im.Burst.R}, {"1-h of bursts", im.Burst.Bad},
		{"1-k of bursts", im.Burst.Good}} {
		if !(p.v >= 0 && p.v <= 1) {
			return fmt.Errorf("%w: %s %v: not between 0 and 1", ErrBadImpairment, p.name, p.v)
		}
	}
	switch {
	case im.ReorderDepth < 0 || im.HoldMax < 0 || im.MaxPackets < 0 || im.MaxBytes < 0:
		return fmt.Errorf("%w: negative bound", ErrBadImpairment)
	case im.Delay < 0 || im.Delay > MaxDelay || im.Jitter < 0 || im.Jitter > MaxDelay:
		return fmt.Errorf("%w: delay %v, jitter %v: not between 0 and %v", ErrBadImpairment, im.Delay, im.Jitter, MaxDelay)
	case !(im.Rate >= 0 && im.Rate <= math.MaxInt64), im.Limit < 0, im.Limit > MaxLimit, im.Rate > 0 && im.Limit == 0:
		return fmt.Errorf("%w: rate %v, limit %d: a queue of 1 to %d bytes", ErrBadImpairment, im.Rate, im.Limit, MaxLimit)
	case len(im.Drop) > MaxDrop || !slices.IsSorted(im.Drop):
		return fmt.Errorf("%w: %d segments to drop: %d at most, in order", ErrBadImpairment, len(im.Drop), MaxDrop)
	}
	return nil
}

type fate uint8

const (
	passes fate = iota
	lost
	held
	twice
	corrupt
	marked
)

type chances struct {
	Impairment
	lv    int
	seed  uint64
	loss  uint64 // probability times 1<<53, as hold, dup and flip
	hold  uint64
	dup   uint64
	flip  uint64
	depth uint64
	burst *burst
	drop  *drops

	onlyLoses bool // there is no random fate but Loss
}

// newChances compiles an impairment that begins at segment from. old is the previous impairment of the link in this
// direction, or nil. newChances takes over old's state of Burst if Burst and Seed are the same, and of Drop if Drop is
// the same.
func newChances(im Impairment, lv int, from uint64, old *chances) *chances {
	c := &chances{Impairment: im, lv: lv, seed: mix64(im.Seed + uint64(lv)), depth: uint64(im.ReorderDepth)}
	if c.depth == 0 {
		c.depth = defaultDepth
	}
	limit := func(p float64) uint64 { return uint64(p * (1 << 53)) }
	c.loss, c.hold, c.dup, c.flip = limit(im.Loss), limit(im.Reorder), limit(im.Duplicate), limit(im.Corrupt)
	if b := im.Burst; old != nil && b == old.Burst && c.seed == old.seed {
		c.burst = old.burst
	} else if b.P > 0 || b.Good > 0 {
		c.burst = newBurst(b, mix64(c.seed+1), from)
	}
	if old != nil && slices.Equal(im.Drop, old.Drop) {
		c.drop = old.drop
	} else if len(im.Drop) > 0 {
		c.drop = &drops{list: slices.Clone(im.Drop)}
	}
	c.onlyLoses = c.burst == nil && c.hold|c.dup|c.flip == 0
	return c
}

func (c *chances) draw(seq, k uint64) uint64 { return mix64(mix64(c.seed+seq*0x9e3779b97f4a7c15) + k) }

// passing returns how many of the n segments from seq on pass before the first that does not.
func (c *chances) passing(seq, n uint64) (i uint64) {
	if c.onlyLoses {
		for h := c.seed + seq*0x9e3779b97f4a7c15; i < n && mix64(h)>>11 >= c.loss; i++ {
			h += 0x9e3779b97f4a7c15
		}
		return i
	}
	for ; i < n; i++ {
		if f, _ := c.fate(seq + i); f != passes {
			break
		}
	}
	return i
}

// fate returns the random fate of segment seq, without ECN, and for a held one the segment before which it is released.
func (c *chances) fate(seq uint64) (f fate, due uint64) {
	h := mix64(c.seed + seq*0x9e3779b97f4a7c15)
	switch {
	case h>>11 < c.loss, c.burst != nil && c.burst.loses(seq):
		return lost, 0
	case c.hold|c.dup|c.flip == 0:
		return passes, 0
	}
	if h = mix64(h + 1); h>>11 < c.hold {
		return held, seq + 2 + mix64(h+1)%c.depth
	}
	switch {
	case c.draw(seq, 2)>>11 < c.dup:
		return twice, 0
	case c.draw(seq, 3)>>11 < c.flip:
		return corrupt, 0
	}
	return passes, 0
}

// fateOf returns the random fate of segment seq, a part of packet p: marked instead of lost if ECN is set and p is
// ECN-capable.
func (c *chances) fateOf(p *Packet, seq uint64) (f fate, due uint64) {
	if f, due = c.fate(seq); f == lost && c.ECN && capable(p) {
		f = marked
	}
	return f, due
}

type burst struct {
	Burst
	seed uint64
	from uint64
	ln   [2]float64 // logarithms of the probabilities to stay good, and to stay bad

	mu      sync.Mutex
	changes []uint64 // segments at which the state changed; the link was good at segment from
	first   uint64   // how many earlier changes are no longer in changes
}

const keptChanges = 256

func newBurst(b Burst, seed, from uint64) *burst {
	if b.Bad == 0 {
		b.Bad = 1
	}
	return &burst{Burst: b, seed: seed, from: from, ln: [2]float64{math.Log1p(-b.P), math.Log1p(-b.R)}}
}

// stay returns how many segments the n-th state lasts, from 0 on, by a geometric distribution. Even states are good.
func (b *burst) stay(n uint64) uint64 {
	l := b.ln[n&1]
	if l == 0 { // for ever
		return math.MaxUint64 / 2
	}
	u := (float64(mix64(b.seed+n*0x9e3779b97f4a7c15)>>11) + 1) / (1 << 53) // 0 < u <= 1
	return 1 + uint64(min(math.Log(u)/l, 1e18))
}

// bad reports whether the link is bad at a segment. It returns false for a segment before the changes that b still has.
func (b *burst) bad(seq uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.from
	if n := len(b.changes); n > 0 {
		last = b.changes[n-1]
	}
	for last <= seq {
		next := last + b.stay(b.first+uint64(len(b.changes)))
		if len(b.changes) == keptChanges {
			b.changes = append(b.changes[:0], b.changes[keptChanges/2:]...)
			b.first += keptChanges / 2
		}
		b.changes = append(b.changes, next)
		last = next
	}
	i, found := slices.BinarySearch(b.changes, seq)
	if found {
		i++
	}
	if i == 0 && b.first > 0 {
		return false
	}
	return (b.first+uint64(i))&1 == 1
}

func (b *burst) loses(seq uint64) bool {
	p := b.Good
	if b.bad(seq) {
		p = b.Bad
	}
	return float64(mix64(b.seed^mix64(seq))>>11) < p*(1<<53)
}

// maxDropFlows is how many flows (connections in one direction) a drops tracks at most.
const maxDropFlows = 4096

type drops struct {
	list []uint32

	mu    sync.Mutex
	flows map[splitter.Flow]*dropFlow
}

type dropFlow struct {
	start uint32 // sequence number of the first byte of data
	mss   uint32 // length of the longest segment so far
	next  int    // index in drops.list of the next segment to lose
}

// hits reports whether a segment of n bytes at sequence number seq has the first byte of the next segment in the list.
// mss is n, or the MSS of a GSO packet if that is larger. If the segment is a SYN, hits returns false, and begins to
// track its connection if there is room.
func (d *drops) hits(h *splitter.Headers, seq, n, mss uint32) bool {
	if h.Class != splitter.TCP {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.flows[h.Flow]
	if h.TCPFlags&splitter.SYN != 0 {
		if f == nil && len(d.flows) < maxDropFlows || f != nil && f.start != seq+1 {
			if d.flows == nil {
				d.flows = make(map[splitter.Flow]*dropFlow)
			}
			d.flows[h.Flow] = &dropFlow{start: seq + 1}
		}
		return false
	}
	if f == nil || n == 0 {
		return false
	}
	f.mss = max(f.mss, mss)
	return f.next < len(d.list) && f.first(d) >= uint64(seq-f.start) && f.first(d) < uint64(seq-f.start)+uint64(n)
}

func (f *dropFlow) first(d *drops) uint64 { return uint64(d.list[f.next]) * uint64(f.mss) }

// lost skips the entries of the list for segments that begin before the end of a lost one, of n bytes at seq.
func (d *drops) lost(h *splitter.Headers, seq, n uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.flows[h.Flow]
	for f != nil && f.next < len(d.list) && f.first(d) < uint64(seq-f.start)+uint64(n) {
		f.next++
	}
}
