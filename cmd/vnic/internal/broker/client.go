package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Client is a process's way to its broker. Its methods can be used by several goroutines.
type Client struct {
	conn  *net.UnixConn
	child *proc.Child
	ended chan struct{} // the broker has, or has hung up

	mode atomic.Pointer[string] // nil: Confine has not succeeded

	mu    sync.Mutex
	next  uint32
	waits map[uint32]chan reply
}

var (
	_ gateway.Outside = (*Client)(nil)

	// ErrGone is what everybody hears who needs a broker that has ended.
	ErrGone = errors.New("the process outside of the sandbox, which opens, connects and ends QEMUs for this one, " +
		"has ended")
)

func newClient(c *net.UnixConn) *Client {
	k := &Client{conn: c, ended: make(chan struct{}), waits: map[uint32]chan reply{}}
	go k.read()
	return k
}

func (k *Client) read() {
	defer close(k.ended)
	b := make([]byte, maxReply)
	for {
		n, fd, err := receive(k.conn, b)
		if err != nil || n == 0 {
			return
		}
		var r reply
		if !r.decode(b[:n]) {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
			continue
		}
		r.fd = fd
		k.mu.Lock()
		wait := k.waits[r.id]
		delete(k.waits, r.id)
		k.mu.Unlock()
		if wait != nil {
			wait <- r
		} else if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// ask waits for an answer; the descriptor in it is the caller's.
func (k *Client) ask(ctx context.Context, q request, more ...byte) (reply, error) {
	return k.askWith(ctx, q, -1, more...)
}

// askWith has a descriptor go with the question, unless it is -1: before Confine only.
func (k *Client) askWith(ctx context.Context, q request, fd int, more ...byte) (reply, error) {
	wait := make(chan reply, 1)
	k.mu.Lock()
	k.next++
	q.id = k.next
	k.waits[q.id] = wait
	k.mu.Unlock()
	var err error
	if b := append(q.encode(), more...); fd < 0 {
		_, err = k.conn.Write(b)
	} else {
		_, _, err = k.conn.WriteMsgUnix(b, unix.UnixRights(fd), nil)
	}
	if err == nil {
		select {
		case r := <-wait:
			if r.errno != 0 {
				return r, os.NewSyscallError("broker", r.errno)
			}
			return r, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-k.ended:
			err = ErrGone
		}
	}
	k.mu.Lock()
	_, waits := k.waits[q.id]
	delete(k.waits, q.id)
	k.mu.Unlock()
	if !waits { // it came, or comes just now
		if r := <-wait; r.fd >= 0 {
			_ = unix.Close(r.fd)
		}
		return reply{}, err
	}
	cancel := request{op: opCancel, number: uint64(q.id)}
	_, _ = k.conn.Write(cancel.encode())
	return reply{}, err
}

// quick is ask for what takes no time.
func (k *Client) quick(q request, more ...byte) (reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limits.Broker.Here())
	defer cancel()
	return k.ask(ctx, q, more...)
}

// socket asks for one.
func (k *Client) socket(ctx context.Context, q request, more ...byte) (net.Conn, error) {
	r, err := k.ask(ctx, q, more...)
	if err != nil {
		return nil, err
	}
	if r.fd < 0 {
		return nil, errors.New("broker: no descriptor left")
	}
	return fileConn(r.fd)
}

func ofNetwork(network string, tcp, udp op) op {
	if network == "udp" {
		return udp
	}
	return tcp
}

// Dial is gateway.Outside's.
func (k *Client) Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("broker: connections of %s: %w", network, unix.EPROTONOSUPPORT)
	}
	return k.socket(ctx, request{op: opDialTCP, to: to})
}

// OpenFlow is gateway.Outside's.
func (k *Client) OpenFlow(ctx context.Context, f gateway.Flow) (*net.UDPConn, error) {
	r := flowRequest{f}
	return k.datagrams(ctx, request{op: opFlow}, r.encode())
}

// OpenAnswer is gateway.Outside's.
func (k *Client) OpenAnswer(ctx context.Context, a gateway.Answer) (*net.UDPConn, error) {
	r := answerRequest{a}
	return k.datagrams(ctx, request{op: opAnswer}, r.encode())
}

