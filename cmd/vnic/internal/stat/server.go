package stat

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/cmd/vnic/internal/atexit"
	"vnic.dev/vnic/cmd/vnic/internal/httpserver"
	"vnic.dev/vnic/internal/jsonlines"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/version"
)

// Bounds of what clients can make a server hold.
const (
	maxClients = 32 // at a time; the next is turned away
)

// Options say what a Server is to show, and where.
type Options struct {
	Command string       // of this process: "run", "boot", "serve"
	Metrics string       // HOST:PORT for Prometheus; "" = none
	Log     *slog.Logger // nil: none

	Sandbox func() *Sandbox // what the process is in; nil: nothing

	// Keep names the socket's file to who removes it at the end, and its directory if that is empty then; nil: Close does.
	Keep func(path string, dir bool) (remove func() error, err error)

	patience time.Duration // tests; 0: limits.LocalClient
}

// Server shows this process's counters until Close.
type Server struct {
	command string
	log     *slog.Logger
	began   time.Time
	wait    time.Duration // for a client
	ports   atomic.Pointer[func() []Port]
	change  atomic.Pointer[func(lab.Change) error] // nil: there is no lab
	links   atomic.Pointer[links]                  // nil: none
	lab     atomic.Pointer[pageLab]                // nil: there is none
	last    atomic.Pointer[Page]                   // when the lab ended; nil: it has not
	events  events
	holders answers
	sandbox func() *Sandbox

	dir      *os.File // of the socket; nil: none
	path     string   // dir's name
	listener *net.UnixListener
	gone     func() // the socket's name is
	keep     func(path string, dir bool) (remove func() error, err error)
	remove   func() error // nil: Close does
	metrics  *httpserver.Server
	wg       sync.WaitGroup

	mu      sync.Mutex // guards what follows
	clients map[*net.UnixConn]bool
	closed  bool
}

