package kernel

import (
	"cmp"
	"slices"
	"sync"
)

// sendLog translates the kernel's numbers of sends, which count sendmsg, to numbers of SendDevmem.
type sendLog struct {
	mu    sync.Mutex // held during sendmsg: a send is recorded before its completion
	base  uint32     // the kernel's number of recs[0], or of the next sendmsg if recs is empty
	recs  []sendRec
	calls uint32     // calls of SendDevmem that have queued a byte so far
	done  []seqRange // complete calls that take has not returned, ascending, not adjacent
	open  int        // incomplete calls
}

type sendRec struct {
	call *sendCall
	done bool
}

// sendCall is a SendDevmem that queued a byte.
type sendCall struct {
	b      *binding
	number uint32
	left   int  // number of incomplete sendmsgs
	ended  bool // the call makes no more sendmsgs
}

// queued records a sendmsg of call, and returns call. For the first sendmsg of a SendDevmem call is nil, and queued
// returns a new one. The caller holds mu.
func (l *sendLog) queued(call *sendCall, b *binding) *sendCall {
	if call == nil {
		call = &sendCall{b: b, number: l.calls}
		l.calls++
		l.open++
		b.sends.Add(1)
	}
	call.left++
	l.recs = append(l.recs, sendRec{call: call})
	return call
}

// end records that a SendDevmem queues no more bytes; call may be nil.
func (l *sendLog) end(call *sendCall) {
	if call == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !call.ended { // else abandon has counted it
		call.ended = true
		l.settle(call)
	}
}

func (l *sendLog) settle(call *sendCall) {
	if !call.ended || call.left > 0 {
		return
	}
	l.open--
	call.b.sends.Add(-1)
	i, _ := slices.BinarySearchFunc(l.done, call.number, func(r seqRange, n uint32) int { return cmp.Compare(r.lo, n) })
	l.done = slices.Insert(l.done, i, seqRange{call.number, call.number})
	if i+1 < len(l.done) && l.done[i+1].lo == call.number+1 {
		l.done[i].hi = l.done[i+1].hi
		l.done = slices.Delete(l.done, i+1, i+2)
	}
	if i > 0 && l.done[i-1].hi+1 == call.number {
		l.done[i-1].hi = l.done[i].hi
		l.done = slices.Delete(l.done, i, i+1)
	}
}

// completed records sends that the kernel reports as complete. The caller holds mu.
func (l *sendLog) completed(r seqRange) {
	n := r.hi - r.lo // the number of sends less one; the subtraction may wrap around
	for i := uint32(0); ; i++ {
		if k := r.lo + i - l.base; k < uint32(len(l.recs)) && !l.recs[k].done {
			l.recs[k].done = true
			l.recs[k].call.left--
			l.settle(l.recs[k].call)
		}
		if i == n || i >= uint32(len(l.recs)) {
			break
		}
	}
	k := 0
	for k < len(l.recs) && l.recs[k].done {
		k++
	}
	l.recs = slices.Delete(l.recs, 0, k)
	l.base += uint32(k)
}

// take removes and returns the first range of complete calls; ok is false if there is none. none means that no call is
// in progress either.
func (l *sendLog) take() (r seqRange, ok, none bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.done) == 0 {
		return r, false, l.open == 0
	}
	r = l.done[0]
	l.done = slices.Delete(l.done, 0, 1)
	return r, true, false
}

func (l *sendLog) underWay() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// abandon stops counting the incomplete calls, as nobody will read their completions.
func (l *sendLog) abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.recs {
		if r.done {
			continue
		}
		r.call.ended = true
		if r.call.left--; r.call.left == 0 {
			l.open--
			r.call.b.sends.Add(-1)
		}
	}
	l.recs = nil
}
