package bench

import (
	"encoding/binary"

	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

const (
	netHeader = 12 // bytes of a virtio_net_hdr (virtio 1.3, 5.1.6)
	tcpHeader = splitter.EthLen + 20 + 20
	tcpPort   = 2000
)

// frame is a TCP frame with a partial checksum (VIRTIO_NET_F_CSUM).
type frame struct {
	head    []byte // virtio_net_hdr and the frame's headers
	payload []byte
}

// newFrame makes a frame of size bytes, link header included and virtio_net_hdr not. If its IP packet is longer than
// mtu, the virtio_net_hdr makes it a GSO packet.
func newFrame(dst, src wire.MAC, port uint16, size, mtu int) *frame {
	be := binary.BigEndian
	f := &frame{head: make([]byte, netHeader+tcpHeader), payload: make([]byte, size-tcpHeader)}
	b := f.head[netHeader:]
	copy(b, dst[:])
	copy(b[6:], src[:])
	be.PutUint16(b[12:], splitter.EtherTypeIPv4)
	ip := b[splitter.EthLen:]
	ip[0], ip[8], ip[9] = 0x45, 64, splitter.ProtoTCP
	be.PutUint16(ip[2:], uint16(size-splitter.EthLen))
	copy(ip[12:], []byte{10, 118, 110, src[5], 10, 118, 110, dst[5]})
	tcp := ip[20:]
	be.PutUint16(tcp, 1000)
	be.PutUint16(tcp[2:], port)
	tcp[12], tcp[13] = 5<<4, splitter.ACK
	for i := range f.payload {
		f.payload[i] = byte(i*7 + i>>8)
	}
	var h splitter.Headers
	_ = splitter.Parse(b, uint32(size), &h)
	splitter.FixIPv4(&h, b)
	splitter.FixPartial(&h, b, uint32(len(f.payload)))
	start, offset, _ := splitter.CsumPlace(&h)
	f.head[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	le.PutUint16(f.head[6:], start)
	le.PutUint16(f.head[8:], offset)
	if size > mtu+splitter.EthLen {
		f.head[1] = 1 // VIRTIO_NET_HDR_GSO_TCPV4
		le.PutUint16(f.head[2:], tcpHeader)
		le.PutUint16(f.head[4:], uint16(mtu-40))
	}
	return f
}

func (f *frame) len() int { return len(f.head) + len(f.payload) }

// bufferLen returns the size of a receive buffer for the frame and its virtio_net_hdr.
func (f *frame) bufferLen() int { return max(2048, (f.len()+4095)&^4095) }