// datagrams asks for a socket of datagrams.
func (k *Client) datagrams(ctx context.Context, q request, more []byte) (*net.UDPConn, error) {
	c, err := k.socket(ctx, q, more...)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("broker: %T instead of a socket of datagrams", c), c.Close())
	}
	return u, nil
}

// DialResolver is gateway.Outside's.
func (k *Client) DialResolver(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	return k.socket(ctx, request{op: ofNetwork(network, opResolverTCP, opResolverUDP), to: to})
}

// Resolvers is gateway.Outside's.
func (k *Client) Resolvers() []netip.AddrPort {
	r, _ := k.quick(request{op: opResolvers})
	return r.addrs
}

// Addrs is gateway.Outside's.
func (k *Client) Addrs() ([]netip.Addr, error) {
	r, err := k.quick(request{op: opAddrs})
	out := make([]netip.Addr, len(r.addrs))
	for i, a := range r.addrs {
		out[i] = a.Addr()
	}
	return out, err
}

// ListenUDP is gateway.Outside's.
func (k *Client) ListenUDP(at netip.AddrPort) (gateway.Datagrams, error) {
	r, err := k.quick(request{op: opListenUDP, to: at})
	if err != nil {
		return nil, err
	}
	c, err := conn(r.fd)
	if err != nil {
		return nil, err
	}
	return &relayed{c: c, at: netip.AddrPortFrom(at.Addr(), uint16(r.number))}, nil
}

// Connect connects to a socket of Config.Connect.
func (k *Client) Connect(ctx context.Context, i int) (*net.UnixConn, error) {
	c, err := k.socket(ctx, request{op: opConnect, number: uint64(i)})
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("broker: not a Unix domain socket"), c.Close())
	}
	return u, nil
}

// OldMemory says whether a process has files mapped of which Config.Memory is how the name begins,
// and not this one.
func (k *Client) OldMemory(pid int, own *os.File) bool {
	var st unix.Stat_t
	if own == nil || unix.Fstat(int(own.Fd()), &st) != nil {
		return false
	}
	r, err := k.quick(request{op: opOldMemory, number: uint64(pid), dev: uint64(st.Dev), ino: st.Ino})
	return err == nil && r.number != 0
}

// Sharing is dma.SharingOf, by the broker; without one (k is nil) by this process.
func (k *Client) Sharing(pid int, dev, ino uint64) dma.Sharing {
	if k == nil {
		return dma.SharingOf(pid, dev, ino)
	}
	q := sharingRequest{uint64(pid), dev, ino}
	r, err := k.quick(request{op: opSharing}, q.encode()...)
	if err != nil || r.number > uint64(dma.SharingOff) {
		return dma.SharingUnknown
	}
	return dma.Sharing(r.number)
}

