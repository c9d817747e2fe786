package broker

import (
	"bytes"
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
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Client is the confined process's end of the connection to its broker, also before the process is confined. It is safe
// for concurrent use.
type Client struct {
	conn  *scm.Socket
	child *proc.Child
	ended chan struct{}

	mode atomic.Pointer[string] // set when Confine has succeeded

	mu    sync.Mutex
	next  uint32
	waits map[uint32]chan reply
}

var (
	_ gateway.Outside = (*Client)(nil)

	// ErrGone means that the broker has ended, or that the Client was closed.
	ErrGone = errors.New("the process outside of the sandbox, which opens, connects and ends QEMUs for this one, " +
		"has ended")
)

func newClient(c *net.UnixConn) *Client {
	k := &Client{conn: messageSocket(c), ended: make(chan struct{}), waits: map[uint32]chan reply{}}
	go k.read()
	return k
}

type reply struct {
	errno unix.Errno
	body  []byte
	fd    int // -1: none
}

func (k *Client) read() {
	defer close(k.ended)
	b := make([]byte, headerLen+maxBody)
	for {
		var fds scm.FDs
		n, err := k.conn.ReadFDs(b, &fds)
		if err != nil && !errors.Is(err, errDescriptors) {
			return
		}
		if h, body, ok := header[answerHeader](b[:n]); ok {
			k.mu.Lock()
			wait := k.waits[h.ID]
			delete(k.waits, h.ID)
			k.mu.Unlock()
			if wait != nil {
				r := reply{unix.Errno(h.Errno), bytes.Clone(body), -1}
				if fds.Len() > 0 {
					r.fd = fds.Take(0)
				}
				wait <- r
			}
		}
		fds.Close()
	}
}

func (k *Client) ask(ctx context.Context, message func(id uint32) []byte, fds []int) (reply, error) {
	wait := make(chan reply, 1)
	k.mu.Lock()
	k.next++
	id := k.next
	k.waits[id] = wait
	k.mu.Unlock()
	err := k.conn.WriteFDs(message(id), fds)
	if err == nil {
		select {
		case r := <-wait:
			if r.errno != 0 {
				return reply{fd: -1}, os.NewSyscallError("broker", r.errno)
			}
			return r, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-k.ended:
			err = ErrGone
		}
	}
	k.mu.Lock()
	_, waits := k.waits[id]
	delete(k.waits, id)
	k.mu.Unlock()
	if !waits {
		scm.Close((<-wait).fd)
	} else {
		_ = k.conn.WriteFDs(opCancel.message(0, id), nil) // nobody waits for the answer (id 0)
	}
	return reply{fd: -1}, err
}

func get[C net.Conn, Q, A any](ctx context.Context, k *Client, r request[Q, A], q Q, fds ...int) (c C, a A, err error) {
	a, fd, err := r.ask(ctx, k, q, fds...)
	if err == nil && fd < 0 {
		err = errors.New("broker: no descriptor left")
	}
	if err == nil {
		c, err = scm.Conn[C](fd)
	}
	return c, a, err
}

// Dial implements gateway.Outside.
func (k *Client) Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("broker: connections of %s: %w", network, unix.EPROTONOSUPPORT)
	}
	c, _, err := get[net.Conn](ctx, k, opDial, toAddress(to))
	return c, err
}

// OpenFlow implements gateway.Outside.
func (k *Client) OpenFlow(ctx context.Context, f gateway.Flow) (*net.UDPConn, error) {
	c, _, err := get[*net.UDPConn](ctx, k, opFlow,
		flow{toAddress(f.To), f.Proto, f.TTL, f.DF, f.Local, uint32(f.Buffer)})
	return c, err
}

// OpenAnswer implements gateway.Outside.
func (k *Client) OpenAnswer(ctx context.Context, a gateway.Answer) (*net.UDPConn, error) {
	c, _, err := get[*net.UDPConn](ctx, k, opAnswer, answer{toAddress(a.Listen), toAddress(a.Sender), uint32(a.Buffer)})
	return c, err
}

// DialResolver implements gateway.Outside.
func (k *Client) DialResolver(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	c, _, err := get[net.Conn](ctx, k, opResolver, resolver{toAddress(to), network == "udp"})
	return c, err
}

// Resolvers implements gateway.Outside.
func (k *Client) Resolvers() []netip.AddrPort {
	list, _ := opResolvers.quick(k, none{})
	out := make([]netip.AddrPort, len(list))
	for i, a := range list {
		out[i] = a.addrPort()
	}
	return out
}

// Addrs implements gateway.Outside.
func (k *Client) Addrs() ([]netip.Addr, error) {
	list, err := opAddrs.quick(k, none{})
	out := make([]netip.Addr, len(list))
	for i, a := range list {
		out[i] = a.addrPort().Addr()
	}
	return out, err
}

// ListenUDP implements gateway.Outside.
func (k *Client) ListenUDP(addr netip.AddrPort) (gateway.Datagrams, error) {
	ctx, cancel := soon()
	defer cancel()
	c, port, err := get[*net.UnixConn](ctx, k, opListen, toAddress(addr))
	if err != nil {
		return nil, err
	}
	return &relayed{c: c, listen: netip.AddrPortFrom(addr.Addr(), port)}, nil
}

// Connect makes the broker connect to the Unix socket Config.Connect[i], and returns the connection.
func (k *Client) Connect(ctx context.Context, i int) (*net.UnixConn, error) {
	c, _, err := get[*net.UnixConn](ctx, k, opConnect, socketIndex(i))
	return c, err
}

