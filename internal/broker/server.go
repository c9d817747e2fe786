package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/access"
	"vnic.dev/vnic/internal/confine"
	"vnic.dev/vnic/internal/gpufd"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Bounds of what a broker keeps.
const (
	maxSlow     = 1024
	maxKept     = 256
	maxOwn      = 256
	maxKinds    = 64
	maxMemories = dma.MaxGPUs
)

type server struct {
	conn   *scm.Socket
	config Config
	dialer *gateway.Dialer
	log    *slog.Logger

	slots   chan struct{}
	refused atomic.Uint64

	// Only the goroutine that reads requests uses these.
	sealed   bool
	kept     []kept
	owned    []int // pidfds
	memories []int

	gpus gpufd.Server
	wg   sync.WaitGroup // slow requests, relays, and the goroutines of monitor and give

	mu      sync.Mutex
	cancels map[uint32]context.CancelFunc // of slow requests, by id
	relays  map[netip.AddrPort]*relay     // by the forward's address
}

func serve(c *net.UnixConn, config Config, log *slog.Logger) {
	s := &server{conn: messageSocket(c), config: config, log: log, slots: make(chan struct{}, maxSlow),
		cancels: map[uint32]context.CancelFunc{}, relays: map[netip.AddrPort]*relay{},
		dialer: gateway.NewDialer(gateway.Options{NAT: config.NAT, Policy: config.Policy, Forwards: config.Forwards})}
	s.gpus.Note = func(format string, args ...any) { log.Warn(fmt.Sprintf(format, args...)) }
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		_ = c.Close()
		s.wg.Wait()
		for _, k := range s.kept {
			_ = errors.Join(k.dir.Close(), k.draft.Close())
		}
		s.gpus.Close()
		for _, fd := range append(s.owned, s.memories...) {
			_ = unix.Close(fd)
		}
	}()
	b := make([]byte, maxRequest+1) // one byte more: a message longer than maxRequest fails the check of its length
	for {
		var fds scm.FDs
		n, err := s.conn.ReadFDs(b, &fds)
		if err != nil && !errors.Is(err, errDescriptors) {
			return
		}
		s.handle(ctx, b[:n], &fds, err)
		fds.Close()
	}
}

// handle carries out the request in message b, or begins it if it is slow, and answers it. It ignores a message that is
// shorter than a header. err is an error of the message's descriptors.
func (s *server) handle(ctx context.Context, b []byte, fds *scm.FDs, err error) {
	h, body, ok := header[requestHeader](b)
	if !ok {
		return
	}
	var e entry
	var do task
	if err == nil {
		e, err = element(table, h.Op)
	}
	if err == nil {
		err = e.admits(s.sealed, fds.Len())
	}
	if err == nil {
		do, err = e.decode(body)
	}
	switch {
	case err != nil:
		s.answer(h.ID, nil, nil, err)
	case e.pace == slow:
		s.begin(ctx, h.ID, do)
	default:
		s.run(ctx, h.ID, fds, do)
	}
}

func (s *server) run(ctx context.Context, id uint32, fds *scm.FDs, do task) {
	c := call{fds: fds}
	body, err := do(s, ctx, &c)
	s.answer(id, body, c.out, err)
}

func (s *server) begin(ctx context.Context, id uint32, do task) {
	select {
	case s.slots <- struct{}{}:
	default:
		s.answer(id, nil, nil, unix.EAGAIN)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Dial.Here())
	s.mu.Lock()
	s.cancels[id] = cancel
	s.mu.Unlock()
	s.wg.Go(func() {
		s.run(ctx, id, nil, do)
		s.mu.Lock()
		delete(s.cancels, id)
		s.mu.Unlock()
		cancel()
		<-s.slots
	})
}

// answer sends an answer with err's errno (0: nil) and body, which is nil after an error. If out is not nil, out's
// descriptor goes with the answer, and the function answer closes out.
func (s *server) answer(id uint32, body []byte, out net.Conn, err error) {
	b := append(peer.Append(nil, answerHeader{id, uint32(errnoOf(err))}), body...)
	if out == nil {
		_ = s.conn.WriteFDs(b, nil)
		return
	}
	_ = scm.Control(out, func(fd int) error { return s.conn.WriteFDs(b, []int{fd}) })
	_ = out.Close()
}

func errnoOf(err error) unix.Errno {
	var e unix.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return unix.ETIMEDOUT
	case errors.Is(err, context.Canceled):
		return unix.ECANCELED
	}
	return unix.EIO
}

func element[T any, I ~uint32](list []T, i I) (e T, err error) {
	if uint64(i) >= uint64(len(list)) {
		return e, unix.EINVAL
	}
	return list[i], nil
}

func (s *server) dial(ctx context.Context, to address) (net.Conn, error) {
	return s.dialer.Dial(ctx, "tcp", to.addrPort())
}

func (s *server) openFlow(ctx context.Context, f flow) (*net.UDPConn, error) {
	return s.dialer.OpenFlow(ctx, gateway.Flow{To: f.To.addrPort(), Proto: f.Proto, TTL: f.TTL, DF: f.DF,
		Local: f.Local, Buffer: int(f.Buffer)})
}

