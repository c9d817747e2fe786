package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/splitter"
)

// Ports of DHCP (RFC 2131, 4.1).
const (
	serverPort = 67
	clientPort = 68
)

// Lengths of the headers that frame writes.
const (
	ipLen      = 20
	udpLen     = 8
	headersLen = splitter.EthLen + ipLen + udpLen
)

// packetConn is a packet socket of an interface (packet(7)): it also receives packets to addresses
// that the kernel does not have.
type packetConn struct {
	*os.File
	mac [6]byte
	buf [splitter.MaxHeader + maxMessage]byte
}

func listenPacket(name string, mac [6]byte) (conn, error) {
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	var proto [2]byte
	binary.BigEndian.PutUint16(proto[:], unix.ETH_P_IP)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(proto[:]),
		Ifindex: ifc.Index}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &packetConn{File: os.NewFile(uintptr(fd), name), mac: mac}, nil
}

// Read reads the payload of the next datagram to the client's port, whatever its addresses.
func (c *packetConn) Read(b []byte) (int, error) {
	for {
		n, err := c.File.Read(c.buf[:])
		if err != nil {
			return 0, err
		}
		if payload := datagram(c.buf[:n]); payload != nil {
			return copy(b, payload), nil
		}
	}
}

// Write broadcasts a datagram to servers.
func (c *packetConn) Write(b []byte) (int, error) {
	_, err := c.File.Write(frame(c.mac, b))
	return len(b), err
}

// datagram returns the payload of a frame that is a datagram to the client's port, or nil. It does
// not verify checksums: a host leaves the UDP checksum of packets to its own guest incomplete
// (VIRTIO_NET_HDR_F_NEEDS_CSUM).
func datagram(b []byte) []byte {
	var h splitter.Headers
	if splitter.Parse(b, uint32(len(b)), &h) != nil || h.Class != splitter.UDP || h.IPv6 ||
		h.Flow.DstPort != clientPort {
		return nil
	}
	return b[h.HdrLen:h.FrameLen]
}

// frame makes a broadcast frame with a message of a client without an address.
func frame(mac [6]byte, message []byte) []byte {
	b := make([]byte, headersLen, headersLen+len(message))
	copy(b, "\xff\xff\xff\xff\xff\xff")
	copy(b[6:], mac[:])
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	ip := b[splitter.EthLen:] // RFC 791, 3.1
	ip[0], ip[8], ip[9] = 0x45, 64, splitter.ProtoUDP
	binary.BigEndian.PutUint16(ip[2:], uint16(ipLen+udpLen+len(message)))
	copy(ip[16:], "\xff\xff\xff\xff")
	udp := ip[ipLen:] // RFC 768
	binary.BigEndian.PutUint16(udp, clientPort)
	binary.BigEndian.PutUint16(udp[2:], serverPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+len(message)))
	b = append(b, message...)
	var h splitter.Headers
	_ = splitter.Parse(b, uint32(len(b)), &h) // no error, because b is the whole frame
	splitter.FixIPv4(&h, b)
	splitter.FixL4(&h, b, h.PayloadLen(), splitter.Sum(message, 0))
	return b
}

// udpConn is a UDP socket that sends to one address and receives from any.
type udpConn struct {
	net.PacketConn
	server net.Addr
}

// listenUDP opens a UDP socket on the interface name, which need not have an IP address.
func listenUDP(ctx context.Context, name string) (conn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.BindToDevice(int(fd), name))
		})
		return errors.Join(err, cerr)
	}}
	pc, err := lc.ListenPacket(ctx, "udp4", ":68")
	if err != nil {
		return nil, err
	}
	return udpConn{pc, &net.UDPAddr{IP: net.IPv4bcast, Port: serverPort}}, nil
}

func (c udpConn) Read(b []byte) (int, error) {
	n, _, err := c.ReadFrom(b)
	return n, err
}

func (c udpConn) Write(b []byte) (int, error) { return c.WriteTo(b, c.server) }
