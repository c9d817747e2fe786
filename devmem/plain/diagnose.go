package plain

import (
	"maps"
	"slices"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/diagnosis"
)

func (c *conn) stalled(op string, idle time.Duration) error {
	x := c.facts()
	x.Op, x.Idle = op, idle
	if op == "read completion" {
		x.Op = "completion"
	}
	if i, ok := c.info(); ok {
		x.Window = int64(i.Snd_wnd)
		x.Heard = time.Duration(min(i.Last_ack_recv, i.Last_data_recv))*time.Millisecond < idle
		x.Unanswered = int(max(i.Retransmits, i.Backoff, i.Probes))
	}
	return &devmem.StallError{Op: op, Idle: idle, Diagnosis: diagnosis.Stall(x, c.d.facts()), State: c.State()}
}

// Diagnose does the work of devmem.Diagnose, which calls it.
func (c *conn) Diagnose() string { return c.d.facts().Steering(c.facts()) }

func (c *conn) facts() diagnosis.Connection {
	x := diagnosis.Connection{Local: c.dst, Remote: c.src, Window: -1, Unacked: uint64(max(c.unacknowledged(), 0))}
	if i, ok := c.info(); ok {
		x.Received = i.Bytes_received
	}
	c.d.mu.Lock()
	x.Queue = c.d.queueOf(c.src, c.dst)
	c.d.mu.Unlock()
	c.sends.mu.Lock()
	defer c.sends.mu.Unlock()
	x.Sends = len(c.sends.ends)
	return x
}

func (d *Device) facts() (f diagnosis.Device) {
	d.mu.Lock()
	f.Rules = slices.Collect(maps.Values(d.rules))
	f.Bindings = d.allBindings()
	d.mu.Unlock()
	for _, end := range d.ends.All() {
		c, ok := end.(*conn)
		if !ok {
			continue
		}
		n := map[uint32]int{}
		c.mu.Lock()
		for _, t := range c.tokens {
			if t.b != nil {
				n[t.b.id]++
			}
		}
		c.mu.Unlock()
		for id, k := range n {
			f.Holders = append(f.Holders, diagnosis.Holder{Binding: id, Local: c.dst, Remote: c.src, Tokens: k})
		}
	}
	return f
}

// allBindings returns the bindings that are not done, by ID. The caller holds d.mu.
func (d *Device) allBindings() (all []diagnosis.Binding) {
	for _, id := range slices.Sorted(maps.Keys(d.bindings)) {
		all = append(all, d.bindings[id].facts())
	}
	return all
}