// OldMemory reports whether a process has mapped memfds whose names begin with prefix, but not the memfd memory. The
// broker examines the process, with Config.Memory as the prefix; if k is nil, this process does. If memory is nil, or
// the broker does not answer, the result is false.
func (k *Client) OldMemory(pid int, memory *os.File, prefix string) bool {
	var st unix.Stat_t
	if memory == nil || unix.Fstat(int(memory.Fd()), &st) != nil {
		return false
	}
	if k == nil {
		return oldMemory(pid, uint64(st.Dev), st.Ino, prefix)
	}
	old, err := opOldMemory.quick(k, mappedFile{int64(pid), uint64(st.Dev), st.Ino})
	return err == nil && old
}

// Sharing returns the result of dma.SharingOf in the broker, or if k is nil in this process. If the broker does not
// answer, it is dma.SharingUnknown.
func (k *Client) Sharing(pid int, dev, ino uint64) dma.Sharing {
	if k == nil {
		return dma.SharingOf(pid, dev, ino)
	}
	s, err := opSharing.quick(k, mappedFile{int64(pid), dev, ino})
	if err != nil || s > dma.SharingOff {
		return dma.SharingUnknown
	}
	return s
}

// Keep names an existing file to the broker; it must be called before [Client.Confine]. Later, remove makes the broker
// remove the file if its name still leads to it and it has not changed, and if dir is set also its directory, if that
// is empty then.
func (k *Client) Keep(path string, dir bool) (remove func() error, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	i, err := opKeep.quick(k, keptFile{toText(path), dir})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return later(k, opRemove, i), nil
}

// Draft names a draft file to the broker; it must be called before [Client.Confine]. Later, rename makes the broker
// give the draft its name, in place of an existing file; remove makes it remove a draft that still has its temporary
// name. name is an absolute path. temp is the draft's path now, in name's directory; "": the draft has no name, and f
// is its open file.
func (k *Client) Draft(f *os.File, temp, name string) (rename, remove func() error, err error) {
	var fds []int
	dir, base := filepath.Split(name)
	if temp == "" {
		fds = []int{int(f.Fd())}
	} else {
		dir, temp = filepath.Split(temp)
	}
	i, err := opDraft.quick(k, draftFile{toText(dir), toText(temp), toText(base)}, fds...)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return later(k, opRename, i), later(k, opRemove, i), nil
}

func later[Q any](k *Client, r request[Q, none], q Q) func() error {
	return func() error {
		_, err := r.quick(k, q)
		return err
	}
}

// Own names a child process to the broker; it must be called before [Client.Confine]. signal makes the broker send the
// child SIGTERM or SIGKILL; other signals are EINVAL. SIGKILL goes to the process group that the child leads, if there
// is one and the kernel supports that (Linux 6.9), else to the child.
func (k *Client) Own(pid int) (signal func(syscall.Signal) error, err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return func(syscall.Signal) error { return unix.ESRCH }, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	i, err := opOwn.quick(k, none{}, fd)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return func(sig syscall.Signal) error {
		_, err := opSignal.quick(k, processSignal{i, int32(sig)})
		return err
	}, nil
}

// Monitor passes the socket of a QEMU's monitor to the broker; it must be called before [Client.Confine]. It returns
// another socket, through which only the commands in Config.Monitor reach the QEMU. The caller closes both.
func (k *Client) Monitor(monitor net.Conn) (instead net.Conn, err error) {
	ctx, cancel := soon()
	defer cancel()
	err = scm.Control(monitor, func(fd int) (err error) {
		instead, _, err = get[net.Conn](ctx, k, opMonitor, none{}, fd)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("monitor: %w", err)
	}
	return instead, nil
}

// Give makes the broker send a descriptor of a GPU's memory to each process that connects to l, which listens at path,
// if access.Rule admits the process: members of group, vnic's user and root. Give must be called before
// [Client.Confine].
// The caller still owns l and memory; when it closes them, the broker goes on.
func (k *Client) Give(l *net.UnixListener, path string, memory *os.File, group int) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	i, err := opMemory.quick(k, none{}, int(memory.Fd()))
	if err == nil {
		err = scm.Control(l, func(fd int) error {
			_, err := opGive.quick(k, grant{i, uint32(group), toText(path)}, fd)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), limits.Broker.Here())
}

// State returns the mode that [Client.Confine] got, and the result of [Client.Refused]; "" and 0 before Confine has
// succeeded.
func (k *Client) State() (mode string, refused uint64) {
	if m := k.mode.Load(); m != nil {
		return *m, k.Refused()
	}
	return "", 0
}

// Refused returns how many system calls of this process the broker has counted: in mode On calls that seccomp has
// refused, in mode Log calls that seccomp or Landlock would have refused. If the broker does not answer, it is 0.
func (k *Client) Refused() uint64 {
	n, _ := opRefused.quick(k, none{})
	return n
}

// Guard returns a context that ends when ctx ends, when cancel is called, or when the broker ends: without a broker a
// confined process can neither open connections nor end its QEMUs. If the broker has ended, the context's cause wraps
// [ErrGone], and the broker's exit error if there is one. A nil Client has no broker that could end. Call cancel before
// [Client.Close].
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

func (k *Client) gone() error {
	if k.child != nil && k.child.Ends(limits.Broker.Here()) && k.child.Err() != nil {
		return fmt.Errorf("%w: %w", ErrGone, k.child.Err())
	}
	return ErrGone
}

// Close closes the connection, which ends the broker, and waits for the broker's end, limits.Broker at most; after that
// it returns an error. Close of a nil Client does nothing.
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
