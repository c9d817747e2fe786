package nic_test

import (
	"log/slog"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// books has the drops counted by the sender's transmit queue and the receiver's receive queue, and the sum of both
// links' drops by reason.
type books struct {
	tx, rx  uint64
	reasons [wire.NumDropReasons]uint64
}

func booksOf(a, b *toy) (k books) {
	_, tx := a.port.QueueCounters(0)
	rx, _ := b.port.QueueCounters(0)
	k.tx, k.rx = tx.Drops, rx.Drops
	for _, d := range []*toy{a, b} {
		for r, n := range d.port.Link().Counters().Drops {
			k.reasons[r] += n
		}
	}
	return k
}

// Invariant: nic: Each frame that a queue drops is counted in the link's drops, by reason.
func TestEachDropHasAReason(t *testing.T) {
	patience := nic.SenderOptions{Patience: time.Millisecond}
	ether := func(dst, src wire.MAC, kind uint16, n int) []byte {
		b := append(append(append([]byte{}, dst[:]...), src[:]...), byte(kind>>8), byte(kind))
		return append(b, make([]byte, n)...)
	}
	udp := func(a, b *toy) []byte { return a.frame(b.mac, 0) }
	refused := func(r nic.Result) func(a, b *toy) {
		return func(_, b *toy) {
			b.rx.Lock()
			defer b.rx.Unlock()
			b.rx.refuses = r
		}
	}
	stopped := func(a, _ *toy) { a.tx.waits(); a.tx.sender.Stop() }
	for name, c := range map[string]struct {
		reason wire.DropReason
		frame  func(a, b *toy) []byte // nil: a UDP frame from a to b
		before func(a, b *toy)
		during func(a, b *toy)
		rx     uint64 // drops that the receiver's queue is to count
		sent   bool   // the frame counts as sent at the sender's queue, not as dropped
		link   wire.LinkOptions
		waits  bool // patience is longer than the test
	}{
		"not a frame": {reason: wire.DropBadFrame, frame: func(*toy, *toy) []byte { return make([]byte, 13) }},
		"command, too long": {reason: wire.DropTooBig, frame: func(a, _ *toy) []byte {
			return ether(wire.ControlMAC, a.mac, wire.EtherTypeControl, control.MaxFrame)
		}},
		"control's MAC": {reason: wire.DropControlMAC, frame: func(a, _ *toy) []byte {
			return ether(wire.ControlMAC, a.mac, 0x0800, 100)
		}},
		"multicast source": {reason: wire.DropBadSource, frame: func(_, b *toy) []byte {
			return ether(b.mac, wire.MAC{1}, 0x1234, 100)
		}},
		"to itself": {reason: wire.DropSamePort, frame: func(a, _ *toy) []byte { return udp(a, a) }},
		"another's MAC": {reason: wire.DropMAC, frame: func(_, b *toy) []byte {
			return ether(b.mac, wire.MAC{2, 0, 0, 0, 0, 99}, 0x1234, 100)
		}, link: wire.LinkOptions{Identity: &wire.Identity{MAC: wire.MAC{2, 0, 0, 0, 0, 1}}}},
		"lost by the link": {reason: wire.DropLinkLoss, sent: true, link: wire.LinkOptions{Up: wire.Impairment{Loss: 1}}},
		// The broadcast that newToy sends fills the link's queue for hours.
		"for which the link's queue has no room": {reason: wire.DropLinkQueue,
			link: wire.LinkOptions{Up: wire.Impairment{Rate: 0.01, Limit: 1}}},
		"longer than the receiver takes": {reason: wire.DropTooBig, frame: func(a, b *toy) []byte {
			return ether(b.mac, a.mac, 0x1234, 1600)
		}},
		"no buffer": {reason: wire.DropNoBuffer},
		"no buffer, of a broadcast": {reason: wire.DropNoBuffer, frame: func(a, _ *toy) []byte {
			return ether(wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, a.mac, 0x1234, 100)
		}},
		"stopped while it waits": {reason: wire.DropNoBuffer, during: stopped, waits: true},
		"memory that goes while it waits": {reason: wire.DropFault, waits: true, during: func(a, b *toy) {
			a.tx.waits()
			testkit.OK(t, a.tx.space.Add(dma.Map{IOVA: 1 << 20, Size: 4096, FD: -1, NoAccess: true}))
			b.rx.postNew(1)
		}, before: func(a, _ *toy) { a.tx.goneAt = 0 }},
		"sender without carrier":    {reason: wire.DropStopped, before: func(a, _ *toy) { a.port.SetCarrier(false) }},
		"receiver without carrier":  {reason: wire.DropDisabled, before: func(_, b *toy) { b.port.SetCarrier(false) }},
		"queue that is not enabled": {reason: wire.DropDisabled, before: refused(nic.PutDisabled), rx: 1},
		"queue that is stopped":     {reason: wire.DropStopped, before: refused(nic.PutStopped), rx: 1},
		"buffers too small":         {reason: wire.DropTooBig, before: refused(nic.PutTooBig), rx: 1},
		"not to be split":           {reason: wire.DropUnsplit, before: refused(nic.PutUnsplit), rx: 1},
		"memory that has gone":      {reason: wire.DropFault, before: refused(nic.PutFault), rx: 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := patience
			if c.waits {
				o = patient
			}
			sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
			t.Cleanup(func() { _ = sw.Close() })
			a := newToy(t, sw, 1, o, c.link)
			b := newToy(t, sw, 2, o, wire.LinkOptions{})
			if c.before != nil {
				c.before(a, b)
			}
			frame := udp
			if c.frame != nil {
				frame = c.frame
			}
			was := booksOf(a, b)
			a.send(frame(a, b))
			a.start()
			if c.during != nil {
				c.during(a, b)
			}
			a.tx.await(1)
			a.tx.sender.Stop()
			now := booksOf(a, b)
			dropped := uint64(1)
			if c.sent {
				dropped = 0
			}
			testkit.Equal(t, "drops of the sender's queue", now.tx-was.tx, dropped)
			testkit.Equal(t, "drops of the receiver's queue", now.rx-was.rx, c.rx)
			for r := range now.reasons {
				want := uint64(0)
				if wire.DropReason(r) == c.reason {
					want = 1
				}
				testkit.Equal(t, "reason "+wire.DropReason(r).String(), now.reasons[r]-was.reasons[r], want)
			}
		})
	}
}
