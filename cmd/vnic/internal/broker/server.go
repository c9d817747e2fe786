package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/cmd/vnic/internal/access"
	"vnic.dev/vnic/cmd/vnic/internal/gpufd"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/confine"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/outfile"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Bounds of what a process can have its broker hold.
const (
	maxUnderWay = 1024 // requests
	maxKept     = 256  // files
	maxOwn      = 256  // processes
	maxKinds    = 64   // of refused calls, that make a line each
	maxMemories = dma.MaxGPUs
)

// server is a broker.
type server struct {
	conn   *net.UnixConn
	config Config
	dialer *gateway.Dialer
	log    *slog.Logger

	slots   chan struct{} // of requests under way
	refused atomic.Uint64

	sealed bool   // of the reader
	kept   []kept // likewise
	own    []int  // likewise: pidfds of processes that may be ended

	memories []int        // likewise: of GPUs
	gpus     gpufd.Server // who gives these away

	wg sync.WaitGroup // of requests under way, and relays

	mu      sync.Mutex
	cancels map[uint32]context.CancelFunc
	kinds   map[string]bool // of refused calls, that were told of
	relays  map[netip.AddrPort]*relay
}

// kept is a file that may be removed.
type kept struct {
	dir  *os.File
	name string
	to   string // the name in dir that it may be given; "": none
	st   unix.Stat_t
	path string // of the directory, if that may be removed; "": it may not

	file *os.File // a draft that has no name yet; nil: it has
}

