package wire

import (
	"errors"
	"log/slog"
)

// Errors of a Switch.
var (
	ErrPorts    = errors.New("too many ports")
	ErrDetached = errors.New("link is detached")
)

// LinkOptions says how a port is attached.
type LinkOptions struct {
	Up   Impairment // of what the port sends
	Down Impairment // of what the port receives
}

// Switch is a learning Ethernet switch. Ports come and go while traffic runs.
type Switch struct{}

// NewSwitch makes an empty switch.
func NewSwitch(log *slog.Logger) *Switch { return &Switch{} }

// Attach gives a port its way into the switch; from then on it receives.
func (s *Switch) Attach(p Port, opts LinkOptions) (*Link, error) { return &Link{}, nil }

// Detach takes a port away. When it returns, nobody is in the port's Deliver or will be, and nobody is in the link's.
// It must not be called from inside either.
func (s *Switch) Detach(l *Link) error { return nil }

// Links gives the links attached now, in the order in which they came.
func (s *Switch) Links() []*Link { return nil }

// Close detaches all ports.
func (s *Switch) Close() error { return nil }

// Link is a port's way into the switch.
type Link struct{}

// Name is the port's name.
func (l *Link) Name() string { return "" }

// Deliver sends a batch, setting every Verdict.
func (l *Link) Deliver(w *Worker, batch []*Packet) {}

// Counters reads the link's counters.
func (l *Link) Counters() Counters { return Counters{} }

// Counters are a link's. Packets count once they are disposed of, not when they met a busy port.
type Counters struct {
	Sent, SentBytes, SentSegments             uint64 // from the port: taken or dropped
	Received, ReceivedBytes, ReceivedSegments uint64 // taken by the port
	Busy                                      uint64 // verdicts of the port
	Drops                                     [NumDropReasons]uint64
	Held                                      uint64 // segments that went through a delay line
	DelayFull                                 uint64 // segments that were not held back for want of room
	NotLearned                                uint64 // source addresses for which there was no room
}
