package stack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
)

// keepalives is how many probes netstack sends to an idle peer within a stall limit of at least 4 ms.
const keepalives = 4

// SetStallLimit implements devmem.Conn.
func (c *Conn) SetStallLimit(d time.Duration) {
	c.stall.Store(int64(d))
	if d > 0 {
		idle := tcpip.KeepaliveIdleOption(max(d/keepalives, time.Millisecond))
		every := tcpip.KeepaliveIntervalOption(idle)
		_ = c.ep.SetSockOpt(&idle)
		_ = c.ep.SetSockOpt(&every)
		_ = c.ep.SetSockOptInt(tcpip.KeepaliveCountOption, 1<<10) // unanswered probes would take 256 limits to end c
	}
	c.ep.SocketOptions().SetKeepAlive(d > 0)
}

// since has counters of a connection at one time. Conn.wait keeps the counters of the last
// progress, or of its own start.
type since struct {
	heard       uint32
	retransmits uint64
	half        uint32 // in Conn.wait: flow.heard when about half of the stall limit had passed
}

func (c *Conn) since() since {
	var n uint64
	if st, ok := c.ep.Stats().(*tcp.Stats); ok {
		n = st.SendErrors.Retransmits.Value()
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	return since{c.f.heard, n, c.f.heard}
}

// stalled returns the error of a call that waits while the connection makes no progress. It locks configMu
// for a while.
func (c *Conn) stalled(op string, idle time.Duration, start since) error {
	now := c.since()
	x := c.facts()
	x.Op, x.Idle, x.Asked = op, idle, true
	x.Heard, x.Alive = now.heard != start.heard, now.heard != start.half
	x.Unanswered = int(now.retransmits - start.retransmits)
	return &devmem.StallError{Op: op, Idle: idle.Round(time.Millisecond), Diagnosis: diagnosis.Stall(x, c.s.facts()),
		State: c.State()}
}

// Diagnose explains why payload arrives in host memory, for devmem.Diagnose.
func (c *Conn) Diagnose() string { return c.s.facts().Steering(c.facts()) }

func (c *Conn) facts() diagnosis.Connection {
	f := c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	x := diagnosis.Connection{Local: devmembase.AddrPort(c.local), Remote: devmembase.AddrPort(c.remote),
		Received: f.ahead, Queue: f.last, Unacked: f.nxt - f.una, Sends: f.sends.len(), Window: -1}
	if f.wndKnown {
		x.Window = int64(f.wnd)
	}
	return x
}

func (s *Stack) facts() (d diagnosis.Device) {
	s.configMu.Lock()
	for _, r := range s.rules {
		d.Rules = append(d.Rules, flowOf(r))
	}
	d.Bindings = s.allBindings()
	s.configMu.Unlock()
	d.Holders = s.Holders()
	return d
}

// Holders lists the connections that hold tokens, once for each binding, for devmem.Holders.
func (s *Stack) Holders() (list []devmem.Holder) {
	s.configMu.Lock()
	pools := slices.Collect(maps.Values(s.rxBinds))
	s.configMu.Unlock()
	for _, c := range s.conns.All() {
		for _, b := range pools {
			if n := c.tokens.Held(b.pool); n > 0 {
				list = append(list, devmem.Holder{Binding: b.id, Local: devmembase.AddrPort(c.local),
					Remote: devmembase.AddrPort(c.remote), Tokens: n})
			}
		}
	}
	return list
}

func flowOf(r control.FlowRule) devmem.Flow {
	return devmem.Flow{Src: netip.AddrPortFrom(r.Src, r.SrcPort), Dst: netip.AddrPortFrom(r.Dst, r.DstPort),
		Queue: int(r.Queue)}
}

// allBindings returns the bindings that are not done, by ID. The caller holds configMu.
func (s *Stack) allBindings() (all []diagnosis.Binding) {
	for _, b := range s.rxBinds {
		p := b.pool.Stats()
		x := diagnosis.Binding{Buffer: b.buf, BindingStats: devmem.BindingStats{
			ID: b.id, Closed: b.closed, Pages: p.Pages, Free: p.Free, Posted: p.Posted, Queued: p.Queued, Held: p.Held,
		}}
		for _, l := range b.shadowQueues {
			x.Queues = append(x.Queues, l.queue)
		}
		all = append(all, x)
	}
	s.txBinds.Range(func(_, v any) bool {
		b := v.(*txBinding)
		bs := devmem.BindingStats{ID: b.id, TX: true, Closed: b.closed.Load(), Pages: b.buf.Pages(),
			Sends: int(b.refs.Load())}
		if !bs.Closed {
			bs.Sends--
		}
		all = append(all, diagnosis.Binding{Buffer: b.buf, BindingStats: bs})
		return true
	})
	slices.SortFunc(all, func(a, b diagnosis.Binding) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
