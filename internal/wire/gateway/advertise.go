package gateway

import (
	"encoding/binary"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

const (
	advertiseEvery = 200 * time.Second         // interval of unsolicited advertisements (RFC 4861, 6.2.1)
	advertisePause = 200 * time.Millisecond    // after each advertisement; solicitations in this time share one answer
	routerLifetime = uint16(2 * 60 * 60)       // seconds: of the DNS options and, with NAT, of the default router
	prefixLifetime = uint32(30 * 24 * 60 * 60) // seconds
)

func (g *Gateway) startAdvertising() {
	if !g.o.Prefix6.IsValid() {
		return
	}
	frame := g.advertisement()
	g.serve(func() {
		tick := time.NewTicker(advertiseEvery)
		defer tick.Stop()
		for {
			pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
			g.out.put(pkt)
			pkt.DecRef()
			select {
			case <-time.After(advertisePause):
			case <-g.ctx.Done():
				return
			}
			select {
			case <-tick.C:
			case <-g.port.solicited:
			case <-g.ctx.Done():
				return
			}
		}
	})
}

// advertisement makes a router advertisement to all nodes (RFC 4861, 4.2), as a whole frame. Without NAT the
// router lifetime is 0: the gateway is no default router.
func (g *Gateway) advertisement() []byte {
	be := binary.BigEndian
	lifetime := routerLifetime
	if !g.o.NAT {
		lifetime = 0
	}
	flags := byte(0x80) // on link
	if g.o.Prefix6.Bits() == 64 {
		flags |= 0x40 // autonomous
	}
	gateway6, network, all := g.o.Prefix6.Addr().As16(), g.o.Prefix6.Masked().Addr().As16(), [16]byte{0: 0xff, 1: 2, 15: 1}
	local := g.port.filter.local6.As16()

	ra := []byte{134, 0, 0, 0, 64, 0}
	ra = be.AppendUint16(ra, lifetime)
	ra = append(ra, make([]byte, 8)...) // reachable time, retransmission timer: unspecified
	ra = append(append(ra, 1, 1), g.o.MAC[:]...)
	ra = append(ra, 5, 1, 0, 0) // MTU (RFC 4861, 4.6.4)
	ra = be.AppendUint32(ra, uint32(g.o.MTU))
	ra = append(ra, 3, 4, byte(g.o.Prefix6.Bits()), flags) // prefix (RFC 4861, 4.6.2)
	ra = be.AppendUint32(ra, prefixLifetime)
	ra = be.AppendUint32(ra, prefixLifetime)
	ra = append(append(ra, 0, 0, 0, 0), network[:]...)
	ra = append(ra, 25, 3, 0, 0) // recursive DNS server (RFC 8106, 5.1)
	ra = append(be.AppendUint32(ra, uint32(routerLifetime)), gateway6[:]...)
	search := encodeNames(g.search)
	search = append(search, make([]byte, -len(search)&7)...)
	ra = append(ra, 31, byte(1+len(search)/8), 0, 0) // DNS search list (RFC 8106, 5.2)
	ra = append(be.AppendUint32(ra, uint32(routerLifetime)), search...)

	pseudo := append(append(local[:], all[:]...), 0, 0, byte(len(ra)>>8), byte(len(ra)), 0, 0, 0, protoICMPv6)
	splitter.PutCsum(ra[2:], dma.Fold(dma.Checksum(ra, dma.Checksum(pseudo, 0))), false)

	frame := append([]byte{0x33, 0x33, 0, 0, 0, 1}, g.o.MAC[:]...) // RFC 2464, 7
	frame = append(be.AppendUint16(frame, splitter.EtherTypeIPv6), 0x60, 0, 0, 0)
	frame = append(be.AppendUint16(frame, uint16(len(ra))), protoICMPv6, 255)
	frame = append(append(frame, local[:]...), all[:]...)
	return append(frame, ra...)
}
