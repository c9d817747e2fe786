package control

import (
	"context"
	"fmt"
	"syscall"
)

// Handler is the NIC's side of the commands. Its methods may be called concurrently.
//
// An error's syscall.Errno, or EIO, and its text go to the driver. A method may keep the slices of its
// arguments.
type Handler interface {
	// Generation returns the generation of the port's state.
	Generation() uint32
	// Info answers Hello.
	Info() (Info, error)

	SetSplit(s Split) error
	Split(queue uint16) (Split, error)

	AddFlow(r FlowRule) (id uint32, err error)
	DelFlow(id uint32) error
	Flows() ([]FlowRule, error) // sorted by ID

	SetRSS(r RSS) error
	RSS() (RSS, error)

	GPUs() ([]GPUInfo, error)   // at most MaxGPUs
	GPUMaps() ([]GPUMap, error) // sorted by ID

	RegisterBuffer(b Buffer) (id uint32, err error)
	UnregisterBuffer(id uint32) error
	Buffers() ([]Buffer, error) // sorted by ID

	BindRx(buffer uint32, queues []uint16) (id uint32, err error) // queues are sorted, without duplicates; may be empty
	BindTx(buffer uint32) (id uint32, err error)
	Unbind(id uint32) error
	Bindings() ([]Binding, error) // sorted by ID

	AddFlowCounter(m FlowCounter) (id uint32, err error)
	ReadFlowCounter(id uint32) (FlowCounts, error)
	DelFlowCounter(id uint32) error
	PortCounters() (PortCounters, error)

	SubmitJob(j Job) (id uint64, err error)
	PollJob(id uint64) (JobStatus, error)
	CancelJob(id uint64) (JobStatus, error)

	RDMA
}

// RDMA is the part of a Handler for RDMA. A NIC without RDMA returns EOPNOTSUPP from its methods.
type RDMA interface {
	RDMALimits() (RDMALimits, error)
	AddPD() (id uint32, err error)
	DelPD(id uint32) error
	AddMR(m MR) (key uint32, err error)
	MoreMR(m MRMore) error
	DelMR(key uint32) error // after success the NIC does not use memory by this key
	AddCQ(depth uint32) (id uint32, err error)
	DelCQ(id uint32) error
	PollCQ(p Poll) (Completions, error)
	AddQP(q QP) (qpn uint32, err error)
	ConnectQP(p QPPath) error
	DelQP(qpn uint32) error // after success no work request of the QP is in progress
	QPStatus(qpn uint32) (QPStatus, error)
	PostSend(p Post) error
	PostRecv(p Post) error
	RDMACounts() (RDMAPortCounts, error)
	SetMailbox(m Mailbox) error
	PageRequests() ([]PageRequest, error) // the requests that wait for an answer, sorted by ID
	AnswerPages(a PageAnswer) error
	PageCounts(key uint32) (PageCounts, error)
}

