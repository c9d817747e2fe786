package uplink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/ownports"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/splitter"
)

const (
	// sources is the number of UDP source ports of a tunnel; networks spread flows by the source port (RFC 7348, 5).
	sources = 8
	// maxCut is the most datagrams into which write lets the kernel cut a long one (UDP_MAX_SEGMENTS,
	// include/linux/udp.h, of old kernels), and maxUDP the most payload of the long one, in bytes.
	maxCut = 64
	maxUDP = 65535 - 40 - 8
	// socketBuffer is the requested size, in bytes, of the buffer of each socket: receive buffer of vxlan.in, send
	// buffers of vxlan.out.
	socketBuffer = 4 << 20
)

// outer returns how many bytes of headers VXLAN to peer a adds to an IP packet: outer IP, UDP, VXLAN, and the link
// header of the frame inside.
func outer(a netip.Addr) int {
	if a.Unmap().Is4() {
		return 20 + 8 + vxlanLen + splitter.EthLen
	}
	return 40 + 8 + vxlanLen + splitter.EthLen
}

// vxlan is a tunnel: one socket receives datagrams, and several sockets, connected to the peer, send.
type vxlan struct {
	o     *VXLAN
	count *counters
	in    *net.UDPConn
	out   [sources]*source
	route int // MTU of the route to the peer, when the tunnel was opened

	unlist func() // removes the port of in from the list of package ownports

	pieces [maxCut][]byte
}

type source struct {
	conn *net.UDPConn
	raw  *rawWriter
	cuts bool // the kernel cuts long datagrams (UDP_SEGMENT); false after its first failure to do so
	size int  // the present UDP_SEGMENT: length of the datagrams into which the kernel cuts longer ones; 0: it cuts none
}

func openVXLAN(o *VXLAN, longest int, count *counters) (_ carrier, err error) {
	v := &vxlan{o: o, count: count}
	defer func() {
		if err != nil {
			_ = v.close()
		}
	}()
	local := net.UDPAddrFromAddrPort(unmapped(o.Local))
	if v.in, err = net.ListenUDP(udp(o.Local.Addr()), local); err != nil {
		return nil, advise(err)
	}
	v.unlist = ownports.Add(v.in.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	if set(v.in, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil { // SO_RCVBUFFORCE needs CAP_NET_ADMIN
		_ = v.in.SetReadBuffer(socketBuffer)
	}
	_ = set(v.in, unix.SOL_UDP, unix.UDP_GRO, 1) // without UDP_GRO, each read returns one datagram
	if !o.Local.Addr().Unmap().Is4() {
		_ = set(v.in, unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1) // the outer checksum may be 0 (RFC 7348, 5; RFC 6935)
	}
	for i := range v.out {
		if v.out[i], err = v.source(longest); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (v *vxlan) source(longest int) (*source, error) {
	from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(v.o.Local.Addr().Unmap(), 0))
	c, err := net.DialUDP(udp(v.o.Remote.Addr()), from, net.UDPAddrFromAddrPort(unmapped(v.o.Remote)))
	if err != nil {
		return nil, advise(err)
	}
	s := &source{conn: c}
	if s.raw, err = newRawWriter(c); err == nil {
		v.route, err = unfragmented(c, v.o.Remote.Addr().Unmap().Is4())
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	_ = c.SetWriteBuffer(socketBuffer)
	s.cuts = s.cut(vxlanLen + longest)
	return s, nil
}

// cut makes the kernel cut datagrams of the socket that are longer than size into datagrams of size bytes, or, if size
// is 0, cut none. ok is false if the kernel refuses; then nothing changes.
func (s *source) cut(size int) (ok bool) {
	if ok = set(s.conn, unix.SOL_UDP, unix.UDP_SEGMENT, size) == nil; ok {
		s.size = size
	}
	return ok
}

// unfragmented forbids fragmentation of the datagrams that connected socket c sends (RFC 7348, 4.3), and returns the
// present MTU of the route to its peer.
func unfragmented(c *net.UDPConn, is4 bool) (mtu int, err error) {
	level, discover, want, get := unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, unix.IPV6_MTU
	if is4 {
		level, discover, want, get = unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, unix.IP_MTU
	}
	if err := set(c, level, discover, want); err != nil {
		return 0, err
	}
	err = scm.Control(c, func(fd int) (err error) {
		mtu, err = unix.GetsockoptInt(fd, level, get)
		return os.NewSyscallError("getsockopt", err)
	})
	return mtu, err
}

func set(c syscall.Conn, level, option, value int) error {
	return scm.Control(c, func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, option, value))
	})
}

func udp(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "udp4"
	}
	return "udp6"
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func advise(err error) error {
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: local is an address of this machine, or 0.0.0.0 or [::]", err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: another uplink, or a VXLAN device of the kernel, which takes its port at all addresses: "+
			"give another port here, and there", err)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("%w: there is no route to remote", err)
	}
	return err
}