// Keep names a file that is to be removed later, before Confine; dir: its directory too, if it is
// empty then.
func (k *Client) Keep(path string, dir bool) (remove func() error, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	q := request{op: opKeep}
	if dir {
		q.number = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Broker.Here())
	defer cancel()
	r, err := k.ask(ctx, q, []byte(path)...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return func() error {
		_, err := k.quick(request{op: opRemove, number: r.number})
		return err
	}, nil
}

// Draft names a file that is to be given a name later, in place of what has that name then, or to be removed, before
// Confine. temp is its name now, in the same directory; "": it has none.
func (k *Client) Draft(f *os.File, temp, name string) (rename, remove func() error, err error) {
	dir, base := filepath.Split(name)
	var r reply
	if temp == "" {
		r, err = k.hand(request{op: opDraft}, int(f.Fd()), []byte(dir+"\x00"+base)...)
	} else {
		r, err = k.quick(request{op: opDraft}, []byte(temp+"\x00"+base)...)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	later := func(o op) func() error {
		return func() error {
			_, err := k.quick(request{op: o, number: r.number})
			return err
		}
	}
	return later(opRename), later(opRemove), nil
}

// Own names a process of ours that is to be ended later, before Confine; signal sends it SIGTERM or
// SIGKILL, the latter to what it has started, too.
func (k *Client) Own(pid int) (signal func(syscall.Signal) error, err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) { // it has ended already, and has been waited for
		return func(syscall.Signal) error { return unix.ESRCH }, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	r, err := k.hand(request{op: opOwn}, fd)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return func(sig syscall.Signal) error {
		_, err := k.quick(request{op: opSignal, number: r.number, ino: uint64(sig)})
		return err
	}, nil
}

// Monitor gives the socket of a QEMU's monitor away, before Confine, and gets another instead, which
// leads there for the commands of Config.Monitor. The first is the caller's to close.
func (k *Client) Monitor(monitor net.Conn) (net.Conn, error) {
	fd, err := dup(monitor)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	r, err := k.hand(request{op: opMonitor}, fd)
	if err == nil && r.fd < 0 {
		err = errors.New("broker: no descriptor left")
	}
	if err != nil {
		return nil, fmt.Errorf("monitor: %w", err)
	}
	return fileConn(r.fd)
}

// Give has the broker give a GPU's memory to those of a group who connect to l, whose name is path, before
// Confine. Both stay the caller's, l to be closed.
func (k *Client) Give(l *net.UnixListener, path string, memory *os.File, group int) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	r, err := k.hand(request{op: opMemory}, int(memory.Fd()))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	e := raw.Control(func(fd uintptr) {
		_, err = k.hand(request{op: opGive, number: r.number, ino: uint64(group)}, int(fd), []byte(path)...)
	})
	if err = errors.Join(e, err); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// hand is quick with a descriptor.
func (k *Client) hand(q request, fd int, more ...byte) (reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limits.Broker.Here())
	defer cancel()
	return k.askWith(ctx, q, fd, more...)
}

// State is the mode of Confine, "" before it has succeeded, and how many system calls of this process
// were refused since, or would be.
func (k *Client) State() (mode string, refused uint64) {
	if m := k.mode.Load(); m != nil {
		return *m, k.Refused()
	}
	return "", 0
}

// Refused is how many system calls of this process were refused, or would be.
func (k *Client) Refused() uint64 {
	r, _ := k.quick(request{op: opRefused})
	return r.number
}

// Guard gives a context that ends when the broker does, which it does not by itself, with an ErrGone that
// says how: without a broker this process can do nothing new, nor end what it has started. cancel is called
// before Close.
func (k *Client) Guard(ctx context.Context) (guarded context.Context, cancel context.CancelFunc) {
	guarded, end := context.WithCancelCause(ctx)
	if k == nil {
		return guarded, func() { end(nil) }
	}
	go func() {
		select {
		case <-guarded.Done():
		case <-k.ended:
			end(k.gone())
		}
	}()
	return guarded, func() { end(nil) }
}

// gone is ErrGone with how the broker has ended.
func (k *Client) gone() error {
	if k.child == nil || !k.child.Ends(limits.Broker.Here()) {
		return ErrGone
	}
	if err := k.child.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return ErrGone
}

// Close ends the broker, and waits for it.
func (k *Client) Close() error {
	if k == nil {
		return nil
	}
	_ = k.conn.Close()
	<-k.ended
	if k.child != nil && !k.child.Ends(limits.Broker.Here()) {
		return errors.New("the broker does not end")
	}
	return nil
}

// relayed is a socket that the broker keeps: each message has an address before it.
type relayed struct {
	c    *net.UnixConn
	at   netip.AddrPort
	lost atomic.Uint64
}

// maxDatagram is the longest of UDP.
const maxDatagram = 64 << 10

func (r *relayed) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	m := make([]byte, addrLen+maxDatagram)
	for {
		n, err := r.c.Read(m)
		if err != nil {
			return 0, netip.AddrPort{}, err
		}
		if n < addrLen { // the broker has hung up
			return 0, netip.AddrPort{}, net.ErrClosed
		}
		from := readAddr(m)
		if !from.Addr().IsUnspecified() { // which nobody sends from
			return copy(b, m[addrLen:n]), from, nil
		}
		if n == addrLen+8 {
			r.lost.Store(le.Uint64(m[addrLen:]))
		}
	}
}

// Lost is gateway.Datagrams'.
func (r *relayed) Lost() uint64 { return r.lost.Load() }

func (r *relayed) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if _, err := r.c.Write(append(appendAddr(make([]byte, 0, addrLen+len(b)), to), b...)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (r *relayed) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(r.at) }
func (r *relayed) Close() error        { return r.c.Close() }