// The table of commands.
var (
	_ = row[none, Info](ClassInfo, InfoHello, withoutArgs(Handler.Info))

	splitSet = row[Split, none](ClassSplit, SplitSet, withoutReply(Handler.SetSplit))
	splitGet = row[Split, Split](ClassSplit, SplitGet, func(h Handler, s Split) (Split, error) { return h.Split(s.Queue) })

	flowAdd  = row[FlowRule, uint32](ClassFlow, FlowAdd, Handler.AddFlow)
	flowDel  = row[uint32, none](ClassFlow, FlowDel, withoutReply(Handler.DelFlow))
	flowList = row[uint32, list[FlowRule]](ClassFlow, FlowList, listOf(Handler.Flows))

	rssSet = row[RSS, none](ClassRSS, RSSSet, withoutReply(Handler.SetRSS))
	rssGet = row[none, RSS](ClassRSS, RSSGet, withoutArgs(Handler.RSS))

	gpuList    = row[uint32, list[GPUInfo]](ClassGPU, GPUList, listOf(Handler.GPUs))
	gpuMapList = row[uint32, list[GPUMap]](ClassGPU, GPUMapList, listOf(Handler.GPUMaps))

	bufferAdd  = row[Buffer, uint32](ClassBuffer, BufferRegister, Handler.RegisterBuffer)
	bufferDel  = row[uint32, none](ClassBuffer, BufferUnregister, withoutReply(Handler.UnregisterBuffer))
	bufferList = row[uint32, list[Buffer]](ClassBuffer, BufferList, listOf(Handler.Buffers))

	bindRx = row[Binding, uint32](ClassBinding, BindingRx,
		func(h Handler, n Binding) (uint32, error) { return h.BindRx(n.Buffer, n.Queues) })
	bindTx = row[Binding, uint32](ClassBinding, BindingTx,
		func(h Handler, n Binding) (uint32, error) { return h.BindTx(n.Buffer) })
	unbind      = row[uint32, none](ClassBinding, BindingUndo, withoutReply(Handler.Unbind))
	bindingList = row[uint32, list[Binding]](ClassBinding, BindingList, listOf(Handler.Bindings))

	meterAdd        = row[FlowCounter, uint32](ClassFlowCounter, FlowCounterAdd, Handler.AddFlowCounter)
	meterRead       = row[uint32, FlowCounts](ClassFlowCounter, FlowCounterRead, Handler.ReadFlowCounter)
	meterDel        = row[uint32, none](ClassFlowCounter, FlowCounterDel, withoutReply(Handler.DelFlowCounter))
	flowCounterPort = row[none, PortCounters](ClassFlowCounter, FlowCounterPort, withoutArgs(Handler.PortCounters))

	jobSubmit = row[Job, uint64](ClassJob, JobSubmit, Handler.SubmitJob)
	jobPoll   = row[uint64, JobStatus](ClassJob, JobPoll, Handler.PollJob)
	jobCancel = row[uint64, JobStatus](ClassJob, JobCancel, Handler.CancelJob)

	rdmaInfo     = row[none, RDMALimits](ClassRDMA, RDMAInfo, withoutArgs(Handler.RDMALimits))
	pdAdd        = row[none, uint32](ClassRDMA, RDMAPDAdd, withoutArgs(Handler.AddPD))
	pdDel        = row[uint32, none](ClassRDMA, RDMAPDDel, withoutReply(Handler.DelPD))
	mrAdd        = row[MR, uint32](ClassRDMA, RDMAMRAdd, Handler.AddMR)
	mrMore       = row[MRMore, none](ClassRDMA, RDMAMRMore, withoutReply(Handler.MoreMR))
	mrDel        = row[uint32, none](ClassRDMA, RDMAMRDel, withoutReply(Handler.DelMR))
	cqAdd        = row[uint32, uint32](ClassRDMA, RDMACQAdd, Handler.AddCQ)
	cqDel        = row[uint32, none](ClassRDMA, RDMACQDel, withoutReply(Handler.DelCQ))
	cqPoll       = row[Poll, Completions](ClassRDMA, RDMACQPoll, Handler.PollCQ)
	qpAdd        = row[QP, uint32](ClassRDMA, RDMAQPAdd, Handler.AddQP)
	qpConnect    = row[QPPath, none](ClassRDMA, RDMAQPConnect, withoutReply(Handler.ConnectQP))
	qpDel        = row[uint32, none](ClassRDMA, RDMAQPDel, withoutReply(Handler.DelQP))
	qpStatus     = row[uint32, QPStatus](ClassRDMA, RDMAQPStatus, Handler.QPStatus)
	postSend     = row[Post, none](ClassRDMA, RDMAPostSend, withoutReply(Handler.PostSend))
	postRecv     = row[Post, none](ClassRDMA, RDMAPostRecv, withoutReply(Handler.PostRecv))
	rdmaCounts   = row[none, RDMAPortCounts](ClassRDMA, RDMACountsRead, withoutArgs(Handler.RDMACounts))
	mailboxSet   = row[Mailbox, none](ClassRDMA, RDMAMailboxSet, withoutReply(Handler.SetMailbox))
	pageRequests = row[uint32, list[PageRequest]](ClassRDMA, RDMAPageList, listOf(Handler.PageRequests))
	pageAnswers  = row[PageAnswer, none](ClassRDMA, RDMAPageAnswer, withoutReply(Handler.AnswerPages))
	pageCounts   = row[uint32, PageCounts](ClassRDMA, RDMAPageCounts, Handler.PageCounts)
)