// Start begins to show counters: over a socket, and over HTTP if o.Metrics names an address.
// Without a place for a socket it goes without, which the log tells: nothing else depends on it.
// Only metrics that cannot be served are an error.
func Start(o Options) (*Server, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &Server{command: o.Command, log: o.Log, began: time.Now(), keep: o.Keep, sandbox: o.Sandbox,
		wait: cmp.Or(o.patience, limits.LocalClient.Here()), clients: map[*net.UnixConn]bool{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics != "" {
		var err error
		if s.metrics, err = serveMetrics(o.Metrics, s); err != nil {
			return nil, err
		}
	}
	if err := s.listen(); err != nil {
		level := slog.LevelDebug
		if os.Getenv(EnvDir) != "" { // the user has asked for one
			level = slog.LevelWarn
		}
		s.log.Log(context.Background(), level, "no socket for 'vnic stat'", "err", err)
	}
	return s, nil
}

// SetPorts says what there is to be shown from now on; nil: nothing. ports is called at each request, by several
// goroutines at a time, also for a moment after it was replaced.
func (s *Server) SetPorts(ports func() []Port) {
	if ports == nil {
		s.ports.Store(nil)
		return
	}
	s.ports.Store(&ports)
}

// Snapshot reads the counters of all ports, and the account of all flows. Guests are asked who holds tokens, for
// limits.Tokens at most.
func (s *Server) Snapshot() *Snapshot { return s.snapshot(0, askHolders) }

// snapshot is Snapshot, of the flows that moved most so many; 0: all.
func (s *Server) snapshot(most int, ask askFunc) *Snapshot {
	now, ports := s.counters()
	now.Flows = readFlows(ports, func(i int) string { return now.Ports[i].Name }, most, ask)
	return now
}

// counters reads the counters of all ports, which it gives as well.
func (s *Server) counters() (now *Snapshot, list []Port) {
	if ports := s.ports.Load(); ports != nil {
		list = (*ports)()
	}
	now = snapshot(s.command, s.began, list)
	if l := s.links.Load(); l != nil {
		now.Links, now.Scale = l.read()
	}
	if s.sandbox != nil {
		now.Sandbox = s.sandbox()
	}
	return now, list
}

// Last gives what there was when the lab ended; nil: it has not, or there was none.
func (s *Server) Last() *Page { return s.last.Load() }

// MetricsURL is where Prometheus finds the metrics; "" if nowhere.
func (s *Server) MetricsURL() string {
	if s.metrics == nil {
		return ""
	}
	return s.metrics.URL() + "metrics"
}

// Close ends it. Nothing of it is left, and no goroutine is in a function of SetPorts.
func (s *Server) Close() {
	if s.metrics != nil {
		s.metrics.Close(0)
	}
	if s.listener != nil {
		_ = s.listener.Close()
		if s.remove != nil {
			_ = s.remove()
		} else {
			_ = unix.Unlinkat(int(s.dir.Fd()), socketName(), 0)
		}
	}
	s.mu.Lock()
	s.closed = true
	for c := range s.clients {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	if s.dir != nil {
		s.gone()
		_ = s.dir.Close()
		if s.remove == nil {
			_ = os.Remove(s.path) // if it is empty
		}
	}
}

func socketName() string { return strconv.Itoa(os.Getpid()) + suffix }

// listen makes the socket, in the first place that will do.
func (s *Server) listen() error {
	var errs []error
	for _, path := range candidates() {
		err := os.ErrNotExist
		for range 3 { // another vnic may remove the directory as it ends
			if err = s.listenIn(path); !errors.Is(err, os.ErrNotExist) {
				break
			}
		}
		if err == nil {
			s.wg.Go(s.accept)
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Server) listenIn(path string) error {
	d, err := openDir(path, true)
	if err != nil {
		return err
	}
	sweep(d)
	name := socketName()
	at := within(d, name)
	if errors.Is(connects(at), unix.ECONNREFUSED) { // of an earlier process with our number
		_ = unix.Unlinkat(int(d.Fd()), name, 0)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return errors.Join(fmt.Errorf("%s/%s: %w", path, name, err), d.Close())
	}
	l.SetUnlinkOnClose(false) // Close does, while d is open
	s.dir, s.path, s.listener = d, path, l
	atEnd := func() { _ = unix.Unlinkat(int(d.Fd()), name, 0) }
	if s.keep != nil {
		if s.remove, err = s.keep(path+"/"+name, true); err == nil {
			atEnd = func() { _ = s.remove() }
		}
	}
	s.gone = atexit.Register(atEnd)
	return nil
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, say
			s.log.Debug("a client of 'vnic stat'", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if s.enter(c) {
			s.wg.Go(func() {
				defer s.leave(c)
				s.answer(c)
			})
		} else {
			_ = c.Close()
		}
	}
}

func (s *Server) enter(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.clients) == maxClients {
		return false
	}
	s.clients[c] = true
	return true
}

func (s *Server) leave(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c)
	_ = c.Close()
}

// answer handles a client's request. A client that sends nothing, or no message, has another version of the protocol.
func (s *Server) answer(c *net.UnixConn) {
	_ = c.SetReadDeadline(time.Now().Add(s.wait))
	in := jsonlines.Protocol{Version: protocol, MaxLine: maxRequest, Who: "who asks",
		Fix: fmt.Sprintf("ask with the program of process %d, /proc/%[1]d/exe", os.Getpid())}
	m, err := jsonlines.NewReader(c, in).Next()
	if m == nil {
		m, err = new(jsonlines.Message), version.Ours(protocol).Check(version.Hello{}, in.Who, in.Fix)
	}
	var result any
	switch {
	case err != nil:
	case m.Op == opSnapshot:
		result = s.Snapshot()
	case m.Op == opSet:
		err = s.set(m.Args)
	default:
		err = fmt.Errorf("%.40q is nothing that this vnic does", m.Op)
	}
	_ = c.SetWriteDeadline(time.Now().Add(s.wait))
	if err := jsonlines.NewWriter(c, protocol, maxSnapshot).Answer(m.ID, result, err); err != nil {
		s.log.Debug("a client of 'vnic stat'", "err", err)
	}
}

// set applies a change to the lab.
func (s *Server) set(args json.RawMessage) error {
	var text string
	if err := json.Unmarshal(args, &text); err != nil {
		return err
	}
	c, err := lab.ParseChange(text)
	if err != nil {
		return err
	}
	change := s.change.Load()
	if change == nil {
		return errors.New("its lab is not there yet, or not any more: try again")
	}
	return (*change)(c)
}
