package wire

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vnic.dev/vnic/splitter"
)

// claimed returns the MACs and IP addresses in a frame that a lenient receiver may take as the sender's. It shares no
// code with the switch.
func claimed(b []byte) (macs []MAC, addrs []netip.Addr) {
	macs = append(macs, MAC(b[6:12]))
	off := 14
	et := binary.BigEndian.Uint16(b[12:14])
	for (et == 0x8100 || et == 0x88a8) && len(b) >= off+4 {
		et = binary.BigEndian.Uint16(b[off+2:])
		off += 4
	}
	b = b[off:]
	switch {
	case et == 0x0806 && len(b) >= 28 && b[4] == 6 && b[5] == 4 && binary.BigEndian.Uint16(b[2:]) == 0x0800:
		return append(macs, MAC(b[8:14])), append(addrs, netip.AddrFrom4([4]byte(b[14:18])))
	case et == 0x0800 && len(b) >= 20 && b[0]>>4 == 4:
		return macs, append(addrs, netip.AddrFrom4([4]byte(b[12:16])))
	case et == 0x86dd && len(b) >= 40 && b[0]>>4 == 6:
		addrs = append(addrs, netip.AddrFrom16([16]byte(b[8:24])))
		next, l4 := b[6], b[40:]
		for {
			n := 0
			switch {
			case len(l4) < 8:
				return macs, addrs
			case next == 0 || next == 60 || next == 43:
				n = int(l4[1])*8 + 8
			case next == 51:
				n = int(l4[1])*4 + 8
			case next == 44:
				if binary.BigEndian.Uint16(l4[2:])&^7 != 0 {
					return macs, addrs
				}
				n = 8
			case next == 58:
				m, a := saidND(l4)
				return append(macs, m...), append(addrs, a...)
			default:
				return macs, addrs
			}
			if next == 43 && l4[3] != 0 || n > len(l4) {
				return macs, addrs // segments are left, so the destination is not final; or the header is incomplete
			}
			next, l4 = l4[0], l4[n:]
		}
	}
	return macs, addrs
}

func saidND(b []byte) (macs []MAC, addrs []netip.Addr) {
	options := map[byte]int{133: 8, 135: 24, 136: 24}[b[0]]
	if options == 0 || len(b) < options {
		return nil, nil
	}
	if b[0] == 136 {
		addrs = append(addrs, netip.AddrFrom16([16]byte(b[8:24])))
	}
	for b = b[options:]; len(b) >= 8 && b[1] != 0; b = b[min(len(b), int(b[1])*8):] {
		if b[0] == 1 || b[0] == 2 {
			macs = append(macs, MAC(b[2:8]))
		}
	}
	return macs, addrs
}

// Invariant: wire: No frame of a port whose sources are checked claims an address that is bound to
// another port.
func FuzzIdentity(f *testing.F) {
	a0, b0 := MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}
	pair := func(x, y []byte, opts byte) []byte {
		s := binary.BigEndian.AppendUint16([]byte{opts, 0}, uint16(len(x)))
		s = append(s, x...)
		s = binary.BigEndian.AppendUint16(append(s, opts^1, 3), uint16(len(y)))
		return append(s, y...)
	}
	for _, n := range []byte{1, 2, 9, 70} {
		for tags := range 3 {
			good, spoof := claims(a0, n, tags), claims(b0, n, tags)
			for i, name := range slices.Sorted(maps.Keys(good)) {
				f.Add(pair(good[name], spoof[name], byte(i)<<4|byte(tags)<<2))
			}
		}
	}
	long := append([]byte{58, 62}, make([]byte, 8*63-2)...)
	for _, b := range [][]byte{
		frame(a0, 3, splitter.EtherTypeARP, arpBody(2, a0, ip4(2), ip4(9))),
		frame(a0, 0, splitter.EtherTypeIPv6, whole(58, nd(136, ip6(2), 2, b0)...)),
		frame(a0, 0, splitter.EtherTypeIPv6, whole(60, padded(nd(136, ip6(2), 2, b0)...)...)),
		frame(a0, 0, splitter.EtherTypeIPv6, ipv6Body(ip6(1), allNodes, 60, append(long, nd(136, ip6(2), 2, b0)...)...)),
		frame(a0, 0, splitter.EtherTypeIPv6, icmp(1, nd(136, ip6(1), 2, b0)...)),
		frame(a0, 0, splitter.EtherTypeIPv6, icmp(1, nd(136, ip6(2), 2, a0)...)),
		frame(a0, 0, splitter.EtherTypeARP, arpBody(1, b0, ip4(1), ip4(9))),
	} {
		use := pair(frame(b0, 0, splitter.EtherTypeIPv6, icmp(2, 128, 0, 0, 0)), nil, 3)
		use = append(use, pair(frame(b0, 0, splitter.EtherTypeARP, arpBody(1, b0, ip4(2), ip4(9))), nil, 3)...)
		f.Add(append(use, pair(b, nil, 2)...))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		v := newTown(t, func(n byte, o *Identity) { o.Any, o.Learn = n == 1, n == 2 })
		owner := map[any]*host{v.router.mac: v.router, v.a.mac: v.a}
		for _, s := range []string{"10.0.0.9", "fd00::9", "fe80::9"} {
			owner[netip.MustParseAddr(s)] = v.router
		}
		seen := map[any]time.Time{}
		for step := 0; len(script) >= 4 && step < 64; step++ {
			opts, more := script[0], script[1]
			n := min(int(binary.BigEndian.Uint16(script[2:])), len(script)-4, 2000)
			b := bytes.Clone(script[4 : 4+n])
			script = script[4+n:]
			from, other := v.a, v.b
			if opts&1 != 0 {
				from, other = other, from
			}
			if more&0x80 != 0 {
				from.link.Forget()
				maps.DeleteFunc(owner, func(k any, h *host) bool { return h == from && k != any(v.a.mac) })
			}
			v.now = v.now.Add(time.Duration(more&0x70) * time.Second)
			if n < splitter.EthLen {
				continue
			}
			copy(b, other.mac[:])
			if opts&2 != 0 {
				copy(b, broadcast[:])
			}
			p := from.rawFrame(b, int(opts>>4)*5, 0, int(more&15))
			if more&0x80 == 0 && opts&8 != 0 && len(b) > 60 {
				partial(p, uint16(14+4*int(more&15)), uint16(more&15)*2)
			}
			from.send(p)
			for _, to := range []*host{v.a, v.b, v.router} {
				for _, r := range to.take() {
					if to == from {
						t.Fatal("it came back")
					}
					macs, addrs := claimed(r.frame)
					var all []any
					for _, m := range macs {
						all = append(all, m)
					}
					for _, a := range addrs {
						if !a.IsUnspecified() {
							all = append(all, a)
						}
					}
					for _, s := range all {
						// An address may move if its owner has not used it for probeIdle, except a's MAC and the router's addresses.
						if h := owner[s]; h != nil && h != from &&
							(h == v.router || s == any(v.a.mac) || v.now.Sub(seen[s]) < probeIdle) {
							t.Fatalf("step %d: %s says that it has %v, which is %s's: % x", step, from.Name(), s, h.Name(), r.frame)
						}
					}
					for _, s := range all {
						owner[s], seen[s] = from, v.now
					}
				}
			}
		}
	})
}