type command[Q, R any] struct {
	class  Class
	cmd    Command
	handle func(Handler, Q) (R, error)
}

type number struct {
	class Class
	cmd   Command
}

type server interface {
	// serve decodes a request's data, calls h, and appends the reply's data to out.
	serve(h Handler, data, out []byte) ([]byte, error)
}

// commands does not change after initialization.
var commands = make(map[number]server)

func row[Q, R any](class Class, cmd Command, handle func(Handler, Q) (R, error)) *command[Q, R] {
	c := &command[Q, R]{class, cmd, handle}
	if commands[number{class, cmd}] != nil {
		panic(fmt.Sprintf("control: two commands %d.%d", class, cmd))
	}
	commands[number{class, cmd}] = c
	return c
}

func withoutArgs[R any](f func(Handler) (R, error)) func(Handler, none) (R, error) {
	return func(h Handler, _ none) (R, error) { return f(h) }
}

func withoutReply[Q any](f func(Handler, Q) error) func(Handler, Q) (none, error) {
	return func(h Handler, q Q) (none, error) { return none{}, f(h, q) }
}

func listOf[T element](f func(Handler) ([]T, error)) func(Handler, uint32) (list[T], error) {
	return func(h Handler, n uint32) (list[T], error) {
		elems, err := f(h)
		return after(elems, n), err
	}
}

func (c *command[Q, R]) serve(h Handler, data, out []byte) ([]byte, error) {
	var q Q
	if err := decode(data, &q); err != nil {
		return nil, err
	}
	r, err := c.handle(h, q)
	if err != nil {
		return nil, err
	}
	return encode(out, r)
}

func handle(h Handler, class Class, cmd Command, data, out []byte) ([]byte, error) {
	if c := commands[number{class, cmd}]; c != nil {
		return c.serve(h, data, out)
	}
	return nil, fmt.Errorf("class %d has no command %d: %w", class, cmd, syscall.EOPNOTSUPP)
}

func (c *command[Q, R]) call(ctx context.Context, client *Client, q Q) (r R, err error) {
	data, err := encode(nil, q)
	if err == nil {
		data, err = client.Call(ctx, c.class, c.cmd, data)
	}
	if err == nil {
		err = decode(data, &r)
	}
	return r, err
}

func callVoid[Q any](ctx context.Context, client *Client, c *command[Q, none], q Q) error {
	_, err := c.call(ctx, client, q)
	return err
}

func callList[T element](ctx context.Context, client *Client, c *command[uint32, list[T]]) (elems []T, err error) {
	for after := uint32(0); ; {
		l, err := c.call(ctx, client, after)
		if err != nil {
			return nil, err
		}
		if elems = append(elems, l.elems...); !l.more {
			return elems, nil
		}
		last := elems[len(elems)-1].number()
		if last <= after {
			return nil, badData("list: element %d after %d", last, after) // the loop would never end
		}
		after = last
	}
}

// Hello returns the NIC's properties.
func (c *Client) Hello(ctx context.Context) (i Info, err error) {
	b, err := c.Call(ctx, ClassInfo, InfoHello, nil)
	if err == nil {
		_, err = decodeFixed(b, &i) // a later revision's reply may be longer
	}
	return i, err
}

