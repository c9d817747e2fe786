package gve

import (
	"fmt"

	"vnic.dev/vnic/internal/control"
)

// Receive side scaling: CONFIGURE_RSS and QUERY_RSS.

const (
	rssKeyLen   = 40  // GVE_RSS_KEY_SIZE
	rssTableLen = 128 // GVE_RSS_INDIR_SIZE
	rssToeplitz = 1   // as ethtool's ETH_RSS_HASH_TOP
	rssHeadLen  = 8   // length of struct gve_query_rss_descriptor
)

// hashTypes maps the hash types (enum gve_rss_hash_type) to control.RSS's types. CONFIGURE_RSS accepts and
// ignores the types for IPv6 with extension headers (bits 3, 5, 8).
var hashTypes = [...]struct {
	gve uint16
	rss uint32
}{
	{1 << 0, control.HashIPv4}, {1 << 1, control.HashTCPv4}, {1 << 6, control.HashUDPv4},
	{1 << 2, control.HashIPv6}, {1 << 4, control.HashTCPv6}, {1 << 7, control.HashUDPv6},
}

const allHashTypes = 1<<9 - 1

// rssCommand is CONFIGURE_RSS (struct gve_adminq_configure_rss). In Types, Alg, KeyLen and TableLen 0 means: no
// change.
type rssCommand struct {
	Types     uint16 // offset 0
	Alg       uint8  // 2
	_         [1]byte
	KeyLen    uint16 // 4
	TableLen  uint16 // 6: entries
	KeyAddr   uint64 // 8
	TableAddr uint64 // 16: of the entries, u32 each
}

func (d *Device) configureRSS(b *body) error {
	c := decode[rssCommand](b[:])
	r, err := d.port.RSS()
	if err != nil {
		return err
	}
	switch {
	case c.Alg > rssToeplitz:
		return fmt.Errorf("hash algorithm %d: only Toeplitz is offered: %w", c.Alg, statusUnimplemented)
	case c.Types&^allHashTypes != 0:
		return invalid("hash types %#x", c.Types)
	case c.KeyLen != 0 && c.KeyLen != rssKeyLen:
		return invalid("key of %d bytes, not %d", c.KeyLen, rssKeyLen)
	case c.TableLen != 0 && c.TableLen != rssTableLen:
		return invalid("table of %d entries, not %d", c.TableLen, rssTableLen)
	}
	if c.Types != 0 {
		r.HashTypes = 0
		for _, t := range hashTypes {
			if c.Types&t.gve != 0 {
				r.HashTypes |= t.rss
			}
		}
	}
	if c.KeyLen != 0 {
		if err := d.mem.read(c.KeyAddr, r.Key[:]); err != nil {
			return err
		}
	}
	if c.TableLen != 0 {
		var table [4 * rssTableLen]byte
		if err := d.mem.read(c.TableAddr, table[:]); err != nil {
			return err
		}
		r.Table = make([]uint16, rssTableLen)
		for i := range r.Table {
			q := be.Uint32(table[4*i:])
			if q >= uint32(len(d.rx)) {
				return invalid("table entry %d is queue %d of %d", i, q, len(d.rx))
			}
			r.Table[i] = uint16(q)
		}
	}
	return d.port.SetRSS(r)
}

// queryRSS carries out QUERY_RSS. The body has room (u64) and address (u64). The reply is {length u32, types u16,
// algorithm u8, 0 u8}, the key, and the table (entries u32).
func (d *Device) queryRSS(b *body) error {
	room, addr := be.Uint64(b[0:]), be.Uint64(b[8:])
	r, err := d.port.RSS()
	if err != nil {
		return err
	}
	var out [rssHeadLen + rssKeyLen + 4*rssTableLen]byte
	if room < uint64(len(out)) {
		return fmt.Errorf("%d bytes for %d: %w", room, len(out), statusResourceExhausted)
	}
	be.PutUint32(out[0:], uint32(len(out)))
	var types uint16
	for _, t := range hashTypes {
		if r.HashTypes&t.rss != 0 {
			types |= t.gve
		}
	}
	be.PutUint16(out[4:], types)
	out[6] = rssToeplitz
	copy(out[rssHeadLen:], r.Key[:])
	for i := range rssTableLen { // the table's length is a power of two: a shorter one is repeated
		be.PutUint32(out[rssHeadLen+rssKeyLen+4*i:], uint32(r.Table[i%len(r.Table)]))
	}
	return d.mem.write(addr, out[:])
}

// setDefaultRSS makes the port spread flows by default over the receive queues from 0 to the last existing one
// (gve_init_rss_config). While queues exist, that range only grows: a queue that ends while others exist (a restart)
// keeps its share.
func (d *Device) setDefaultRSS() {
	live := len(d.res.rx)
	for live > 0 && !d.res.rx[live-1].live {
		live--
	}
	if live > 0 && live <= d.rxUsed {
		return
	}
	d.rxUsed = live
	if live == 0 {
		return // the table stays until the driver creates queues again
	}
	queues := make([]uint16, live)
	for i := range queues {
		queues[i] = uint16(i)
	}
	d.port.SetDefaultRSS(queues)
}
