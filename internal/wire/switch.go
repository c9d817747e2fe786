package wire

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/internal/lab/shape"
)

// MaxPorts is the most ports of a switch.
const MaxPorts = 1024

// Errors of a Switch.
var (
	ErrPorts         = errors.New("too many ports")
	ErrDetached      = errors.New("link is detached")
	ErrBadImpairment = errors.New("bad impairment")
)

// Switch is a learning Ethernet switch. Ports may be attached and detached while traffic runs.
type Switch struct {
	log   *slog.Logger
	table *macTable
	names bindings // of addresses to ports, for Identity
	ports atomic.Pointer[ports]

	mu     sync.Mutex
	serial uint32
	closed bool
}

// ports is the immutable list of a switch's links that workers read.
type ports struct {
	byID []*Link // nil: no such link
	list []*Link
}

var allLinks = new(Link)

// NewSwitch makes an empty switch.
func NewSwitch(log *slog.Logger) *Switch {
	s := &Switch{log: log, table: newMACTable()}
	s.ports.Store(new(ports))
	return s
}

func (s *Switch) find(ps *ports, dst MAC) *Link {
	if !dst.multicast() {
		if id, ok := s.table.lookup(dst.key()); ok && int(id) < len(ps.byID) && ps.byID[id] != nil {
			return ps.byID[id]
		}
	}
	return allLinks
}

// Attach connects a port to the switch.
func (s *Switch) Attach(p Port, opts LinkOptions) (*Link, error) {
	for _, im := range []Impairment{opts.Up, opts.Down} {
		if err := im.check(); err != nil {
			return nil, fmt.Errorf("port %s: %w", p.Name(), err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.ports.Load()
	if s.closed {
		return nil, fmt.Errorf("port %s: switch is closed: %w", p.Name(), ErrDetached)
	}
	id := slices.Index(old.byID, nil)
	next := &ports{byID: slices.Clone(old.byID)}
	if id < 0 {
		if id = len(old.byID); id == MaxPorts {
			return nil, fmt.Errorf("port %s: %w: %d", p.Name(), ErrPorts, MaxPorts)
		}
		next.byID = append(next.byID, nil)
	}
	who, err := s.names.enter(opts.Identity)
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", p.Name(), err)
	}
	s.serial++
	l := &Link{who: who, sw: s, port: p, id: uint16(id), serial: s.serial, drained: make(chan struct{}, 1)}
	_, l.places = p.(PlacementReporter)
	l.storm.init(opts.Storm, shape.Now)
	l.up.Store(newImpaired(l, levelUp, opts.Up))
	l.down.Store(newImpaired(l, levelDown, opts.Down))
	if who != nil {
		who.link = l
	}
	next.byID[id] = l
	next.list = append(slices.Clone(old.list), l)
	s.ports.Store(next)
	s.log.Info("port attached", "port", p.Name(), "impaired", l.up.Load() != nil || l.down.Load() != nil)
	return l, nil
}

// Detach detaches a port. When it returns nil, no worker is sending from the port or calling the port's Deliver, and
// the link's Deliver drops packets from then on. Neither a port's Deliver nor a tap may call Detach.
func (s *Switch) Detach(l *Link) error {
	err := fmt.Errorf("port %s: %w", l.Name(), ErrDetached)
	if l.sw != s {
		return err
	}
	l.detach.Do(func() {
		s.remove(l, false)
		l.drain()
		l.up.Load().close()
		l.down.Load().close()
		s.table.forget(l.id) // after drain, so no worker learns another address for it
		s.names.leave(l)
		s.remove(l, true)
		l.Restarted()
		s.log.Info("port detached", "port", l.Name())
		err = nil
	})
	return err
}

// remove removes a link from ports.list, or, if id is true, from ports.byID.
func (s *Switch) remove(l *Link, id bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.ports.Load()
	next := &ports{byID: slices.Clone(old.byID), list: old.list}
	if id {
		next.byID[l.id] = nil
	} else {
		next.list = slices.DeleteFunc(slices.Clone(old.list), func(o *Link) bool { return o == l })
	}
	s.ports.Store(next)
}

// Links returns the attached links, in the order of attaching.
func (s *Switch) Links() []*Link { return slices.Clone(s.ports.Load().list) }

// Find returns the link behind which an address was last seen; nil: unknown, or a group address.
func (s *Switch) Find(mac MAC) *Link {
	if l := s.find(s.ports.Load(), mac); l != allLinks {
		return l
	}
	return nil
}

// Close detaches the attached ports; Attach fails from then on.
func (s *Switch) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, l := range s.Links() {
		if err := s.Detach(l); err != nil && !errors.Is(err, ErrDetached) {
			return err
		}
	}
	return nil
}
