package session

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/transfer"
)

// Place is payload by the kind of memory that a NIC read it from or wrote it to, in bytes.
type Place struct {
	Device  uint64 `json:"device"`  // in registered buffers of a GPU
	Host    uint64 `json:"host"`    // in all other memory, also of a GPU
	Bounced uint64 `json:"bounced"` // part of Host: copied through host memory, as the NIC does not reach the GPU
}

// Add adds to p the payload that a NIC counted in one direction between two readings of its counters.
func (p *Place) Add(now, before control.DirCounters) {
	p.Device += now.DeviceBytes - before.DeviceBytes
	p.Host += now.HostBytes + now.GPUFileBytes - before.HostBytes - before.GPUFileBytes
	p.Bounced += now.BouncedBytes - before.BouncedBytes
}

// Where is the Place of the payload of connections, and how much of this payload was sent again.
type Where struct {
	Place
	Retransmitted uint64 `json:"retransmitted"` // payload of retransmissions; included in Device and Host
}

// Add adds to w what flow counters of a NIC counted in one direction between two readings.
func (w *Where) Add(now, before control.DirCounters) {
	w.Place.Add(now, before)
	w.Retransmitted += now.RetransBytes - before.RetransBytes
}

// Payload returns the sum of the payload in all kinds of memory.
func Payload(d control.DirCounters) uint64 { return d.DeviceBytes + d.GPUFileBytes + d.HostBytes }

// Settle calls done every millisecond until it returns true, limits.Counted.Here() has passed, or ctx ends: a NIC's
// worker counts a packet after it has delivered it.
func Settle(ctx context.Context, done func() bool) {
	for end := time.Now().Add(limits.Counted.Here()); !done() && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
}

// Traffic is the payload that a guest's NIC sent and received, retransmissions included.
type Traffic struct {
	TX Place `json:"tx"`
	RX Place `json:"rx"`
}

// Pool is the size of the page pool of a guest that loads a file or uses a block device, in bytes. The pool lies at
// offset 0 of the guest's Memory, and the data behind the pool.
const Pool = 16 << 20

// Poison is the value to which some commands (load, block, rdma) set each byte of GPU memory before data is written
// there.
const Poison = 0x5a

// Pages rounds n bytes up to whole pages.
func Pages(n uint64) uint64 { return (n + devmem.PageSize - 1) &^ (devmem.PageSize - 1) }

// Head is the beginning of a report of `vnic load` or `vnic block`: one guest moves data to or from a server.
type Head struct {
	Schema int `json:"schema"` // 1
	Info
	NIC string `json:"nic"` // model
	P2P bool   `json:"p2p"`
}

// Head returns the Head of a report about the first Node of s.
func (s *Set) Head() Head {
	n := s.Nodes[0]
	return Head{1, s.Info, n.Port.Model.Name, n.P2P}
}

