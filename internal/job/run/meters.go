package run

import (
	"cmp"
	"context"
	"net/netip"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/wire"
)

// flowCounters count the payload of the measured connection on the NICs of the ends on this host.
type flowCounters struct {
	ends [2]*end // nil: on another host, or no counter yet
	id   [2]uint32
}

func (s *stream) addFlowCounters(from, to netip.AddrPort) (m *flowCounters, err error) {
	m = &flowCounters{}
	for i, e := range s.ends {
		if e.away() {
			continue
		}
		c := control.FlowCounter{Proto: 6, Local: from, Remote: to}
		if i == 1 {
			c.Local, c.Remote = to, from
		}
		if m.id[i], err = e.nic().AddFlowCounter(c); err != nil {
			m.remove()
			return nil, err
		}
		m.ends[i] = e
	}
	return m, nil
}

func (m *flowCounters) read() (c [2]control.FlowCounts) {
	for i, e := range m.ends {
		if e != nil {
			c[i], _ = e.nic().ReadFlowCounter(m.id[i])
		}
	}
	return c
}

// moved returns what the receiver's NIC has received or, if that is on another host, what the sender's NIC has sent.
func (m *flowCounters) moved() control.DirCounters {
	c := m.read()
	if m.ends[1] == nil {
		return c[0].Tx
	}
	return c[1].Rx
}

func (m *flowCounters) remove() {
	for i, e := range m.ends {
		if e != nil {
			_ = e.nic().DelFlowCounter(m.id[i])
		}
	}
}

// settle waits until the NICs on this host have counted n bytes of payload, or ctx ends, or limits.Counted has passed:
// a NIC counts a packet after it has delivered it.
func (m *flowCounters) settle(ctx context.Context, n uint64) {
	session.Settle(ctx, func() bool {
		c := m.read()
		return (m.ends[0] == nil || session.Payload(c[0].Tx) >= n) && (m.ends[1] == nil || session.Payload(c[1].Rx) >= n)
	})
}

// totals are counters of whole ports: bytes that the copy engines copied (without bounces), and dropped packets.
type totals struct{ engine, drops uint64 }

// noBuffer returns how often a frame met the receiving NIC without a buffer, repeated tries included; 0 if the NIC is
// on another host.
func (s *stream) noBuffer() uint64 {
	if s.ends[1].away() {
		return 0
	}
	return s.ends[1].nic().Link().Counters().Busy
}

func (s *stream) counters() (t totals) {
	var ports []*nic.Port
	for _, e := range s.here() {
		ports = append(ports, e.nic())
	}
	return countersOf(ports...)
}

func countersOf(ports ...*nic.Port) (t totals) {
	for _, p := range ports {
		c, _ := p.PortCounters()
		t.engine += c.Engine.Gathered + c.Engine.ToGuest + c.Engine.FromGuest
		// The port's link and the port itself both count most of its packets that are dropped for another reason than
		// link loss: the larger count is close to their number. One that the receiver's link drops counts there once more.
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

func (t *round) account(r *Run) {
	c := t.flows.read()
	tx, rx := c[0].Tx, c[1].Rx
	t.s.links.add(t.n, c)
	t.samples.end(t.start.Add(t.took), session.Payload(t.flows.moved()))
	now := t.s.counters()
	r.Bytes += t.n
	r.Seconds += t.took.Seconds()
	r.TX.Device += tx.DeviceBytes
	r.TX.Host += tx.HostBytes + tx.GPUFileBytes
	r.RX.Device += rx.DeviceBytes
	r.RX.Host += rx.HostBytes + rx.GPUFileBytes
	r.PayloadBytesDevice, r.PayloadBytesHost = r.RX.Device, r.RX.Host
	seen := c[0]
	if t.s.ends[0].away() {
		seen = c[1]
	}
	r.HeaderBytes += seen.Tx.HeaderBytes + seen.Rx.HeaderBytes
	r.RetransmittedBytes += tx.RetransBytes
	r.BouncedBytes += tx.BouncedBytes + rx.BouncedBytes
	r.CopyEngineBytes += now.engine - t.before.engine + tx.BouncedBytes + rx.BouncedBytes
	r.DroppedPackets += now.drops - t.before.drops
	r.LinearBytes += t.got.Linear
	r.Fragments += t.got.Frags
	if t.recv.Hold > 0 {
		r.Hold = cmp.Or(r.Hold, &Hold{})
		r.Hold.Tokens, r.Hold.Stalls = max(r.Hold.Tokens, t.got.Held), r.Hold.Stalls+t.got.Stalls
	}
	if t.got.Late > 0 {
		r.LateTokens = cmp.Or(r.LateTokens, &LateTokens{})
		r.LateTokens.Tokens = max(r.LateTokens.Tokens, t.got.Late)
		r.LateTokens.NoBuffer += t.s.noBuffer() - t.noBuffer
	}
	if r.GuestCPU != nil {
		c := t.sent.CPU.Add(t.got.CPU)
		r.GuestCPU.User += max(0, c.User-c.Spin)
		r.GuestCPU.System += c.System
		r.GuestCPU.IRQ += c.IRQ
		*r.GuestCPUSeconds += c.Work()
	}
}
