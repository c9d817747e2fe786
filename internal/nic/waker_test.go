package nic

import (
	"log/slog"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

type fullPort struct{ waiters []wire.Waker }

func (*fullPort) Name() string            { return "full" }
func (*fullPort) Limits() wire.Limits     { return wire.Limits{MaxFrame: 1514} }
func (p *fullPort) Arm(w wire.Waker) bool { p.waiters = append(p.waiters, w); return true }
func (*fullPort) Disarm(wire.Waker)       {}
func (p *fullPort) Deliver(_ *wire.Worker, batch []*wire.Packet) {
	for _, pkt := range batch {
		pkt.Verdict = wire.Verdict{Kind: wire.Busy, Queue: p}
	}
}

type plainOutlet struct {
	link *wire.Link
	w    *wire.Worker
}

func (o plainOutlet) Send(batch []*wire.Packet)           { o.link.Deliver(o.w, batch) }
func (plainOutlet) Dropped(*wire.Packet, wire.DropReason) {}

// Senders of each kind wait for a receiver with the serial number of their link (PortSerial).
//
// Invariant: nic: Ports that wait for a receiver get about equal shares of its buffers.
func TestSendersWaitAsTheirPort(t *testing.T) {
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	defer sw.Close()
	full := new(fullPort)
	mac := wire.MAC{2, 0, 0, 0, 0, 9}
	parse := func(p *wire.Packet, dst, src wire.MAC) {
		b := append(append(dst[:], src[:]...), 0x88, 0xb6)
		segs := []dma.Segment{dma.NewBuffer(b, dma.Wire).Segment(0, uint32(len(b)))}
		testkit.OK(t, ParseFrame(dma.NewCopier(), segs, 0, uint32(len(b)), make([]byte, MaxHeader), p))
		p.Prepare()
	}
	hello := new(wire.Packet)
	parse(hello, wire.MAC{2}, mac)
	testkit.Must(sw.Attach(full, wire.LinkOptions{}))(t).Deliver(wire.NewWorker(), []*wire.Packet{hello})
	plain := plainOutlet{testkit.Must(sw.Attach(new(witness), wire.LinkOptions{}))(t), wire.NewWorker()}
	p := commandPort(t, Config{})
	testkit.OK(t, p.Attach(sw, wire.LinkOptions{}))
	testkit.Must(p.rdma.begin())(t)
	defer p.rdma.close()
	for name, c := range map[string]struct {
		out  Outlet
		link *wire.Link
	}{
		"transmit queue": {p.NewTransmitter(1), p.Link()},
		"RDMA":           {&p.rdma, p.Link()},
		"no NIC":         {plain, plain.link},
	} {
		t.Run(name, func(t *testing.T) {
			s := testkit.Must(NewSender(new(steadyQueue), c.out, SenderOptions{Batch: 1}))(t)
			defer s.Close()
			parse(s.batch[0], mac, wire.MAC{2, 0, 0, 0, 0, 1})
			s.held = 1
			c.out.Send(s.batch)
			testkit.Equal(t, "it may wait", s.arm(), true)
			waker, _ := full.waiters[len(full.waiters)-1].(PortWaker)
			testkit.Equal(t, "port", waker.PortSerial(), c.link.Serial())
			s.disarm()
			s.held = 0
		})
	}
}