func (s *server) openAnswer(ctx context.Context, a answer) (*net.UDPConn, error) {
	listen, sender := a.Listen.addrPort(), a.Sender.addrPort()
	s.mu.Lock()
	relay := s.relays[listen]
	s.mu.Unlock()
	if relay == nil || !relay.heard(sender) {
		return nil, unix.EPERM
	}
	return s.dialer.OpenAnswer(ctx, gateway.Answer{Listen: listen, Sender: sender, Buffer: int(a.Buffer)})
}

func (s *server) dialResolver(ctx context.Context, r resolver) (net.Conn, error) {
	return s.dialer.DialResolver(ctx, map[bool]string{false: "tcp", true: "udp"}[r.UDP], r.Address.addrPort())
}

func (s *server) connect(ctx context.Context, i socketIndex) (net.Conn, error) {
	path, err := element(s.config.Connect, i)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

func (s *server) cancel(id uint32) (none, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[id]; cancel != nil {
		cancel()
	}
	return none{}, nil
}

func (s *server) listen(ctx context.Context, c *call, addr address) (port uint16, err error) {
	host, err := s.dialer.ListenUDP(addr.addrPort())
	if err != nil {
		return 0, err
	}
	ours, theirs, err := scm.MessagePair()
	if err != nil {
		return 0, errors.Join(err, host.Close())
	}
	c.out = theirs
	port = uint16(host.LocalAddr().(*net.UDPAddr).Port)
	l := &relay{host: host, process: ours, seen: map[netip.AddrPort]uint64{}}
	s.mu.Lock()
	s.relays[netip.AddrPortFrom(addr.addrPort().Addr(), port)] = l
	s.mu.Unlock()
	context.AfterFunc(ctx, l.close)
	s.wg.Go(l.run)
	return port, nil
}

func (s *server) resolvers(none) (list []address, err error) {
	for _, a := range s.dialer.Resolvers() {
		list = append(list, toAddress(a))
	}
	return list, nil
}

func (s *server) addrs(none) (list []address, err error) {
	host, err := s.dialer.Addrs()
	for _, a := range host {
		list = append(list, toAddress(netip.AddrPortFrom(a, 0)))
	}
	return list, err
}

func (s *server) oldMemory(m mappedFile) (bool, error) {
	return oldMemory(int(m.PID), m.Dev, m.Ino, s.config.Memory), nil
}

func (s *server) sharing(m mappedFile) (dma.Sharing, error) {
	return dma.SharingOf(int(m.PID), m.Dev, m.Ino), nil
}

func (s *server) refusedCalls(none) (uint64, error) { return s.refused.Load(), nil }

func (s *server) ownProcess(_ context.Context, c *call, _ none) (processIndex, error) {
	return take[processIndex](&s.owned, maxOwn, c)
}

func (s *server) memory(_ context.Context, c *call, _ none) (memoryIndex, error) {
	return take[memoryIndex](&s.memories, maxMemories, c)
}

func take[I ~uint32](list *[]int, most int, c *call) (I, error) {
	if len(*list) == most {
		return 0, unix.EPERM
	}
	*list = append(*list, c.fds.Take(0))
	return I(len(*list) - 1), nil
}

func (s *server) signal(p processSignal) (none, error) {
	const group = 1 << 2 // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9: to the process group that the child leads
	sig := unix.Signal(p.Signal)
	pidfd, err := element(s.owned, p.Process)
	if err == nil && (sig != unix.SIGKILL || unix.PidfdSendSignal(pidfd, sig, nil, group) != nil) {
		err = unix.PidfdSendSignal(pidfd, sig, nil, 0)
	}
	return none{}, err
}

// give starts to send a descriptor of g.Memory to the processes that connect to the request's socket; access.Rule
// decides which.
func (s *server) give(ctx context.Context, c *call, g grant) (none, error) {
	memory, err := element(s.memories, g.Memory)
	if err != nil {
		return none{}, err
	}
	f := os.NewFile(uintptr(c.fds.Take(0)), "socket")
	l, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return none{}, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return none{}, errors.Join(unix.ENOTSOCK, l.Close())
	}
	rule, err := access.ForGroup(g.Path.String(), int(g.Group))
	if err != nil {
		return none{}, errors.Join(err, u.Close())
	}
	s.wg.Go(func() {
		s.gpus.Serve(ctx, u, memory, rule)
		_ = u.Close()
		_ = rule.Close()
	})
	return none{}, nil
}

func (s *server) seal(_ context.Context, c *call, _ none) (none, error) {
	s.sealed = true
	if c.fds.Len() > 0 {
		go s.watch(c.fds.Take(0))
	}
	return none{}, nil
}

func (s *server) watch(listener int) {
	trial, what := s.config.Mode == Log, "sandbox: refused"
	if trial {
		what = "sandbox: would be refused"
	}
	list, logged := calls(os.Getppid(), 0), map[string]bool{}
	err := confine.Watch(listener, trial, func(r confine.Refusal) {
		kind := r.String()
		if trial && r.Nr == unix.SYS_OPENAT {
			kind = r.Opens(list, paths)
		}
		if kind == "" {
			return
		}
		s.refused.Add(1)
		if !logged[kind] && len(logged) < maxKinds {
			logged[kind] = true
			s.log.Warn(what, "call", kind)
		}
	})
	if err != nil {
		s.log.Error("sandbox: refused calls are not counted any more", "err", err)
	}
	_ = unix.Close(listener)
}