// SetSplit sets a receive queue's header split.
func (c *Client) SetSplit(ctx context.Context, s Split) error { return callVoid(ctx, c, splitSet, s) }

// AddFlow adds a rule and returns its id. Rules take precedence over RSS, and a rule that compares more fields over one
// that compares fewer; but in an IPv6 packet with an authentication header, rules for the TCP, UDP or SCTP behind it
// take precedence over rules for the header.
func (c *Client) AddFlow(ctx context.Context, r FlowRule) (uint32, error) {
	return flowAdd.call(ctx, c, r)
}

// DelFlow deletes a rule.
func (c *Client) DelFlow(ctx context.Context, id uint32) error { return callVoid(ctx, c, flowDel, id) }

// SetRSS sets receive side scaling.
func (c *Client) SetRSS(ctx context.Context, r RSS) error { return callVoid(ctx, c, rssSet, r) }

// GPUs lists the GPUs that the port may use.
func (c *Client) GPUs(ctx context.Context) ([]GPUInfo, error) { return callList(ctx, c, gpuList) }

// GPUMaps lists where the memory of GPUs is in the guest's address space.
func (c *Client) GPUMaps(ctx context.Context) ([]GPUMap, error) { return callList(ctx, c, gpuMapList) }

// RegisterBuffer registers a range of GPU memory and returns its id.
func (c *Client) RegisterBuffer(ctx context.Context, gpu uint16, off, size uint64) (uint32, error) {
	return bufferAdd.call(ctx, c, Buffer{GPU: gpu, Off: off, Size: size})
}

// UnregisterBuffer undoes RegisterBuffer. EBUSY: a binding or an MR uses the buffer.
func (c *Client) UnregisterBuffer(ctx context.Context, id uint32) error {
	return callVoid(ctx, c, bufferDel, id)
}

// BindRx binds receive queues to a buffer and returns the binding's id.
func (c *Client) BindRx(ctx context.Context, buffer uint32, queues ...uint16) (uint32, error) {
	return bindRx.call(ctx, c, Binding{Buffer: buffer, Queues: queues})
}

// BindTx permits transmission from a buffer and returns the binding's id.
func (c *Client) BindTx(ctx context.Context, buffer uint32) (uint32, error) {
	return bindTx.call(ctx, c, Binding{Buffer: buffer, Tx: true})
}

// Unbind ends a binding.
func (c *Client) Unbind(ctx context.Context, id uint32) error { return callVoid(ctx, c, unbind, id) }

// AddFlowCounter installs a flow counter and returns its id.
func (c *Client) AddFlowCounter(ctx context.Context, m FlowCounter) (uint32, error) {
	return meterAdd.call(ctx, c, m)
}

// ReadFlowCounter reads a flow counter.
func (c *Client) ReadFlowCounter(ctx context.Context, id uint32) (FlowCounts, error) {
	return meterRead.call(ctx, c, id)
}

// DelFlowCounter removes a flow counter.
func (c *Client) DelFlowCounter(ctx context.Context, id uint32) error {
	return callVoid(ctx, c, meterDel, id)
}

// PortCounters reads the port's totals.
func (c *Client) PortCounters(ctx context.Context) (PortCounters, error) {
	return flowCounterPort.call(ctx, c, none{})
}

// SubmitJob starts a job and returns its id. EAGAIN: Info.MaxJobs jobs are running.
func (c *Client) SubmitJob(ctx context.Context, j Job) (uint64, error) {
	return jobSubmit.call(ctx, c, j)
}

// PollJob asks for a job's status. ENOENT: the NIC does not have it.
func (c *Client) PollJob(ctx context.Context, id uint64) (JobStatus, error) {
	return jobPoll.call(ctx, c, id)
}

// CancelJob stops a job: after success the job does not run. A job that has ended keeps its status.
func (c *Client) CancelJob(ctx context.Context, id uint64) (JobStatus, error) {
	return jobCancel.call(ctx, c, id)
}