// serve answers until the process hangs up.
func serve(c *net.UnixConn, config Config, log *slog.Logger) {
	s := &server{conn: c, config: config, log: log, slots: make(chan struct{}, maxUnderWay),
		cancels: map[uint32]context.CancelFunc{}, kinds: map[string]bool{},
		relays: map[netip.AddrPort]*relay{},
		dialer: gateway.NewDialer(gateway.Options{NAT: config.NAT, Policy: config.Policy, Forwards: config.Forwards})}
	s.gpus.Note = func(format string, args ...any) { log.Warn(fmt.Sprintf(format, args...)) }
	ctx, cancel := context.WithCancel(context.Background())
	defer func() {
		cancel()
		_ = c.Close() // nobody reads answers any more
		s.wg.Wait()
		for _, k := range s.kept {
			_ = errors.Join(k.dir.Close(), k.file.Close())
		}
		for _, fd := range s.own {
			_ = unix.Close(fd)
		}
		s.gpus.Close()
		for _, fd := range s.memories {
			_ = unix.Close(fd)
		}
	}()
	b := make([]byte, requestLen+unix.PathMax)
	for {
		n, fd, err := receive(c, b)
		if err != nil || n == 0 {
			return
		}
		var q request
		if q.decode(b[:n]) {
			fd = s.handle(ctx, q, b[requestLen:n], fd)
		}
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// handle answers a request, or has it answered. It gives back the descriptor unless it keeps it.
func (s *server) handle(ctx context.Context, q request, more []byte, fd int) int {
	r := reply{id: q.id, fd: -1}
	switch q.op {
	case opCancel:
		s.mu.Lock()
		defer s.mu.Unlock()
		if cancel := s.cancels[uint32(q.number)]; cancel != nil {
			cancel()
		}
		return fd
	case opDialTCP, opFlow, opAnswer, opResolverTCP, opResolverUDP, opConnect:
		s.begin(ctx, q, slices.Clone(more))
		return fd
	case opListenUDP:
		s.listen(ctx, q, &r)
	case opResolvers:
		r.addrs = s.dialer.Resolvers()
	case opAddrs:
		list, err := s.dialer.Addrs()
		r.errno = errnoOf(err)
		for _, a := range list {
			r.addrs = append(r.addrs, netip.AddrPortFrom(a, 0))
		}
		if len(r.addrs) > maxAddrs { // then nobody knows, and all addresses count for the host's
			r.addrs, r.errno = nil, unix.E2BIG
		}
	case opOldMemory:
		if oldMemory(int(q.number), q.dev, q.ino, s.config.Memory) {
			r.number = 1
		}
	case opSharing:
		var sr sharingRequest
		if !sr.decode(more) {
			r.errno = unix.EINVAL
			break
		}
		r.number = uint64(dma.SharingOf(int(sr.pid), sr.dev, sr.ino))
	case opRefused:
		r.number = s.refused.Load()
	case opOwn:
		fd = s.take(&s.own, maxOwn, fd, &r)
	case opMonitor:
		if s.sealed || fd < 0 {
			r.errno = unix.EPERM
		} else {
			s.monitor(ctx, fd, &r)
			fd = -1
		}
	case opMemory:
		fd = s.take(&s.memories, maxMemories, fd, &r)
	case opGive:
		switch {
		case s.sealed || fd < 0:
			r.errno = unix.EPERM
		case q.number >= uint64(len(s.memories)):
			r.errno = unix.EINVAL
		default:
			r.errno = errnoOf(s.give(ctx, fd, s.memories[q.number], int(q.ino), string(more)))
			fd = -1
		}
	case opSignal:
		switch sig := unix.Signal(q.ino); {
		case q.number >= uint64(len(s.own)), sig != unix.SIGTERM && sig != unix.SIGKILL:
			r.errno = unix.EINVAL
		default:
			r.errno = errnoOf(sendSignal(s.own[q.number], sig))
		}
	case opKeep, opDraft:
		if s.sealed || len(s.kept) == maxKept {
			r.errno = unix.EPERM
		} else {
			k, err := keep(string(more), q.number == 1, q.op == opDraft, q.op == opDraft && fd >= 0)
			if r.errno = errnoOf(err); err == nil {
				if q.op == opDraft && fd >= 0 {
					k.file, fd = os.NewFile(uintptr(fd), k.to), -1
				}
				r.number = uint64(len(s.kept))
				s.kept = append(s.kept, k)
			}
		}
	case opRemove:
		if q.number >= uint64(len(s.kept)) {
			r.errno = unix.EINVAL
		} else {
			r.errno = errnoOf(s.kept[q.number].remove())
		}
	case opRename:
		if q.number >= uint64(len(s.kept)) {
			r.errno = unix.EINVAL
		} else {
			r.errno = errnoOf(s.kept[q.number].rename())
		}
	case opSeal:
		if s.sealed {
			r.errno = unix.EPERM
			break
		}
		if s.sealed = true; fd >= 0 {
			go s.watch(fd)
			fd = -1
		}
	default:
		r.errno = unix.EINVAL
	}
	s.answer(&r)
	return fd
}

// take keeps a descriptor that came along, under the number that it answers with. It returns the one that is left, -1.
func (s *server) take(kept *[]int, most, fd int, r *reply) (left int) {
	if s.sealed || len(*kept) == most || fd < 0 {
		r.errno = unix.EPERM
		return fd
	}
	r.number = uint64(len(*kept))
	*kept = append(*kept, fd)
	return -1
}

// give has a GPU's memory given to those who connect to a listener, fd, and may.
func (s *server) give(ctx context.Context, fd, memory, group int, path string) error {
	f := os.NewFile(uintptr(fd), "socket")
	l, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return errors.Join(unix.ENOTSOCK, l.Close())
	}
	rule, err := access.ForGroup(path, group)
	if err != nil {
		return errors.Join(err, u.Close())
	}
	s.wg.Go(func() {
		s.gpus.Serve(ctx, u, memory, rule)
		_ = u.Close()
		_ = rule.Close()
	})
	return nil
}

// sendSignal sends SIGTERM to a process, SIGKILL to what it has started, too.
func sendSignal(pidfd int, sig unix.Signal) error {
	const group = 1 << 2 // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9: nobody else is in it (internal/proc)
	if sig == unix.SIGKILL && unix.PidfdSendSignal(pidfd, sig, nil, group) == nil {
		return nil
	}
	return unix.PidfdSendSignal(pidfd, sig, nil, 0)
}

// answer sends a reply, and closes its descriptor.
func (s *server) answer(r *reply) {
	var oob []byte
	if r.fd >= 0 {
		oob = unix.UnixRights(r.fd)
		defer unix.Close(r.fd)
	}
	_, _, _ = s.conn.WriteMsgUnix(r.encode(), oob, nil)
}

// begin makes a connection on a goroutine, as long as there are not too many.
func (s *server) begin(ctx context.Context, q request, more []byte) {
	select {
	case s.slots <- struct{}{}:
	default:
		s.answer(&reply{id: q.id, errno: unix.EAGAIN, fd: -1})
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Dial.Here())
	s.mu.Lock()
	s.cancels[q.id] = cancel
	s.mu.Unlock()
	s.wg.Go(func() {
		defer func() { <-s.slots }()
		r := reply{id: q.id, fd: -1}
		c, err := s.dial(ctx, q, more)
		if err == nil {
			r.fd, err = dup(c)
			_ = c.Close()
		}
		r.errno = errnoOf(err)
		s.mu.Lock()
		delete(s.cancels, q.id)
		s.mu.Unlock()
		cancel()
		s.answer(&r)
	})
}

func (s *server) dial(ctx context.Context, q request, more []byte) (net.Conn, error) {
	switch q.op {
	case opDialTCP:
		return s.dialer.Dial(ctx, "tcp", q.to)
	case opFlow:
		var r flowRequest
		if !r.decode(more) {
			return nil, unix.EINVAL
		}
		return asConn(s.dialer.OpenFlow(ctx, r.Flow))
	case opAnswer:
		var r answerRequest
		if !r.decode(more) {
			return nil, unix.EINVAL
		}
		return asConn(s.openAnswer(ctx, &r))
	case opResolverTCP:
		return s.dialer.DialResolver(ctx, "tcp", q.to)
	case opResolverUDP:
		return s.dialer.DialResolver(ctx, "udp", q.to)
	}
	if q.number >= uint64(len(s.config.Connect)) {
		return nil, unix.EINVAL
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", s.config.Connect[q.number])
}

// asConn is a connection as an interface that is nil where there is none.
func asConn(c *net.UDPConn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// openAnswer makes a socket at a forward's address, to who has sent to it.
func (s *server) openAnswer(ctx context.Context, r *answerRequest) (*net.UDPConn, error) {
	s.mu.Lock()
	relay := s.relays[r.Listen]
	s.mu.Unlock()
	if relay == nil || !relay.knows(r.Sender) {
		return nil, unix.EPERM
	}
	return s.dialer.OpenAnswer(ctx, r.Answer)
}

// dup gives another descriptor of a connection.
func dup(c net.Conn) (fd int, err error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return -1, unix.EINVAL
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd = -1
	e := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(e, err)
}

// errnoOf is what is passed on of an error.
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

// watch counts what is refused, and says each kind once.
func (s *server) watch(listener int) {
	trial := s.config.Mode == Log
	list := calls(os.Getppid(), 0)
	err := confine.Watch(listener, trial, func(r confine.Refusal) {
		kind := r.String()
		if trial && r.Nr == unix.SYS_OPENAT {
			kind = r.Opens(list, paths)
		}
		if kind == "" { // Landlock would permit it
			return
		}
		s.refused.Add(1)
		s.mu.Lock()
		known := s.kinds[kind] || len(s.kinds) == maxKinds
		if !known {
			s.kinds[kind] = true
		}
		s.mu.Unlock()
		if !known {
			what := "sandbox: refused"
			if trial {
				what = "sandbox: would be refused"
			}
			s.log.Warn(what, "call", kind)
		}
	})
	if err != nil {
		s.log.Error("sandbox: refused calls are not counted any more", "err", err)
	}
	_ = unix.Close(listener)
}

// keep looks at a file that may be removed later, or, a draft, be given a name in its directory: one that has none yet
// is known by its descriptor.
func keep(path string, dir, draft, nameless bool) (k kept, err error) {
	to := ""
	if draft {
		path, to, _ = strings.Cut(path, "\x00")
		if to == "" || to == "." || to == ".." || strings.ContainsAny(to, "/\x00") {
			return k, unix.EINVAL
		}
	}
	parent, name := filepath.Split(path)
	if !filepath.IsAbs(path) || (name == "") != nameless || strings.ContainsRune(path, 0) {
		return k, unix.EINVAL
	}
	fd, err := unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return k, err
	}
	k = kept{dir: os.NewFile(uintptr(fd), parent), name: name, to: to}
	if dir {
		k.path = parent
	}
	if nameless {
		return k, nil
	}
	if err := unix.Fstatat(fd, name, &k.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return k, errors.Join(err, k.dir.Close())
	}
	return k, nil
}

// same says whether it is still the same. Drafts have been written since.
func (k *kept) same() bool {
	var st unix.Stat_t
	err := unix.Fstatat(int(k.dir.Fd()), k.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Ino == k.st.Ino && st.Dev == k.st.Dev && (k.to != "" || st.Mtim == k.st.Mtim)
}

// rename gives a draft its name, if it is still the same.
func (k *kept) rename() error {
	switch {
	case k.to == "":
		return unix.EPERM
	case k.file != nil:
		return outfile.Adopt(k.file, int(k.dir.Fd()), k.to)
	case !k.same():
		return unix.ESTALE
	}
	fd := int(k.dir.Fd())
	return unix.Renameat(fd, k.name, fd, k.to)
}

// remove removes it, if it is still the same.
func (k *kept) remove() error {
	if k.file == nil && k.same() {
		if err := unix.Unlinkat(int(k.dir.Fd()), k.name, 0); err != nil {
			return err
		}
	}
	if k.path != "" {
		_ = os.Remove(k.path) // if it is empty
	}
	return nil
}

// listen makes the socket of a forward of UDP, and carries its datagrams.
func (s *server) listen(ctx context.Context, q request, r *reply) {
	if s.sealed { // forwards begin before there is a guest
		r.errno = unix.EPERM
		return
	}
	host, err := s.dialer.ListenUDP(q.to)
	if err != nil {
		r.errno = errnoOf(err)
		return
	}
	a, b, err := pair()
	if err == nil {
		r.fd, err = dup(b)
		_ = b.Close()
	}
	if r.errno = errnoOf(err); err != nil {
		_ = host.Close()
		return
	}
	r.number = uint64(host.LocalAddr().(*net.UDPAddr).Port)
	l := &relay{host: host, process: a, seen: map[netip.AddrPort]uint64{}}
	s.mu.Lock()
	s.relays[netip.AddrPortFrom(q.to.Addr(), uint16(r.number))] = l
	s.mu.Unlock()
	context.AfterFunc(ctx, l.close)
	s.wg.Go(l.run)
}
