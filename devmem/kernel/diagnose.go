package kernel

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
)

// keepalives is how many intervals of TCP keepalive probes, at least, fit into a stall limit of 4 s or more.
const keepalives = 4

// SetStallLimit implements devmem.Conn. While the connection is idle, the kernel probes the peer if d is two
// seconds or more.
func (c *Conn) SetStallLimit(d time.Duration) {
	c.stall.Store(int64(d))
	_ = c.s.on(func(fd int) error {
		if !probes(d) {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
		}
		every := min(max(int(d/time.Second)/keepalives, 1), 32767) // MAX_TCP_KEEPIDLE, net/tcp.h
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, every)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, every)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 127) // a waiting call stalls before so many probes
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	})
}

func probes(limit time.Duration) bool { return limit >= 2*time.Second }

// stalled returns the error of a stalled call. It locks d.mu.
func (c *Conn) stalled(op string, idle time.Duration) error {
	x := c.facts()
	x.Op, x.Idle = op, idle
	if info, ok := c.info(); ok {
		last := min(info.Last_ack_recv, info.Last_data_recv) // ms
		ago := time.Duration(last) * time.Millisecond
		x.Heard, x.Alive = ago < idle, ago < idle/2
		x.Asked = probes(time.Duration(c.stall.Load()))
		x.Unanswered = int(max(info.Retransmits, info.Backoff, info.Probes))
	}
	return &devmem.StallError{Op: op, Idle: idle.Round(time.Millisecond), Diagnosis: diagnosis.Stall(x, c.d.facts()),
		State: c.State()}
}

// Diagnose explains why payload arrives in host memory, for devmem.Diagnose.
func (c *Conn) Diagnose() string { return c.d.facts().Steering(c.facts()) }

func (c *Conn) facts() diagnosis.Connection {
	x := diagnosis.Connection{Local: devmembase.AddrPort(c.local), Remote: devmembase.AddrPort(c.remote), Queue: c.queue(),
		Sends: c.sends.underWay(), Window: -1}
	if info, ok := c.info(); ok {
		x.Received = info.Bytes_received
		x.Window = int64(info.Snd_wnd)
	}
	_ = c.s.on(func(fd int) error {
		queued, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ) // bytes that are not acknowledged, or not yet sent
		x.Unacked = uint64(max(queued, 0))
		return err
	})
	return x
}

// queue returns the receive queue by which the connection's last packet came, found by its NAPI instance; -1 if
// unknown. It locks d.mu.
func (c *Conn) queue() int {
	napi := 0
	err := c.s.on(func(fd int) (err error) {
		napi, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_INCOMING_NAPI_ID)
		return err
	})
	if err != nil || napi == 0 {
		return -1
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	queue := -1
	if !c.d.closing {
		err = c.d.netdev.eachQueue(c.d.index, func(id int, _, by uint32) {
			if by == uint32(napi) {
				queue = id
			}
		})
	}
	if err != nil {
		return -1
	}
	return queue
}

func (d *Device) facts() (f diagnosis.Device) {
	d.mu.Lock()
	f.Rules = slices.Collect(maps.Values(d.flows))
	f.Bindings = d.allBindings()
	d.mu.Unlock()
	f.Holders = d.Holders()
	return f
}

// Holders lists the open connections that hold tokens, once for each binding, for devmem.Holders.
func (d *Device) Holders() (list []devmem.Holder) {
	for _, c := range d.conns.All() {
		for id, n := range c.tokens.count() {
			list = append(list, devmem.Holder{Binding: id, Local: devmembase.AddrPort(c.local),
				Remote: devmembase.AddrPort(c.remote), Tokens: n})
		}
	}
	return list
}

// allBindings returns the bindings that are not done. The caller holds mu.
func (d *Device) allBindings() (all []diagnosis.Binding) {
	var pages map[uint32]uint64
	if !d.closing {
		pages, _ = d.netdev.inflight(d.index)
	}
	for b := range d.bindings() {
		s := devmem.BindingStats{ID: b.id, TX: b.tx, Closed: b.closed.Load(), Pages: b.buf.Pages()}
		if b.tx {
			s.Sends = int(b.sends.Load())
		} else {
			out := min(int(pages[b.id]), s.Pages)
			s.Free = s.Pages - out
			s.Held = min(int(b.held.Load()), out)
			s.Posted = out - s.Held
		}
		all = append(all, diagnosis.Binding{BindingStats: s, Buffer: b.buf, Queues: b.queues})
	}
	slices.SortFunc(all, func(a, b diagnosis.Binding) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// count returns how many of the recorded tokens the user holds, by the binding's id; 0 stands for bindings of other
// programs.
func (t *tokens) count() map[uint32]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := map[uint32]int{}
	for _, b := range t.held {
		if b != nil {
			n[b.id]++
		}
	}
	return n
}
