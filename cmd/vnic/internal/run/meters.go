package run

import (
	"context"
	"net/netip"
	"time"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/wire"
)

// flowCounters count the measured connection, and nothing else, on both NICs.
type flowCounters struct {
	l  *runner
	id [2]uint32
}

func (l *runner) addFlowCounters(from, to netip.AddrPort) (m *flowCounters, err error) {
	m = &flowCounters{l: l}
	if m.id[0], err = l.ends[0].port.AddFlowCounter(control.FlowCounter{Proto: 6, Local: from, Remote: to}); err != nil {
		return nil, err
	}
	if m.id[1], err = l.ends[1].port.AddFlowCounter(control.FlowCounter{Proto: 6, Local: to, Remote: from}); err != nil {
		_ = l.ends[0].port.DelFlowCounter(m.id[0])
		return nil, err
	}
	return m, nil
}

func (m *flowCounters) read() (tx, rx control.DirCounters, a, b control.FlowCounts) {
	a, _ = m.l.ends[0].port.ReadFlowCounter(m.id[0])
	b, _ = m.l.ends[1].port.ReadFlowCounter(m.id[1])
	return a.Tx, b.Rx, a, b
}

func (m *flowCounters) remove() {
	_ = m.l.ends[0].port.DelFlowCounter(m.id[0])
	_ = m.l.ends[1].port.DelFlowCounter(m.id[1])
}

// unsettled is how long a worker may take from what it has delivered to its count: it has only to get a processor.
const unsettled = 20 * time.Second

// settle waits until the sender's worker has counted what the receiver already has: it counts after it has delivered.
func (m *flowCounters) settle(ctx context.Context, n uint64) {
	for end := time.Now().Add(unsettled); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		tx, rx, _, _ := m.read()
		if payload(tx) >= n && payload(rx) >= n {
			return
		}
	}
}

func payload(d control.DirCounters) uint64 { return d.DeviceBytes + d.GPUFileBytes + d.HostBytes }

// totals are counters that are not flowCounters': of ports, as they stand now.
type totals struct{ engine, drops uint64 }

// noBuffer is how often frames found no buffer at the receiving NIC.
func (l *runner) noBuffer() uint64 { return l.ends[1].port.Link().Counters().Busy }

func (l *runner) counters() (t totals) { return countersOf(l.ends[0].port, l.ends[1].port) }

func countersOf(ports ...*nic.Port) (t totals) {
	for _, p := range ports {
		c, _ := p.PortCounters()
		t.engine += c.Engine.Gathered + c.Engine.ToGuest + c.Engine.FromGuest
		// What the wire drops for another reason than loss, the sending port counts too, unless it was taken first and held
		// back; what the port gave up on, as its receiver stayed busy, the wire has never dropped.
		link := p.Link().Counters()
		lost := link.Drops[wire.DropLinkLoss]
		var other uint64
		for _, n := range link.Drops {
			other += n
		}
		t.drops += lost + max(other-lost, c.Tx.Drops)
	}
	return t
}

// account adds what the transfer cost.
func (t *round) account(r *Run) {
	tx, rx, a, b := t.flows.read()
	t.l.links.add(t.n, a, b)
	t.samples.end(t.start.Add(t.took), payload(rx))
	now := t.l.counters()
	r.Bytes += t.n
	r.Seconds += t.took.Seconds()
	r.TX.Device += tx.DeviceBytes
	r.TX.Host += tx.HostBytes + tx.GPUFileBytes
	r.RX.Device += rx.DeviceBytes
	r.RX.Host += rx.HostBytes + rx.GPUFileBytes
	r.PayloadBytesDevice, r.PayloadBytesHost = r.RX.Device, r.RX.Host
	r.HeaderBytes += a.Tx.HeaderBytes + a.Rx.HeaderBytes
	r.RetransmittedBytes += tx.RetransBytes
	r.BouncedBytes += tx.BouncedBytes + b.Rx.BouncedBytes
	r.CopyEngineBytes += now.engine - t.before.engine + tx.BouncedBytes + b.Rx.BouncedBytes
	r.DroppedPackets += now.drops - t.before.drops
	r.LinearBytes += t.got.Linear
	r.Fragments += t.got.Frags
	if t.recv.Hold > 0 {
		if r.Hold == nil {
			r.Hold = &Hold{}
		}
		r.Hold.Tokens, r.Hold.Stalls = max(r.Hold.Tokens, t.got.Held), r.Hold.Stalls+t.got.Stalls
	}
	if t.got.Late > 0 {
		if r.LateTokens == nil {
			r.LateTokens = &LateTokens{}
		}
		r.LateTokens.Tokens = max(r.LateTokens.Tokens, t.got.Late)
		r.LateTokens.NoBuffer += t.l.noBuffer() - t.noBuffer
	}
	if r.GuestCPU != nil {
		c := t.sent.CPU.Add(t.got.CPU)
		r.GuestCPU.User += max(0, c.User-c.Spin)
		r.GuestCPU.System += c.System
		r.GuestCPU.IRQ += c.IRQ
		*r.GuestCPUSeconds += c.Work()
	}
}
