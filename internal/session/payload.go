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
	Host    uint64 `json:"host"`    // in all other memory
	Bounced uint64 `json:"bounced"` // part of Host: the NIC does not reach the GPU
}

// Add adds to p the payload that a NIC counted in one direction between two readings of its counters.
func (p *Place) Add(now, before control.DirCounters) {
	p.Device += now.DeviceBytes - before.DeviceBytes
	p.Host += now.HostBytes + now.GPUFileBytes - before.HostBytes - before.GPUFileBytes
	p.Bounced += now.BouncedBytes - before.BouncedBytes
}

// Where is the Place of a connection's payload, retransmissions included, and their bytes.
type Where struct {
	Place
	Retransmitted uint64 `json:"retransmitted"` // included in Device and Host
}

// Add adds to w what a NIC counted in one direction between two readings of its counters.
func (w *Where) Add(now, before control.DirCounters) {
	w.Place.Add(now, before)
	w.Retransmitted += now.RetransBytes - before.RetransBytes
}

// Payload returns the sum of the payload in all kinds of memory.
func Payload(d control.DirCounters) uint64 { return d.DeviceBytes + d.GPUFileBytes + d.HostBytes }

// Settle waits until done returns true, for a limited time, or until ctx ends: a NIC's worker counts a packet
// after it has delivered it.
func Settle(ctx context.Context, done func() bool) {
	for end := time.Now().Add(limits.Counted.Here()); !done() && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
}

// Traffic is the payload that a guest's NIC sends and receives, retransmissions included.
type Traffic struct {
	TX Place `json:"tx"`
	RX Place `json:"rx"`
}

// Pool is the size of the page pool of a guest that loads a file or uses a block device, in bytes. It lies at
// offset 0 of its GPU memory, and the data behind it.
const Pool = 16 << 20

// Poison is the value to which commands set GPU memory before data is written to it.
const Poison = 0x5a

// Pages rounds n bytes up to whole pages.
func Pages(n uint64) uint64 { return (n + devmem.PageSize - 1) &^ (devmem.PageSize - 1) }

// Head is the beginning of a report of a command with one guest that moves data.
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
	Looked   uint64  `json:"looked_bytes"` // of the protocol's headers that the guest's CPUs read in device memory
	HostCame uint64  `json:"host_bytes"`   // received in host memory, as the guest counts them
	Traffic
	Retransmits uint64 `json:"retransmitted_segments"`
	// Verified reports whether every byte is right; null: the right content is not known.
	Verified *bool  `json:"verified"`
	By       string `json:"verified_by,omitempty"` // with what the bytes were compared
	SHA256   string `json:"sha256,omitempty"`      // of the received data, one digest a round
	// CPU seconds of the guest for each 10^9 bytes; null: the guest shares this process, or moved nothing
	CPUPerGB *float64 `json:"guest_cpu_seconds_per_gb"`

	cpu float64 // so far, in seconds
}

// Meter adds a round to m. f moves the data, and returns the round's Bytes, Looked and HostCame, and its cost
// in the guest. send: the guest sends the data. Meter waits (Settle) until the guest's NIC has counted as many
// bytes.
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

// Compare adds to m the digest of the n bytes that a round wrote to g's GPU memory. It returns the position of
// the first byte that differs from gen's, or n. gen may be nil.
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

// Done computes CPUPerGB after the last round.
func (m *Moved) Done(inProc bool) {
	if !inProc && m.Bytes > 0 {
		cost := m.cpu / (float64(m.Bytes) / 1e9)
		m.CPUPerGB = &cost
	}
}

// Rate returns the rate in 10^6 bytes a second, as text.
func (m *Moved) Rate() string { return fmt.Sprintf("%.1f", report.PerSecond(m.Bytes, m.Seconds)/1e6) }

// LookedShare returns Looked, divided by Bytes.
func (m *Moved) LookedShare() float64 {
	if m.Bytes == 0 {
		return 0
	}
	return float64(m.Looked) / float64(m.Bytes)
}

// Misplaced lists findings about payload in another memory than the mode requires. place has what the NIC
// counted; hostCame: bytes arrived in host memory instead of GPU memory.
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

// Percent formats a share as a percentage: up to two significant digits from 0.001 % to 1 %, one decimal above.
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
