package wire

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

type watcher struct {
	mu    sync.Mutex
	link  *Link
	marks uint64
	log   []string
	lost  int // lost segments, from Sent
	held  int // held segments, from Sent
	bytes int // bytes of payload that the link did not lose, from Received
	none  int // lost segments, from Received
}

func watch(l *Link) *watcher {
	w := &watcher{link: l}
	l.SetTap(w)
	return w
}

func (t *watcher) Sending(p *Packet) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.marks++
	t.log = append(t.log, fmt.Sprintf("sending %d", t.marks))
	return t.marks
}

func (t *watcher) Sent(_ *Worker, p *Packet, mark uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log = append(t.log, fmt.Sprintf("sent %d: %v %v", mark, p.Verdict.Kind, p.Verdict.Reason))
	if p.Verdict.Kind != Busy {
		t.held += p.Held()
	}
	for from := uint32(0); p.Verdict.Kind != Busy; {
		first, n := t.link.Lost(p, from)
		if n == 0 {
			break
		}
		t.lost += int(n)
		from = first + n
	}
}

func (t *watcher) Received(_ *Worker, p *Packet, place Placement) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log = append(t.log, fmt.Sprintf("received %d: %v %v", p.Len(), p.Verdict.Kind, p.Verdict.Reason))
	if p.Verdict == Drop(DropLinkLoss) {
		t.none += int(p.Segments())
		return
	}
	t.bytes += int(p.PayloadLen)
}

func (t *watcher) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	log := t.log
	t.log = nil
	return log
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

// Invariant: wire: A tap sees each attempt to send a packet, and each piece that arrives, once,
// with the segments that the link lost and, if the port reports it, the place of its payload.
func TestTapIsToldOfEachPacketOnce(t *testing.T) {
	a, b := pair(t)
	up, down := watch(a.link), watch(b.link)
	p, q := a.packet(b.mac, spec{n: 300, mss: 100}), a.packet(b.mac, spec{n: 10})
	b.post(2)
	a.send(p, q)
	expect(t, up.take(), "sending 1", "sending 2", "sent 1: busy none", "sent 2: busy none")
	expect(t, down.take(), "received 154: taken none", "received 154: taken none")
	b.post(-1)
	a.send(p, q)
	expect(t, up.take(), "sending 3", "sending 4", "sent 3: taken none", "sent 4: taken none")
	expect(t, down.take(), "received 154: taken none", "received 64: taken none")

	b.post(0)
	a.send(a.arp(broadcast))
	expect(t, down.take(), "received 42: dropped no-buffer")
	b.post(-1)
	up.take()

	a.link.GaveUp(a.w, p, DropNoBuffer)
	expect(t, up.take(), "sending 6", "sent 6: dropped no-buffer")
	if p.Verdict.Kind != Taken || p.Payload == nil {
		t.Errorf("the packet itself is another: %+v", p)
	}
	a.link.SetTap(nil)
	b.link.SetTap(nil)
	a.send(a.packet(b.mac, spec{n: 10}))
	a.link.GaveUp(a.w, p, DropNoBuffer)
	if n := len(up.take()) + len(down.take()); n != 0 || a.link.Tap() != nil {
		t.Errorf("%d calls after it was taken away", n)
	}
}

// Invariant: wire: A tap sees each attempt to send a packet, and each piece that arrives, once,
// with the segments that the link lost and, if the port reports it, the place of its payload.
func TestTapIsToldWhatTheLinkLost(t *testing.T) {
	bad := Impairment{Seed: 11, Loss: 0.2, Reorder: 0.1, HoldMax: time.Hour}
	for name, sizes := range shapes() {
		for _, lim := range []Limits{{}, superLimits} {
			a, b := badPair(t, newSwitch(t), bad, bad)
			b.setLimits(lim)
			up, down := watch(a.link), watch(b.link)
			off := 0
			for _, n := range sizes {
				sp := spec{off: off * 100, n: n * 100, seq: uint32(off * 100), csum: splitter.CsumGood}
				if n > 1 {
					sp.mss = 100
				}
				a.sendAll(a.packet(b.mac, sp))
				off += n
			}
			got := 0
			for _, r := range b.take() {
				h, p := verify(t, &r)
				_, got = h, got+len(p)
			}
			n, m := a.link.Counters(), b.link.Counters()
			if up.lost == 0 || up.lost != int(n.Drops[DropLinkLoss]) {
				t.Errorf("%s: told of %d segments lost going up, counted %d", name, up.lost, n.Drops[DropLinkLoss])
			}
			if up.held == 0 || up.held != int(n.Held) {
				t.Errorf("%s: told of %d segments held back going up, counted %d", name, up.held, n.Held)
			}
			if down.none == 0 || down.none != int(m.Drops[DropLinkLoss]) || down.bytes != got {
				t.Errorf("%s: told of %d segments lost going down, counted %d; of %d bytes, %d came", name, down.none,
					m.Drops[DropLinkLoss], down.bytes, got)
			}
		}
	}
}

type placer struct{ *host }

func (placer) ReportsPlacement() {}

func TestPlacerTellsTheTapItself(t *testing.T) {
	s := newSwitch(t)
	a, b := newHost(t, s, 1, LinkOptions{}), newHost(t, s, 2, LinkOptions{})
	l := testkit.Must(s.Attach(placer{b}, LinkOptions{}))(t)
	to := MAC{2, 0, 0, 0, 0, 9}
	s.table.learn(to.key(), l.id)
	w := watch(l)
	a.send(a.packet(to, spec{n: 10}))
	if len(b.take()) != 1 || len(w.take()) != 0 {
		t.Error("the link told of what only the port can know")
	}
}
