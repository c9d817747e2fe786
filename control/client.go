package control

import "context"

// Sender puts a frame on the NIC's transmit queue. The frame is copied before Send returns. An error other than
// net.ErrClosed is as good as a lost frame: it is sent again later.
type Sender interface{ Send(frame []byte) error }

// Client is a driver's end of the control channel. Its methods may be called by many goroutines at once.
type Client struct{}

// ClientOptions configure a Client; the zero value is good.
type ClientOptions struct {
	MAC          [6]byte                      // the driver's: source of the frames
	OnGeneration func(old, generation uint32) // called by Receive when the port's state is known to be new: set it up again
}

// NewClient returns a client of a new session.
func NewClient(s Sender, o ClientOptions) *Client { return &Client{} }

// Receive takes a frame from receive queue 0. It returns false if the frame is not the control channel's. It never waits.
func (c *Client) Receive(frame []byte) bool { return false }

// Close makes calls under way and later ones return net.ErrClosed.
func (c *Client) Close() {}

// Generation is that of the last answer.
func (c *Client) Generation() uint32 { return 0 }

// Call sends a request and waits for its answer, repeating it until then or until ctx ends.
func (c *Client) Call(ctx context.Context, class Class, cmd Command, data []byte) ([]byte, error) {
	return nil, errNotYet
}

// Hello asks what the NIC is and reads the generation of its state.
func (c *Client) Hello(ctx context.Context) (Info, error) { return Info{}, errNotYet }

// SetSplit sets a receive queue's header split.
func (c *Client) SetSplit(ctx context.Context, s Split) error { return errNotYet }

// Split reads a receive queue's header split.
func (c *Client) Split(ctx context.Context, queue uint16) (Split, error) { return Split{}, errNotYet }

// AddFlow adds a rule and returns its id.
func (c *Client) AddFlow(ctx context.Context, r FlowRule) (uint32, error) { return 0, errNotYet }

// DelFlow deletes a rule.
func (c *Client) DelFlow(ctx context.Context, id uint32) error { return errNotYet }

// Flows lists the rules.
func (c *Client) Flows(ctx context.Context) ([]FlowRule, error) { return nil, errNotYet }

// SetRSS sets receive side scaling.
func (c *Client) SetRSS(ctx context.Context, r RSS) error { return errNotYet }

// RSS reads receive side scaling.
func (c *Client) RSS(ctx context.Context) (RSS, error) { return RSS{}, errNotYet }

// GPUs lists the GPUs that the port may use.
func (c *Client) GPUs(ctx context.Context) ([]GPUInfo, error) { return nil, errNotYet }

// RegisterBuffer registers a range of GPU memory and returns its id.
func (c *Client) RegisterBuffer(ctx context.Context, gpu uint16, off, size uint64) (uint32, error) {
	return 0, errNotYet
}

// UnregisterBuffer undoes RegisterBuffer.
func (c *Client) UnregisterBuffer(ctx context.Context, id uint32) error { return errNotYet }

// Buffers lists the registered buffers.
func (c *Client) Buffers(ctx context.Context) ([]Buffer, error) { return nil, errNotYet }

// BindRx binds receive queues to a buffer and returns the binding's id.
func (c *Client) BindRx(ctx context.Context, buffer uint32, queues ...uint16) (uint32, error) {
	return 0, errNotYet
}

// BindTx allows transmission from a buffer and returns the binding's id.
func (c *Client) BindTx(ctx context.Context, buffer uint32) (uint32, error) { return 0, errNotYet }

// Unbind ends a binding.
func (c *Client) Unbind(ctx context.Context, id uint32) error { return errNotYet }

// Bindings lists the bindings.
func (c *Client) Bindings(ctx context.Context) ([]Binding, error) { return nil, errNotYet }

// AddMeter installs a meter and returns its id.
func (c *Client) AddMeter(ctx context.Context, m Meter) (uint32, error) { return 0, errNotYet }

// ReadMeter reads a meter.
func (c *Client) ReadMeter(ctx context.Context, id uint32) (MeterCounters, error) {
	return MeterCounters{}, errNotYet
}

// DelMeter removes a meter.
func (c *Client) DelMeter(ctx context.Context, id uint32) error { return errNotYet }

// PortCounters reads what the port has seen in all.
func (c *Client) PortCounters(ctx context.Context) (PortCounters, error) {
	return PortCounters{}, errNotYet
}

// SubmitJob starts a job and returns its id.
func (c *Client) SubmitJob(ctx context.Context, j Job) (uint64, error) { return 0, errNotYet }

// PollJob asks for a job's status.
func (c *Client) PollJob(ctx context.Context, id uint64) (JobStatus, error) {
	return JobStatus{}, errNotYet
}

// CancelJob stops a job and waits for its end.
func (c *Client) CancelJob(ctx context.Context, id uint64) (JobStatus, error) {
	return JobStatus{}, errNotYet
}

// WaitJob waits for a job's end.
func (c *Client) WaitJob(ctx context.Context, id uint64) (JobStatus, error) {
	return JobStatus{}, errNotYet
}

// RunJob is SubmitJob and WaitJob. The error is also the job's own; ctx's end cancels the job.
func (c *Client) RunJob(ctx context.Context, j Job) (JobStatus, error) { return JobStatus{}, errNotYet }
