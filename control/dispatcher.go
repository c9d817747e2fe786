package control

import "errors"

// Handler is the NIC's side of every command. Calls come from the goroutines of all transmit queues at once.
// An error's syscall.Errno travels to the driver together with its text (other errors as EIO). Slices that a method
// is given are its own to keep; slices that it returns are read before the next call of the Dispatcher returns.
type Handler interface {
	// Generation of the port's state, put in every reply.
	Generation() uint32
	Info() (Info, error)

	SetSplit(s Split) error
	Split(queue uint16) (Split, error)

	AddFlow(r FlowRule) (id uint32, err error)
	DelFlow(id uint32) error
	Flows() ([]FlowRule, error) // sorted by ID

	SetRSS(r RSS) error
	RSS() (RSS, error)

	GPUs() ([]GPUInfo, error)

	RegisterBuffer(b Buffer) (id uint32, err error)
	UnregisterBuffer(id uint32) error
	Buffers() ([]Buffer, error) // sorted by ID

	BindRx(buffer uint32, queues []uint16) (id uint32, err error)
	BindTx(buffer uint32) (id uint32, err error)
	Unbind(id uint32) error
	Bindings() ([]Binding, error) // sorted by ID

	AddMeter(m Meter) (id uint32, err error)
	ReadMeter(id uint32) (MeterCounters, error)
	DelMeter(id uint32) error
	PortCounters() (PortCounters, error)

	SubmitJob(j Job) (id uint64, err error)
	PollJob(id uint64) (JobStatus, error)
	CancelJob(id uint64) (JobStatus, error)
}

// Dispatcher is a port's end of the control channel.
type Dispatcher struct{ h Handler }

// NewDispatcher returns the dispatcher of a port.
func NewDispatcher(h Handler) *Dispatcher { return &Dispatcher{h: h} }

// Handle takes a control frame (with its Ethernet header) and returns the reply frame, to be put on receive queue 0,
// or nil if there is none. The reply is written to reply's storage where that holds MaxFrame bytes.
func (d *Dispatcher) Handle(frame, reply []byte) []byte { return nil }

// Reset forgets all sessions and their replies: device reset.
func (d *Dispatcher) Reset() {}

// NotifyJob writes the frame that tells the driver, whose MAC is dst, that a job has ended.
func (d *Dispatcher) NotifyJob(frame []byte, dst [6]byte, s *JobStatus) []byte { return nil }

// DispatcherStats counts frames.
type DispatcherStats struct {
	Requests  uint64 // handled, first time
	Repeats   uint64 // answered from the stored reply, or still being handled
	Stale     uint64 // too old to tell: refused
	Malformed uint64
	Errors    uint64 // requests that the handler refused
}

// Stats returns the counters.
func (d *Dispatcher) Stats() DispatcherStats { return DispatcherStats{} }

// IsControl reports whether a frame belongs to the control channel by EtherType or by either MAC.
func IsControl(frame []byte) bool { return false }

var errNotYet = errors.New("control: not built yet")