// Moved is the part of a report about the data that a guest and a server exchanged in one run, all rounds
// together.
type Moved struct {
	Bytes    uint64  `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	Looked   uint64  `json:"looked_bytes"` // that the guest's CPUs read in device memory: the protocol's headers
	HostCame uint64  `json:"host_bytes"`   // received in host memory, by the guest's count
	Traffic
	Retransmits uint64 `json:"retransmitted_segments"`
	// Verified is false if compared bytes are wrong, or an operation on a block device failed; null: there was nothing
	// to compare the bytes with.
	Verified *bool  `json:"verified"`
	By       string `json:"verified_by,omitempty"` // with what the bytes were compared
	SHA256   string `json:"sha256,omitempty"`      // digests of the received data, one for each call of Compare
	// CPU seconds of the guest for each 10^9 bytes; null: the guest shares this process, or moved nothing.
	CPUPerGB *float64 `json:"guest_cpu_seconds_per_gb"`

	cpu float64 // the guest's CPU time in the rounds so far, in seconds
}

// Meter adds a round to m. f moves the data, and returns the round's Bytes, Looked and HostCame, and its cost
// in the guest. With send the guest sends the data, else it receives them. After f, Meter waits, for a limited time
// (Settle), until the guest's NIC has counted that many bytes. After an error of f it adds nothing.
func (m *Moved) Meter(ctx context.Context, n *Node, send bool, f func() (Moved, transfer.Cost, error)) error {
	before, _ := n.Port.NIC().PortCounters()
	round, cost, err := f()
	if err != nil {
		return err
	}
	m.cpu += cost.CPU.Work()
	m.Seconds += cost.Seconds
	m.Retransmits += cost.Retransmits
	m.Bytes += round.Bytes
	m.Looked += round.Looked
	m.HostCame += round.HostCame
	var now control.PortCounters
	Settle(ctx, func() bool {
		now, _ = n.Port.NIC().PortCounters()
		if send {
			return Payload(now.Tx)-Payload(before.Tx) >= round.Bytes
		}
		return Payload(now.Rx)-Payload(before.Rx) >= round.Bytes
	})
	m.TX.Add(now.Tx, before.Tx)
	m.RX.Add(now.Rx, before.Rx)
	return nil
}

// Compare adds to m the digest of the n bytes behind the Pool in g's GPU memory. It returns the position among them of
// the first byte that differs from gen's, or n, also if gen is nil.
func (m *Moved) Compare(ctx context.Context, g *Node, n uint64, gen Content) (uint64, error) {
	d, err := g.SHA256(ctx, Pool, n)
	if err != nil {
		return 0, err
	}
	m.SHA256 = strings.TrimPrefix(m.SHA256+","+hex.EncodeToString(d[:]), ",")
	if gen == nil {
		return n, nil
	}
	return g.Differs(ctx, Pool, n, gen)
}

// Done computes CPUPerGB after the last round, unless the guest is in this process (inProc) or moved nothing.
func (m *Moved) Done(inProc bool) {
	if !inProc && m.Bytes > 0 {
		cost := m.cpu / (float64(m.Bytes) / 1e9)
		m.CPUPerGB = &cost
	}
}

// Rate returns Bytes divided by Seconds, in 10^6 bytes a second, as text.
func (m *Moved) Rate() string { return fmt.Sprintf("%.1f", report.PerSecond(m.Bytes, m.Seconds)/1e6) }

// LookedShare returns Looked, divided by Bytes; 0 without Bytes.
func (m *Moved) LookedShare() float64 {
	if m.Bytes == 0 {
		return 0
	}
	return float64(m.Looked) / float64(m.Bytes)
}

// Misplaced lists findings about payload in another memory than the mode requires; p2p: the NIC reaches the GPU
// directly. place has what the NIC counted in the direction of the data; hostCame: bytes arrived in host memory
// instead of GPU memory.
func (m *Moved) Misplaced(mode string, p2p bool, place *Place, hostCame bool) (f report.Findings) {
	direct := mode == transfer.Devmem
	f.If(direct && p2p && place.Device < m.Bytes, "%d bytes of payload, and device memory saw %d", m.Bytes, place.Device)
	f.If(direct && p2p && hostCame, "%d bytes came to host memory", place.Host)
	f.If(direct && !p2p && (place.Bounced < m.Bytes || place.Device > 0),
		"without peer-to-peer %d bytes were bounced, of %d, and %d lay in device memory", place.Bounced, m.Bytes,
		place.Device)
	f.If(!direct && place.Device > 0, "%d bytes lay in device memory", place.Device)
	return f
}

// Percent formats a share as a percentage: up to two significant digits from 0.001 % to below 1 %, one decimal from
// 1 % on, and "<0.001 %" for less, but not 0.
func Percent(share float64) string {
	switch p := 100 * share; {
	case p == 0:
		return "0 %"
	case p < 0.001:
		return "<0.001 %"
	case p < 1:
		return strconv.FormatFloat(p, 'g', 2, 64) + " %"
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}
