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

	"vnic.dev/vnic/internal/atexit"
	"vnic.dev/vnic/internal/httpserver"
	"vnic.dev/vnic/internal/jsonlines"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/version"
)

// maxClients is how many clients of the socket are served at a time.
const maxClients = 32

// Options configure a Server.
type Options struct {
	Command string       // name of the vnic command, such as "run", "boot" or "serve"
	Metrics string       // HOST:PORT of the HTTP server for Prometheus; "": no server
	Log     *slog.Logger // nil: no log

	Sandbox func() *Sandbox // nil, or returns nil: the process has none

	// Keep names the socket's file to another process, which removes the file when remove is called, and, if dir is
	// true, also its directory, if that is empty. If Keep is nil or fails, Close removes both in the same way.
	Keep func(path string, dir bool) (remove func() error, err error)

	patience time.Duration // for reading a request, and again for writing the answer; 0: limits.LocalClient.Here()
}

// Server shows this process's counters until Close.
type Server struct {
	opt     Options
	began   time.Time
	ports   atomic.Pointer[func() []Port]
	lab     atomic.Pointer[watched] // nil: there is no lab
	last    atomic.Pointer[Page]    // of the latest lab that has ended; nil: none has
	events  events
	holders answers

	dir        *os.File // of the socket; nil: there is no socket
	path       string
	listener   *net.UnixListener
	unregister func()
	remove     func() error // from Options.Keep; nil: Close itself removes the socket
	metrics    *httpserver.Server
	wg         sync.WaitGroup

	mu      sync.Mutex // guards the following
	clients map[*net.UnixConn]bool
	closed  bool
}

// Start begins to show counters: over a socket, and over HTTP if o.Metrics is not empty. It returns an error only if
// o.Metrics is wrong, or it cannot serve metrics. If it cannot make the socket, it logs the reason.
func Start(o Options) (*Server, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.patience = cmp.Or(o.patience, limits.LocalClient.Here())
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	s := &Server{opt: o, began: time.Now(), clients: map[*net.UnixConn]bool{}}
	if o.Metrics != "" {
		var err error
		if s.metrics, err = serveMetrics(o.Metrics, s); err != nil {
			return nil, err
		}
	}
	if err := s.listen(); err != nil {
		level := slog.LevelDebug
		if os.Getenv(EnvDir) != "" { // the user has named a directory
			level = slog.LevelWarn
		}
		s.opt.Log.Log(context.Background(), level, "no socket for 'vnic stat'", "err", err)
	}
	return s, nil
}

// SetPorts sets the function that returns the ports to show; nil: none. Several goroutines may call ports at
// the same time, also for a moment after another SetPorts.
func (s *Server) SetPorts(ports func() []Port) {
	if ports == nil {
		s.ports.Store(nil)
		return
	}
	s.ports.Store(&ports)
}

// Snapshot reads the counters of all ports, links and flows. The guests have limits.Tokens.Here() to answer about
// tokens.
func (s *Server) Snapshot() *Snapshot { return s.snapshot(0, askHolders) }

// snapshot is Snapshot with at most "most" flows; 0: all.
func (s *Server) snapshot(most int, ask askFunc) *Snapshot {
	now, ports := s.counters()
	now.Flows = readFlows(ports, func(i int) string { return now.Ports[i].Name }, most, ask)
	return now
}

func (s *Server) counters() (now *Snapshot, list []Port) {
	if ports := s.ports.Load(); ports != nil {
		list = (*ports)()
	}
	now = snapshot(s.opt.Command, s.began, list)
	if l := s.lab.Load(); l != nil && l.links != nil {
		now.Links, now.Scale = l.links.read()
	}
	if s.opt.Sandbox != nil {
		now.Sandbox = s.opt.Sandbox()
	}
	return now, list
}

// Last returns the Page of the end of the latest lab that has ended; nil: none has ended.
func (s *Server) Last() *Page { return s.last.Load() }

// MetricsURL returns the URL of the metrics; "" if the server has none.
func (s *Server) MetricsURL() string {
	if s.metrics == nil {
		return ""
	}
	return s.metrics.URL() + "metrics"
}

// Close closes the HTTP server, the socket and its clients' connections, waits for the goroutines that serve these, and
// removes the socket's file and, if it is empty, directory.
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
		s.unregister()
		_ = s.dir.Close()
		if s.remove == nil {
			_ = os.Remove(s.path) // fails if the directory is not empty
		}
	}
}

func socketName() string { return strconv.Itoa(os.Getpid()) + suffix }

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
	address := within(d, name)
	removeStale(d, name) // of an earlier process with this id
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return errors.Join(fmt.Errorf("%s/%s: %w", path, name, err), d.Close())
	}
	l.SetUnlinkOnClose(false) // Server.Close removes the file, or calls remove
	s.dir, s.path, s.listener = d, path, l
	atEnd := func() { _ = unix.Unlinkat(int(d.Fd()), name, 0) }
	if s.opt.Keep != nil {
		if s.remove, err = s.opt.Keep(path+"/"+name, true); err == nil {
			atEnd = func() { _ = s.remove() }
		}
	}
	s.unregister = atexit.Register(atEnd)
	return nil
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptor is left, for example
			s.opt.Log.Debug("a client of 'vnic stat'", "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.wg.Go(func() {
			defer func() { _ = c.Close() }()
			if !s.enter(c) {
				return
			}
			s.answer(c)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.clients, c)
		})
	}
}

// enter registers a client, whose connection Close closes. It returns false if the server is closed or has maxClients.
func (s *Server) enter(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.clients) == maxClients {
		return false
	}
	s.clients[c] = true
	return true
}

// answer answers a client's request. If it cannot read a message, it refuses the client like one with another version
// of the protocol.
func (s *Server) answer(c *net.UnixConn) {
	_ = c.SetReadDeadline(time.Now().Add(s.opt.patience))
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
	_ = c.SetWriteDeadline(time.Now().Add(s.opt.patience))
	if err := jsonlines.NewWriter(c, protocol, maxSnapshot).Answer(m.ID, result, err); err != nil {
		s.opt.Log.Debug("a client of 'vnic stat'", "err", err)
	}
}

func (s *Server) set(args json.RawMessage) error {
	var text string
	if err := json.Unmarshal(args, &text); err != nil {
		return err
	}
	c, err := lab.ParseChange(text)
	if err != nil {
		return err
	}
	l := s.lab.Load()
	if l == nil {
		return errors.New("its lab is not there yet, or not any more: try again")
	}
	return l.change(c)
}
