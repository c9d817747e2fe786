package nic

import (
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// steadyQueue is a transmit queue and its outlet. It has as many frames as its Sender takes, each with size bytes of
// payload.
type steadyQueue struct {
	s      *Sender
	size   uint32 // 0: no frames
	busy   bool   // no receiver takes them
	rounds int    // number of rounds with new or held frames
	bytes  int
}

func (q *steadyQueue) Gather(free []*TxFrame) (filled, taken int, err error) {
	if q.size == 0 {
		return 0, 0, nil
	}
	for _, f := range free {
		f.Packet.PayloadLen = q.size
	}
	return len(free), len(free), nil
}

func (q *steadyQueue) Send(batch []*wire.Packet) {
	q.rounds++
	for _, p := range batch {
		if p.Verdict = (wire.Verdict{Kind: wire.Taken}); q.busy {
			p.Verdict = wire.Verdict{Kind: wire.Busy, Queue: simReceiver}
		} else {
			q.bytes += int(p.PayloadLen)
		}
	}
}

func (q *steadyQueue) Reload(*TxFrame, bool) (bool, error)   { return true, nil }
func (q *steadyQueue) Done([]*TxFrame) error                 { return nil }
func (q *steadyQueue) Abandon(*TxFrame) bool                 { return true }
func (q *steadyQueue) Publish() bool                         { return false }
func (q *steadyQueue) Call()                                 {}
func (q *steadyQueue) Pending() bool                         { return q.size > 0 }
func (q *steadyQueue) Backlog() (int, bool)                  { return 0, false }
func (q *steadyQueue) EnableKick() bool                      { return q.size > 0 }
func (q *steadyQueue) DisableKick()                          {}
func (q *steadyQueue) Idle([]*TxFrame)                       {}
func (q *steadyQueue) Stopped(error)                         {}
func (q *steadyQueue) Dropped(*wire.Packet, wire.DropReason) {}
func (q *steadyQueue) starts(t *testing.T, p *Port, kick int) *Sender {
	o := SenderOptions{Batch: 32, Pollers: &Pollers{threads: []*poller{new(poller)}}}
	q.s = testkit.Must(NewSender(q, q, o))(t)
	q.s.port = p
	q.s.Start(kick, kick >= 0)
	t.Cleanup(func() { q.s.sleep.Close() })
	return q.s
}

// steadyPort makes a port whose queues, copies of like, belong to a poller without a running thread. It returns the
// queues.
func steadyPort(t *testing.T, on *poller, queues int, like steadyQueue) (qs []*steadyQueue) {
	p := new(Port)
	for range queues {
		q := new(steadyQueue)
		*q = like
		on.added = append(on.added, q.starts(t, p, -1))
		qs = append(qs, q)
	}
	on.take()
	return qs
}

func sums(qs []*steadyQueue) (rounds, bytes int) {
	for _, q := range qs {
		rounds += q.rounds
		bytes += q.bytes
	}
	return rounds, bytes
}

// Each port gets equally many turns, whatever its number of queues, unless it moves long frames.
//
// Invariant: nic: A poller serves its ports in turn; a port that moves long frames skips turns.
func TestPortsTakeTurnsAtAPoller(t *testing.T) {
	const turns, small = 1600, 64
	for _, c := range []struct {
		name  string
		other steadyQueue
	}{
		{"small", steadyQueue{size: small}},
		{"super-packets", steadyQueue{size: 60_000}},
		{"held", steadyQueue{size: small, busy: true}},
		{"idle", steadyQueue{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			on := new(poller)
			many := steadyPort(t, on, 16, c.other)
			one := steadyPort(t, on, 1, steadyQueue{size: small})
			for range turns {
				testkit.Equal(t, "it is busy", on.turn(), true)
			}
			testkit.Equal(t, "rounds of the port with one queue", one[0].rounds, turns)
			rounds, bytes := sums(many)
			if rounds > turns || c.other.size > 0 && c.other.size < turnBytes/32 && rounds < turns {
				t.Errorf("%d rounds of the port with 16", rounds)
			}
			if most := turns*turnBytes + 16*32*60_000; bytes > most || c.other.size > small && bytes < most/2 {
				t.Errorf("%d bytes of the port with 16 queues in %d turns", bytes, turns)
			}
			for i, q := range many {
				if q.rounds < rounds/32 || q.rounds > rounds/8 {
					t.Errorf("%d rounds of queue %d, of %d", q.rounds, i, rounds)
				}
			}
		})
	}
}

// If no other port has frames, a port misses one turn after each batch of twice turnBytes or more.
func TestPortAloneAtAPoller(t *testing.T) {
	on := new(poller)
	long := steadyPort(t, on, 2, steadyQueue{size: 60_000})
	long[0].size = 0
	idle := steadyPort(t, on, 16, steadyQueue{})
	for range 100 {
		on.turn()
	}
	if long[1].rounds < 49 {
		t.Errorf("%d rounds of 100", long[1].rounds)
	}
	long[1].size = 0
	on.turn()
	testkit.Equal(t, "it is busy", on.turn(), false)
	for _, q := range append(long, idle...) {
		q.s.stopping.Store(true)
		on.turn()
		on.turn()
	}
	testkit.Equal(t, "queues left", len(on.senders)+len(on.ports), 0)
}

// A poller notices the first kick of each of a port's rings.
func TestFirstKicksAtAPoller(t *testing.T) {
	on := new(poller)
	p := new(Port)
	var qs []*steadyQueue
	for range 16 {
		fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
		t.Cleanup(func() { _ = unix.Close(fd) })
		q := &steadyQueue{size: 64}
		on.added = append(on.added, q.starts(t, p, fd))
		qs = append(qs, q)
	}
	on.take()
	on.turn()
	for _, q := range qs {
		testkit.Must(unix.Write(q.s.kick, signal[:]))(t)
	}
	for range firstKicks * len(qs) {
		on.turn()
	}
	for i, q := range qs {
		if q.rounds == 0 {
			t.Errorf("the kick of ring %d was not seen", i)
		}
	}
}
