package control

import (
	"fmt"
	"syscall"
)

// Handler is the NIC's side of every command. Calls come from the goroutines of all transmit queues at once.
//
// An error's syscall.Errno travels to the driver together with its text, other errors as EIO. Slices that a method is
// given are its own to keep; those that it returns are only read, and not after Handle has returned.
type Handler interface {
	// Generation of the port's state, put in every reply.
	Generation() uint32
	// Info answers Hello: the driver knows the generation from then on.
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

	BindRx(buffer uint32, queues []uint16) (id uint32, err error) // queues are sorted, each once; perhaps none
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

// handle decodes a request's data, calls h, and appends the reply's data to out.
func handle(h Handler, class Class, cmd Command, data, out []byte) ([]byte, error) {
	switch class {
	case ClassInfo:
		if cmd == InfoHello {
			return ask(data, out, h.Info, func(b []byte, i *Info) ([]byte, error) { return put(b, i.encode), nil })
		}
	case ClassSplit, ClassFlow, ClassRSS:
		return handleSteer(h, class, cmd, data, out)
	case ClassGPU, ClassBuffer, ClassBinding:
		return handleMemory(h, class, cmd, data, out)
	case ClassMeter:
		return handleMeter(h, cmd, data, out)
	case ClassJob:
		return handleJob(h, cmd, data, out)
	}
	return nil, unknown(class, cmd)
}

func unknown(class Class, cmd Command) error {
	return fmt.Errorf("class %d has no command %d: %w", class, cmd, syscall.EOPNOTSUPP)
}

func handleSteer(h Handler, class Class, cmd Command, data, out []byte) ([]byte, error) {
	switch class {
	case ClassSplit:
		var s Split
		if err := get(data, s.decode); err != nil {
			return nil, err
		}
		switch cmd {
		case SplitSet:
			return out, h.SetSplit(s)
		case SplitGet:
			got, err := h.Split(s.Queue)
			return put(out, got.encode), err
		}
	case ClassFlow:
		switch cmd {
		case FlowAdd:
			var r FlowRule
			if err := get(data, r.decode); err != nil {
				return nil, err
			}
			return withID(out)(h.AddFlow(r))
		case FlowDel:
			return byID(data, out, h.DelFlow)
		case FlowList:
			return list(data, out, h.Flows, func(r *FlowRule) uint32 { return r.ID }, ruleLen, putRule)
		}
	case ClassRSS:
		switch cmd {
		case RSSSet:
			var r RSS
			if err := r.decode(data); err != nil {
				return nil, err
			}
			return out, h.SetRSS(r)
		case RSSGet:
			return ask(data, out, h.RSS, func(b []byte, r *RSS) ([]byte, error) { return r.append(b) })
		}
	}
	return nil, unknown(class, cmd)
}

func handleMemory(h Handler, class Class, cmd Command, data, out []byte) ([]byte, error) {
	var n Binding
	switch class {
	case ClassGPU:
		switch cmd {
		case GPUList:
			return list(data, out, h.GPUs, func(g *GPUInfo) uint32 { return uint32(g.ID) + 1 }, gpuLen, putGPU)
		case GPUMapList:
			return list(data, out, h.GPUMaps, func(m *GPUMap) uint32 { return m.ID }, gpuMapLen, putGPUMap)
		}
	case ClassBuffer:
		switch cmd {
		case BufferRegister:
			var b Buffer
			if err := get(data, b.decode); err != nil {
				return nil, err
			}
			return withID(out)(h.RegisterBuffer(b))
		case BufferUnregister:
			return byID(data, out, h.UnregisterBuffer)
		case BufferList:
			return list(data, out, h.Buffers, func(b *Buffer) uint32 { return b.ID }, bufferLen, putBuffer)
		}
	case ClassBinding:
		switch cmd {
		case BindingRx, BindingTx:
			if err := get(data, n.decode); err != nil {
				return nil, err
			}
			if cmd == BindingRx {
				return withID(out)(h.BindRx(n.Buffer, n.Queues))
			}
			return withID(out)(h.BindTx(n.Buffer))
		case BindingUndo:
			return byID(data, out, h.Unbind)
		case BindingList:
			return list(data, out, h.Bindings, func(n *Binding) uint32 { return n.ID }, bindingLen, putBinding)
		}
	}
	return nil, unknown(class, cmd)
}

func handleMeter(h Handler, cmd Command, data, out []byte) ([]byte, error) {
	switch cmd {
	case MeterAdd:
		var m Meter
		if err := get(data, m.decode); err != nil {
			return nil, err
		}
		return withID(out)(h.AddMeter(m))
	case MeterRead:
		var id number
		if err := get(data, id.decode); err != nil {
			return nil, err
		}
		c, err := h.ReadMeter(uint32(id))
		return put(out, c.encode), err
	case MeterDel:
		return byID(data, out, h.DelMeter)
	case MeterPort:
		return ask(data, out, h.PortCounters, func(b []byte, c *PortCounters) ([]byte, error) { return put(b, c.encode), nil })
	}
	return nil, unknown(ClassMeter, cmd)
}

func handleJob(h Handler, cmd Command, data, out []byte) ([]byte, error) {
	var id number64
	switch cmd {
	case JobSubmit:
		var j Job
		if err := get(data, j.decode); err != nil {
			return nil, err
		}
		n, err := h.SubmitJob(j)
		id = number64(n)
		return put(out, id.encode), err
	case JobPoll, JobCancel:
		if err := get(data, id.decode); err != nil {
			return nil, err
		}
		call := h.PollJob
		if cmd == JobCancel {
			call = h.CancelJob
		}
		s, err := call(uint64(id))
		return put(out, s.encode), err
	}
	return nil, unknown(ClassJob, cmd)
}

// ask is a command without data whose reply is one value.
func ask[T any](data, out []byte, call func() (T, error), encode func([]byte, *T) ([]byte, error)) ([]byte, error) {
	if len(data) != 0 {
		return nil, badData("%d bytes of data, not 0", len(data))
	}
	v, err := call()
	if err != nil {
		return nil, err
	}
	return encode(out, &v)
}

// byID is a command on one object, with an empty reply.
func byID(data, out []byte, call func(uint32) error) ([]byte, error) {
	var id number
	if err := get(data, id.decode); err != nil {
		return nil, err
	}
	return out, call(uint32(id))
}

// withID replies with the id of a new object.
func withID(out []byte) func(uint32, error) ([]byte, error) {
	return func(id uint32, err error) ([]byte, error) {
		n := number(id)
		return put(out, n.encode), err
	}
}

// list replies with the elements after the id in the request.
func list[T any](data, out []byte, call func() ([]T, error), id func(*T) uint32, size int, encode func([]byte, *T) ([]byte, error)) ([]byte, error) {
	var after number
	if err := get(data, after.decode); err != nil {
		return nil, err
	}
	elems, err := call()
	if err != nil {
		return nil, err
	}
	return putList(out, elems, uint32(after), id, size, encode)
}

func putRule(b []byte, r *FlowRule) ([]byte, error)   { return tryPut(b, r.encode) }
func putGPU(b []byte, g *GPUInfo) ([]byte, error)     { return put(b, g.encode), nil }
func putBuffer(b []byte, f *Buffer) ([]byte, error)   { return put(b, f.encode), nil }
func putBinding(b []byte, n *Binding) ([]byte, error) { return tryPut(b, n.encode) }

func getRule(b []byte, r *FlowRule) error   { return get(b, r.decode) }
func getGPU(b []byte, g *GPUInfo) error     { return get(b, g.decode) }
func getBuffer(b []byte, f *Buffer) error   { return get(b, f.decode) }
func getBinding(b []byte, n *Binding) error { return get(b, n.decode) }
