package kernel

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/diagnosis"
)

// counters has what a device has counted since Open, and in base the interface's counters at Open.
type counters struct {
	rxDevice, rxLinear, txDevice, txLinear atomic.Uint64

	mu       sync.Mutex
	segments segments // of connections whose sockets are closed
	base     nicCounters
	last     nicCounters // the last result of since: counters never decrease, although drivers may clear theirs
}

type segments struct{ in, out, retrans uint64 }

type nicCounters struct{ rxDrops, txDrops, nicDrops uint64 }

// since returns the largest increase of the interface's counters since Open that it has seen.
func (c *counters) since(n nicCounters) nicCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	up := func(last *uint64, now, base uint64) uint64 {
		if now > base {
			*last = max(*last, now-base)
		}
		return *last
	}
	return nicCounters{
		up(&c.last.rxDrops, n.rxDrops, c.base.rxDrops), up(&c.last.txDrops, n.txDrops, c.base.txDrops),
		up(&c.last.nicDrops, n.nicDrops, c.base.nicDrops),
	}
}

func (c *Conn) count(fd int) {
	info, err := tcpInfo(fd)
	if err != nil {
		return
	}
	c.d.count.mu.Lock()
	defer c.d.count.mu.Unlock()
	c.d.count.segments.add(info)
}

func (s *segments) add(i *unix.TCPInfo) {
	s.in += uint64(i.Segs_in)
	s.out += uint64(i.Segs_out)
	s.retrans += uint64(i.Total_retrans)
}

// nicCounters returns the interface's counters; a counter that is not available is 0.
func (d *Device) nicCounters() nicCounters {
	var n nicCounters
	if link, err := netlink.LinkByIndex(d.index); err == nil && link.Attrs().Statistics != nil {
		st := link.Attrs().Statistics // struct rtnl_link_stats64 (include/uapi/linux/if_link.h)
		n = nicCounters{rxDrops: st.RxDropped, txDrops: st.TxDropped, nicDrops: st.RxMissedErrors}
	}
	// Drivers may report the same drops in several counters, so nicDrops is the largest.
	if hw, err := d.netdev.hwDrops(d.index); err == nil {
		n.nicDrops = max(n.nicDrops, hw)
	}
	if drops, err := d.driverDrops(); err == nil {
		n.nicDrops = max(n.nicDrops, drops)
	}
	return n
}

// From include/uapi/linux/ethtool.h, except maxDriverCounters.
const (
	ethtoolGSTRINGS   = 0x1b
	ethtoolGSTATS     = 0x1d
	ethtoolGSSETINFO  = 0x37
	ethSSStats        = 1 // ETH_SS_STATS
	ethGStringLen     = 32
	maxDriverCounters = 1 << 14
)

// driverDrops sums the driver's own counters (ethtool -S) whose names countsDrops accepts: of packets for which the NIC
// had no buffer.
func (d *Device) driverDrops() (sum uint64, err error) {
	var info [16 + 4]byte // struct ethtool_sset_info: u32 cmd, u32, u64 mask, u32 data[]
	native.PutUint32(info[:], ethtoolGSSETINFO)
	native.PutUint64(info[8:], 1<<ethSSStats)
	if err := d.ioctl(info[:]); err != nil {
		return 0, err
	}
	n := native.Uint32(info[16:])
	if n == 0 || n > maxDriverCounters {
		return 0, fmt.Errorf("%d counters: %w", n, syscall.EOPNOTSUPP)
	}
	// The kernel writes all counters that exist at the time of the call: leave room for more.
	room := 2*int(n) + maxDriverCounters/16
	// struct ethtool_gstrings: u32 cmd, set, len
	names, err := d.command(12+room*ethGStringLen, ethtoolGSTRINGS, ethSSStats, n)
	if err != nil {
		return 0, err
	}
	values, err := d.command(8+room*8, ethtoolGSTATS, n) // struct ethtool_stats: u32 cmd, u32 n_stats
	if err != nil {
		return 0, err
	}
	for i := range min(n, native.Uint32(names[8:]), native.Uint32(values[4:])) {
		name, _, _ := bytes.Cut(names[12+i*ethGStringLen:][:ethGStringLen], []byte{0})
		if countsDrops(string(name)) {
			sum += native.Uint64(values[8+8*i:])
		}
	}
	return sum, nil
}

// countsDrops reports whether a counter's name has a word by which a driver names drops for lack of a buffer, as in
// gve's rx_no_buffers_posted[q], mlx5's rx_out_of_buffer and bnxt's rx_discards. The words must not match both the
// counters of the queues and the sum of these counters.
func countsDrops(name string) bool {
	words := []string{"no_buffers_posted", "queue_drop_cnt", "out_of_buffer", "rx_missed", "rx_discards"}
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(name, word) })
}

// Stats implements devmem.Device. The interface's drop counters include other programs' drops. Held counts tokens, but
// at most the pages that are in flight; Posted counts the other pages in flight: in receive buffers, sockets and
// caches. Stats reads the completions of open connections, so that Sends is up to date.
func (d *Device) Stats() devmem.Stats {
	st := devmem.Stats{
		RxDevmemBytes: d.count.rxDevice.Load(), RxLinearBytes: d.count.rxLinear.Load(),
		TxDevmemBytes: d.count.txDevice.Load(), TxLinearBytes: d.count.txLinear.Load(),
	}
	seg := d.segments()
	st.RxSegments, st.TxSegments, st.Retransmits = seg.in, seg.out, seg.retrans
	d.mu.Lock()
	defer d.mu.Unlock()
	var now nicCounters
	if !d.closing {
		now = d.nicCounters()
		st.Queues, _ = d.netdev.rxQueues(d.index)
	}
	n := d.count.since(now)
	st.RxFrameDrops, st.TxFrameDrops, st.NICDrops = n.rxDrops, n.txDrops, n.nicDrops
	st.Bindings = diagnosis.Stats(d.allBindings())
	return st
}

// segments sums up the segments of all connections. A closed connection that lingers is counted when its socket is
// closed.
func (d *Device) segments() segments {
	conns := d.conns.All()
	d.count.mu.Lock()
	// Read the open connections first: a connection is counted before it is removed from conns.
	sum := d.count.segments
	d.count.mu.Unlock()
	for _, c := range conns {
		_ = c.s.on(func(fd int) error {
			c.reap(fd)
			info, err := tcpInfo(fd)
			if err == nil {
				sum.add(info)
			}
			return err
		})
	}
	return sum
}
