package nvmetcp

import (
	"bytes"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/internal/testkit"
)

type attempts struct {
	mu   sync.Mutex
	n    map[uint64]int
	seen map[*command]bool
}

// count counts c, and returns how many commands for c's LBA it has counted; if it has counted c before, it returns 0.
func (a *attempts) count(c *command) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen[c] {
		return 0
	}
	if a.n == nil {
		a.n, a.seen = make(map[uint64]int), make(map[*command]bool)
	}
	a.seen[c] = true
	a.n[c.lba]++
	return a.n[c.lba]
}

func (a *attempts) sent(o block.Op) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[o.Off/testBlock]
}

// Commands refused without Do Not Retry are sent again, maxRetries times at most.
func TestCommandsAreSentAgain(t *testing.T) {
	const off, size = 8 * 512, 256 << 10 // more than a capsule holds
	for _, st := range []status{0x0021, 0x0022, 0x0082, 0x0006, 0x0303} {
		for _, failures := range []int{1, maxRetries, maxRetries + 1} {
			t.Run(fmt.Sprintf("status %#04x, %d times", st, failures), func(t *testing.T) {
				var a attempts
				r := newRig(t, script{piece: 64 << 10, r2t: 100 << 10, answer: func(q *ioServer, c *command) bool {
					if n := a.count(c); n == 0 || n > failures {
						return false
					}
					if !c.write {
						c2h(q.c, 0, c.cid, 0, bytes.Repeat([]byte{0xee}, 64<<10), 0)
					}
					respond(q.c, c.cid, st, 0)
					return true
				}})
				d := r.open(t)
				out := bytes.Repeat([]byte("retry"), size)[:size+4096]
				copy(r.data()[1<<20:], out[:size])
				copy(r.data()[2<<20:], out[size:])
				ops := []block.Op{{Off: off, Len: size}, {Off: 1 << 20, Len: size, Mem: 1 << 20, Write: true},
					{Off: 2 << 20, Len: 4096, Mem: 2 << 20, Write: true}}
				errs := r.each(d, ops)
				for i, op := range ops {
					want := min(failures, maxRetries) + 1
					testkit.Equal(t, "commands of a "+op.String(), a.sent(op), want)
					if failures > maxRetries {
						testkit.ErrorIs(t, errs[i], st.in(statuses).errno)
						continue
					}
					testkit.NoError(t, errs[i])
				}
				if failures > maxRetries {
					testkit.Equal(t, "bytes read", d.Stats().Read, 0)
					return
				}
				testkit.Equal(t, "bytes read", d.Stats().Read, size)
				testkit.Equal(t, "bytes written", d.Stats().Written, size+4096)
				if !bytes.Equal(r.data()[:size], original[off:][:size]) {
					t.Error("the read has other bytes")
				}
				r.target.mu.Lock()
				defer r.target.mu.Unlock()
				if store := r.target.store; !bytes.Equal(store[1<<20:][:size], out[:size]) ||
					!bytes.Equal(store[2<<20:][:4096], out[size:]) {
					t.Error("the writes have other bytes")
				}
			})
		}
	}
}

func TestDoNotRetry(t *testing.T) {
	var a attempts
	r := newRig(t, script{fail: func(c *command) status {
		a.count(c)
		return 0x0082 | statusDNR
	}})
	d := r.open(t)
	op := block.Op{Len: 4096}
	testkit.ErrorIs(t, r.each(d, []block.Op{op})[0], syscall.EAGAIN)
	testkit.Equal(t, "commands", a.sent(op), 1)
}

// Data and a response with the identifier that a command had before it was sent again break the protocol.
func TestAnswerToTheFormerCommand(t *testing.T) {
	var a attempts
	var former uint16
	r := newRig(t, script{answer: func(q *ioServer, c *command) bool {
		switch a.count(c) {
		case 1:
			former = c.cid
			respond(q.c, c.cid, 0x0082, 0)
		case 2:
			c2h(q.c, flagLast, former, 0, original[:4096], 0)
			respond(q.c, former, 0, 0)
		}
		return true
	}})
	d := r.open(t)
	testkit.ErrorIs(t, r.each(d, []block.Op{{Len: 4096}})[0], block.ErrProtocol)
}

// A write refused without Do Not Retry, right after the R2T for its data, is sent again, and succeeds.
func TestWriteIsSentAgainBehindItsData(t *testing.T) {
	const size = 2 << 20
	var a attempts
	var refused *command
	r := newRig(t, script{answer: func(q *ioServer, c *command) bool {
		switch a.count(c) {
		case 0: // called again for c: its requested data has arrived
			return refused == c
		case 1:
			refused = c
		default:
			return false
		}
		q.ask(c)
		respond(q.c, c.cid, 0x0006, 0)
		return true
	}})
	d := r.open(t)
	out := bytes.Repeat([]byte("retry"), size)[:size]
	copy(r.data(), out)
	testkit.OK(t, r.each(d, []block.Op{{Len: size, Write: true}})[0])
	r.target.mu.Lock()
	defer r.target.mu.Unlock()
	if !bytes.Equal(r.target.store[:size], out) {
		t.Error("the write has other bytes")
	}
}
