package virtio_test

import (
	"runtime"
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/virtq"
)

// If the frontend has not asked by GET_VRING_BASE where the rings stopped, the rings continue at used.idx.
//
// Invariant: nic/virtio: Stopping a queue under traffic loses and repeats nothing; neither does a
// reconnect of the frontend.
func TestReconnectLosesAndRepeatsNothing(t *testing.T) {
	for name, ask := range map[string]bool{"GET_VRING_BASE": true, "abrupt": false} {
		t.Run(name, func(t *testing.T) {
			ro := rawOptions{pairs: 3, mtu: 9000, patience: patient}
			w := newWorldWith(t, ro)
			const frames, hangUps = 3000, 8
			w.B.Post(0, 64)
			w.A.Post(0, 64)
			_, before := w.A.Port().QueueCounters(0)
			out, in := newNumbered(w.A, w.B), newNumbered(w.B, w.A)
			for round := 1; round <= hangUps; round++ {
				for int(in.sent) < frames*round/hangUps {
					out.send()
					in.send()
					out.receive(t)
					if round%2 == 0 || in.sent-in.next > 40 { // otherwise B's frames would wait: A has posted 64 buffers
						in.receive(t)
					}
				}
				base := w.B.usedIdx
				if ask {
					bases := w.B.bases()
					base = func(i int) uint32 { return bases[i] }
				}
				w.B.hang()
				w.A.Sent(0)
				for range 5 {
					out.send()
				}
				w.A.Sent(0)
				w.B.redial(ro, base)
			}
			for in.next < in.sent {
				in.receive(t)
			}
			for w.A.flight[0] > 0 { // frames of A that wait need buffers, which receive posts again
				out.receive(t)
				k, err := w.A.rings[1].Poll(make([]virtq.Used, inFlight))
				w.A.OK(err)
				w.A.flight[0] -= k
			}
			out.receive(t)
			_, tx := w.A.Port().QueueCounters(0)
			if dropped := uint32(tx.Drops - before.Drops); in.got != in.sent || out.got+dropped != out.sent ||
				dropped < 5*hangUps {
				t.Errorf("of %d from b %d arrived; of %d to b %d, and %d were dropped", in.sent, in.got, out.sent, out.got, dropped)
			}
			w.Moves(t)
		})
	}
}

type numbered struct {
	from, to   *suiteGuest
	frame      nictest.Frame
	sent, next uint32 // numbers of the next frame to send, and of the next one expected if none is lost
	got        uint32
	bufs       []virtq.Buf // by number modulo inFlight, as mems
	mems       [][]byte
}

const inFlight = 64

func newNumbered(from, to *suiteGuest) *numbered {
	n := &numbered{from: from, to: to, frame: nictest.Make(to.mac, from.mac, nictest.Spec{Payload: 4})}
	for range inFlight {
		addr, mem := from.Alloc(16 + len(n.frame.Header))
		copy(mem[12:], n.frame.Header)
		n.bufs, n.mems = append(n.bufs, virtq.Buf{Addr: addr, Len: uint32(len(mem))}), append(n.mems, mem)
	}
	return n
}

func (n *numbered) send() {
	var used [rawRing]virtq.Used
	k, err := n.from.rings[1].Poll(used[:])
	n.from.OK(err)
	if n.from.flight[0] -= k; n.from.flight[0] == inFlight {
		runtime.Gosched()
		return
	}
	i := n.sent % inFlight
	le.PutUint32(n.mems[i][len(n.mems[i])-4:], n.sent)
	n.from.OK(n.from.rings[1].Add(n.bufs[i:i+1], nil, 0))
	n.from.publish(1)
	n.from.flight[0]++
	n.sent++
}

func (n *numbered) receive(t *testing.T) {
	t.Helper()
	var used [rawRing]virtq.Used
	k, err := n.to.rings[0].Poll(used[:])
	n.to.OK(err)
	for _, u := range used[:k] {
		mem := n.to.RAM[n.to.posted[0][u.Cookie][0].Addr:][:u.Len]
		no := le.Uint32(mem[len(mem)-4:])
		if no < n.next || no >= n.sent {
			t.Fatalf("%s got frame %d, of %d sent, after %d", n.to.Port().Name(), no, n.sent, n.next)
		}
		n.next = no + 1
		n.got++
		n.to.repost(0, u)
	}
	n.to.publish(0)
}

// Invariant: nic/virtio: Settings made by commands survive a reconnect.
func TestReconnectKeepsWhatCommandsSetUp(t *testing.T) {
	w := newWorld(t)
	nictest.SplitTo(t, w.B, 1, 2000)
	w.B.Post(1, 2)
	bases := w.B.bases()
	w.B.redial(rawOptions{pairs: 3}, func(i int) uint32 { return bases[i] })
	f := tcp(w.A, w.B, 500)
	for range 2 {
		w.A.Send(0, f)
		testkit.Equal(t, "split", nictest.Arrives(t, w.B, 1, &f).Split, true)
	}
}