func (v *vxlan) mtu() (n int, why string) {
	n = outer(v.o.Remote.Addr())
	return max(v.route-n, 1), fmt.Sprintf("the route to %s has an MTU of %d, of which VXLAN takes %d",
		v.o.Remote.Addr().Unmap(), v.route, n)
}

func (v *vxlan) room() int { return vxlanLen }

// read implements carrier. Each read of the socket returns one datagram, or several that the kernel has merged
// (cutSize).
func (v *vxlan) read(in func([]byte)) error {
	buf := make([]byte, 64<<10)
	oob := make([]byte, 256)
	peer := v.o.Remote.Addr().Unmap()
	for {
		n, oobn, _, from, err := v.in.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return err
		}
		size := cutSize(oob[:oobn], n)
		for b := buf[:n]; ; {
			k := min(size, len(b))
			if from.Addr().Unmap() != peer {
				v.count.refuse(stranger, "from", from)
			} else if f, why := cutVXLAN(b[:k], v.o.VNI); why != none {
				v.count.refuse(why)
			} else {
				in(f)
			}
			if b = b[k:]; len(b) == 0 {
				break
			}
		}
	}
}

// cutSize returns the length, at least 1, of each datagram in n received bytes, except that the last may be shorter. It
// finds the length in a UDP_GRO message of oob; without such a message the n bytes are one datagram.
func cutSize(oob []byte, n int) int {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && len(data) >= 4 {
			if size := int(int32(binary.NativeEndian.Uint32(data))); size > 0 {
				return size
			}
		}
		oob = rest
	}
	return max(n, 1)
}

// write implements carrier. If the kernel cuts datagrams, consecutive frames of one length for one socket, and a
// shorter one after them, go to the kernel in one system call, within maxCut and maxUDP.
func (v *vxlan) write(fs []*frame, wait func()) {
	for len(fs) > 0 {
		s := v.out[fs[0].flow%sources]
		n, bytes := 0, 0
		for n < len(fs) && n < maxCut && v.out[fs[n].flow%sources] == s {
			f := fs[n]
			if n > 0 && (!s.cuts || fs[n-1].n != fs[0].n || f.n > fs[0].n || bytes+f.n > maxUDP) {
				break
			}
			putVXLAN(f.b, v.o.VNI)
			v.pieces[n] = f.b[:f.n]
			n, bytes = n+1, bytes+f.n
		}
		v.send(s, v.pieces[:n], wait)
		fs = fs[n:]
	}
}

// send sends frames, of one length except that the last may be shorter, from the socket of s: several as one datagram
// that the kernel cuts, or one by one if it cannot. It counts frames that the kernel refuses, unless s is closed.
func (v *vxlan) send(s *source, pieces [][]byte, wait func()) {
	n, size := len(pieces), len(pieces[0])
	if n > 1 && s.size != size {
		s.cuts = s.cut(size)
	} else if n == 1 && s.size != 0 && s.size < size {
		s.cut(0)
	}
	err := error(unix.EINVAL)
	if n == 1 || s.cuts {
		if _, err = s.raw.write(pieces, wait); err == unix.ECONNREFUSED { // for an earlier datagram; nothing was sent now
			_, err = s.raw.write(pieces, wait)
		}
	}
	if n > 1 && (err == unix.EIO || err == unix.EINVAL) { // the kernel cannot cut, at all or for this route
		s.cuts = false
		for i := range pieces {
			v.send(s, pieces[i:i+1], wait)
		}
		return
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		for range pieces {
			v.count.refuse(notSent, "err", err)
		}
	}
}

func (v *vxlan) close() error {
	if v.in != nil {
		v.unlist()
		_ = v.in.Close()
	}
	for _, s := range v.out {
		if s != nil {
			_ = s.conn.Close()
		}
	}
	return nil
}
