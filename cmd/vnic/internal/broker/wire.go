package broker

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/wire/gateway"
)

// op is what is asked.
type op uint8

const (
	opDialTCP op = iota + 1
	opFlow       // a flowRequest follows
	opAnswer     // an answerRequest follows
	opResolverTCP
	opResolverUDP
	opResolvers
	opAddrs
	opListenUDP
	opConnect   // number: of Config.Connect
	opOldMemory // number: process; dev, ino: of the memory that is not old
	opSharing   // a sharingRequest follows
	opRemove    // number: of those that opKeep has named
	opRename    // number: of those that opDraft has named
	opRefused
	opSignal // number: of those that opOwn has named; ino: SIGTERM or SIGKILL
	opCancel // number: the request that nobody waits for any more

	opKeep    // a file's path follows; number 1: the directory too; before opSeal only
	opDraft   // the same, a 0, and the name that it may be given; a file without a name comes along; before opSeal only
	opOwn     // a pidfd comes along; before opSeal only
	opMonitor // the monitor's socket comes along, another goes back; before opSeal only
	opMemory  // a GPU's memory comes along; before opSeal only
	opGive    // a listener comes along; number: of the memory; ino: the group; its path follows; before opSeal only
	opSeal    // the listener, if there is one, comes along
)

// request is 48 bytes: op 1, IPv4 1, port 2, id 4, number 8, address 16, device 8, inode 8.
type request struct {
	op       op
	id       uint32
	number   uint64
	to       netip.AddrPort
	dev, ino uint64
}

const requestLen = 48

var le = binary.LittleEndian

func (r *request) encode() []byte {
	b := make([]byte, requestLen)
	b[0] = byte(r.op)
	putAddr(b[1:2], b[2:4], b[16:32], r.to)
	le.PutUint32(b[4:], r.id)
	le.PutUint64(b[8:], r.number)
	le.PutUint64(b[32:], r.dev)
	le.PutUint64(b[40:], r.ino)
	return b
}

func (r *request) decode(b []byte) bool {
	if len(b) < requestLen {
		return false
	}
	*r = request{op: op(b[0]), id: le.Uint32(b[4:]), number: le.Uint64(b[8:]), to: addr(b[1:2], b[2:4], b[16:32]),
		dev: le.Uint64(b[32:]), ino: le.Uint64(b[40:])}
	return true
}

// flowRequest asks for a socket of a flow of datagrams. It is addrLen + 9 bytes: whom to, protocol 1, time to live 1,
// DF 1, local port 2, buffer 4.
type flowRequest struct{ gateway.Flow }

const flowLen = addrLen + 9

func (r *flowRequest) encode() []byte {
	b := append(appendAddr(nil, r.To), r.Proto, r.TTL, 0)
	if r.DF {
		b[len(b)-1] = 1
	}
	return le.AppendUint32(le.AppendUint16(b, r.Local), uint32(r.Buffer))
}

func (r *flowRequest) decode(b []byte) bool {
	if len(b) != flowLen || b[addrLen+2] > 1 {
		return false
	}
	f := b[addrLen:]
	r.Flow = gateway.Flow{To: readAddr(b), Proto: f[0], TTL: f[1], DF: f[2] == 1, Local: le.Uint16(f[3:]),
		Buffer: int(le.Uint32(f[5:]))}
	return true
}

// answerRequest asks for a socket at a forward's address that is connected to who has sent to the forward. It is
// 2 addrLen + 4 bytes: where the forward listens, the sender, buffer 4.
type answerRequest struct{ gateway.Answer }

const answerLen = 2*addrLen + 4

func (r *answerRequest) encode() []byte {
	return le.AppendUint32(appendAddr(appendAddr(nil, r.Listen), r.Sender), uint32(r.Buffer))
}

func (r *answerRequest) decode(b []byte) bool {
	if len(b) != answerLen {
		return false
	}
	r.Answer = gateway.Answer{Listen: readAddr(b), Sender: readAddr(b[addrLen:]), Buffer: int(le.Uint32(b[2*addrLen:]))}
	return true
}

// sharingRequest asks how a process has a file mapped (dma.Sharing). It is 24 bytes: process 8, device 8, inode 8.
type sharingRequest struct{ pid, dev, ino uint64 }

const sharingLen = 24

func (r *sharingRequest) encode() []byte {
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(nil, r.pid), r.dev), r.ino)
}

func (r *sharingRequest) decode(b []byte) bool {
	if len(b) != sharingLen {
		return false
	}
	*r = sharingRequest{le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:])}
	return true
}

// reply is 16 bytes: id 4, errno 4, number 8; and addresses of addrLen each.
type reply struct {
	id     uint32
	errno  unix.Errno
	number uint64
	addrs  []netip.AddrPort
	fd     int // -1: none
}

const (
	replyLen = 16
	addrLen  = 19
	maxAddrs = 4096
	maxReply = replyLen + maxAddrs*addrLen
)

func (r *reply) encode() []byte {
	b := make([]byte, replyLen, replyLen+len(r.addrs)*addrLen)
	le.PutUint32(b, r.id)
	le.PutUint32(b[4:], uint32(r.errno))
	le.PutUint64(b[8:], r.number)
	for _, a := range r.addrs {
		b = appendAddr(b, a)
	}
	return b
}

func (r *reply) decode(b []byte) bool {
	if len(b) < replyLen || (len(b)-replyLen)%addrLen != 0 {
		return false
	}
	*r = reply{id: le.Uint32(b), errno: unix.Errno(le.Uint32(b[4:])), number: le.Uint64(b[8:]), fd: -1}
	for b = b[replyLen:]; len(b) > 0; b = b[addrLen:] {
		r.addrs = append(r.addrs, readAddr(b))
	}
	return true
}

// An address is: IPv4 1, port 2, address 16.
func appendAddr(b []byte, a netip.AddrPort) []byte {
	var x [addrLen]byte
	putAddr(x[:1], x[1:3], x[3:], a)
	return append(b, x[:]...)
}

func readAddr(b []byte) netip.AddrPort { return addr(b[:1], b[1:3], b[3:addrLen]) }

func putAddr(is4, port, ip []byte, a netip.AddrPort) {
	if !a.Addr().IsValid() {
		return
	}
	if a.Addr().Is4() {
		is4[0] = 1
	}
	le.PutUint16(port, a.Port())
	as16 := a.Addr().As16()
	copy(ip, as16[:])
}

func addr(is4, port, ip []byte) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(ip))
	if is4[0] != 0 {
		a = a.Unmap()
	}
	return netip.AddrPortFrom(a, le.Uint16(port))
}

// pair makes a connected pair of sockets that keep the bounds of messages.
func pair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if a, err = conn(fds[0]); err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	if b, err = conn(fds[1]); err != nil {
		_ = a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// conn makes a connection of a descriptor, which it takes.
func conn(fd int) (*net.UnixConn, error) {
	c, err := fileConn(fd)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("not a Unix domain socket")
	}
	return u, nil
}

func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	return net.FileConn(f)
}

// receive reads a message, and at most one descriptor with it, -1: none.
func receive(c *net.UnixConn, b []byte) (n, fd int, err error) {
	var oob [64]byte
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob[:])
	var fds scm.FDs
	defer fds.Close()
	if fd = -1; oobn > 0 && fds.Collect(oob[:oobn], 1) == nil && fds.Len() == 1 {
		fd = fds.Take(0)
	}
	return n, fd, err
}
