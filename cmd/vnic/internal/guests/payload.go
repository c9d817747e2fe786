package guests

import (
	"context"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
)

// Place is payload by the kind of memory that a NIC read it from or wrote it to, in bytes.
type Place struct {
	Device  uint64 `json:"device"`  // in buffers of a GPU that are registered
	Host    uint64 `json:"host"`    // everything else
	Bounced uint64 `json:"bounced"` // of Host: through a bounce buffer, as the NIC does not reach the GPU
}

// Add adds what was counted since before.
func (p *Place) Add(now, before control.DirCounters) {
	p.Device += now.DeviceBytes - before.DeviceBytes
	p.Host += now.HostBytes + now.GPUFileBytes - before.HostBytes - before.GPUFileBytes
	p.Bounced += now.BouncedBytes - before.BouncedBytes
}

// Merge adds another's.
func (p *Place) Merge(x Place) {
	p.Device, p.Host, p.Bounced = p.Device+x.Device, p.Host+x.Host, p.Bounced+x.Bounced
}

// Where is the Place of a connection's payload, retransmissions included, and how much of it these are.
type Where struct {
	Place
	Retransmitted uint64 `json:"retransmitted"` // of Device and Host
}

// Add adds what was counted since before.
func (w *Where) Add(now, before control.DirCounters) {
	w.Place.Add(now, before)
	w.Retransmitted += now.RetransBytes - before.RetransBytes
}

// Payload is all payload that was counted, of any kind of memory.
func Payload(d control.DirCounters) uint64 { return d.DeviceBytes + d.GPUFileBytes + d.HostBytes }

// Settle waits until done reports that workers have counted all that they delivered: they count after delivery.
func Settle(ctx context.Context, done func() bool) {
	for end := time.Now().Add(limits.Counted.Here()); !done() && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
}

// Traffic is what a guest's NIC sends and receives while something goes on, what it sends again included.
type Traffic struct {
	TX Place `json:"tx"`
	RX Place `json:"rx"`
}

// Meter counts the payload of all connections of a guest's NIC while f runs, which says how many bytes at the least it
// has sent and received.
func (n *Node) Meter(ctx context.Context, f func() (sent, received uint64, err error)) (t Traffic, err error) {
	before, _ := n.Port.NIC().PortCounters()
	sent, received, err := f()
	if err != nil {
		return t, err
	}
	var now control.PortCounters
	Settle(ctx, func() bool {
		now, _ = n.Port.NIC().PortCounters()
		return Payload(now.Tx)-Payload(before.Tx) >= sent && Payload(now.Rx)-Payload(before.Rx) >= received
	})
	t.TX.Add(now.Tx, before.Tx)
	t.RX.Add(now.Rx, before.Rx)
	return t, nil
}
