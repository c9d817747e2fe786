package control

import "context"

// Hello asks what the NIC is and tells it that the driver knows the generation of its state.
func (c *Client) Hello(ctx context.Context) (Info, error) {
	var i Info
	b, err := c.Call(ctx, ClassInfo, InfoHello, nil)
	if err == nil {
		err = get(b[:min(len(b), infoLen)], i.decode)
	}
	return i, err
}

// SetSplit sets a receive queue's header split.
func (c *Client) SetSplit(ctx context.Context, s Split) error {
	return c.order(ctx, ClassSplit, SplitSet, put(nil, s.encode))
}

// Split reads a receive queue's header split.
func (c *Client) Split(ctx context.Context, queue uint16) (Split, error) {
	s := Split{Queue: queue}
	b, err := c.Call(ctx, ClassSplit, SplitGet, put(nil, s.encode))
	if err == nil {
		err = get(b, s.decode)
	}
	return s, err
}

// AddFlow adds a rule and returns its id. A rule is stronger than RSS; the one with more fields set goes first.
func (c *Client) AddFlow(ctx context.Context, r FlowRule) (uint32, error) {
	b, err := tryPut(nil, r.encode)
	if err != nil {
		return 0, err
	}
	return c.create(ctx, ClassFlow, FlowAdd, b)
}

// DelFlow deletes a rule.
func (c *Client) DelFlow(ctx context.Context, id uint32) error {
	return c.order(ctx, ClassFlow, FlowDel, le.AppendUint32(nil, id))
}

// Flows lists the rules.
func (c *Client) Flows(ctx context.Context) ([]FlowRule, error) {
	return lists(ctx, c, ClassFlow, FlowList, ruleLen, getRule, func(r *FlowRule) uint32 { return r.ID })
}

// SetRSS sets receive side scaling.
func (c *Client) SetRSS(ctx context.Context, r RSS) error {
	b, err := r.append(nil)
	if err != nil {
		return err
	}
	return c.order(ctx, ClassRSS, RSSSet, b)
}

// RSS reads receive side scaling.
func (c *Client) RSS(ctx context.Context) (RSS, error) {
	var r RSS
	b, err := c.Call(ctx, ClassRSS, RSSGet, nil)
	if err == nil {
		err = r.decode(b)
	}
	return r, err
}

// GPUs lists the GPUs that the port may use.
func (c *Client) GPUs(ctx context.Context) ([]GPUInfo, error) {
	return lists(ctx, c, ClassGPU, GPUList, gpuLen, getGPU, func(g *GPUInfo) uint32 { return uint32(g.ID) + 1 })
}

// RegisterBuffer registers a range of GPU memory and returns its id.
func (c *Client) RegisterBuffer(ctx context.Context, gpu uint16, off, size uint64) (uint32, error) {
	f := Buffer{GPU: gpu, Off: off, Size: size}
	return c.create(ctx, ClassBuffer, BufferRegister, put(nil, f.encode))
}

// UnregisterBuffer undoes RegisterBuffer.
func (c *Client) UnregisterBuffer(ctx context.Context, id uint32) error {
	return c.order(ctx, ClassBuffer, BufferUnregister, le.AppendUint32(nil, id))
}

// Buffers lists the registered buffers.
func (c *Client) Buffers(ctx context.Context) ([]Buffer, error) {
	return lists(ctx, c, ClassBuffer, BufferList, bufferLen, getBuffer, func(b *Buffer) uint32 { return b.ID })
}

// BindRx binds receive queues to a buffer and returns the binding's id.
func (c *Client) BindRx(ctx context.Context, buffer uint32, queues ...uint16) (uint32, error) {
	n := Binding{Buffer: buffer, Queues: queues}
	b, err := tryPut(nil, n.encode)
	if err != nil {
		return 0, err
	}
	return c.create(ctx, ClassBinding, BindingRx, b)
}

// BindTx allows transmission from a buffer and returns the binding's id.
func (c *Client) BindTx(ctx context.Context, buffer uint32) (uint32, error) {
	n := Binding{Buffer: buffer, Tx: true}
	b, err := tryPut(nil, n.encode)
	if err != nil {
		return 0, err
	}
	return c.create(ctx, ClassBinding, BindingTx, b)
}

// Unbind ends a binding.
func (c *Client) Unbind(ctx context.Context, id uint32) error {
	return c.order(ctx, ClassBinding, BindingUndo, le.AppendUint32(nil, id))
}

// Bindings lists the bindings.
func (c *Client) Bindings(ctx context.Context) ([]Binding, error) {
	return lists(ctx, c, ClassBinding, BindingList, bindingLen, getBinding, func(n *Binding) uint32 { return n.ID })
}

// AddMeter installs a meter and returns its id.
func (c *Client) AddMeter(ctx context.Context, m Meter) (uint32, error) {
	b, err := tryPut(nil, m.encode)
	if err != nil {
		return 0, err
	}
	return c.create(ctx, ClassMeter, MeterAdd, b)
}

// ReadMeter reads a meter.
func (c *Client) ReadMeter(ctx context.Context, id uint32) (MeterCounters, error) {
	var m MeterCounters
	b, err := c.Call(ctx, ClassMeter, MeterRead, le.AppendUint32(nil, id))
	if err == nil {
		err = get(b, m.decode)
	}
	return m, err
}

// DelMeter removes a meter.
func (c *Client) DelMeter(ctx context.Context, id uint32) error {
	return c.order(ctx, ClassMeter, MeterDel, le.AppendUint32(nil, id))
}

// PortCounters reads what the port has seen in all.
func (c *Client) PortCounters(ctx context.Context) (PortCounters, error) {
	var p PortCounters
	b, err := c.Call(ctx, ClassMeter, MeterPort, nil)
	if err == nil {
		err = get(b, p.decode)
	}
	return p, err
}

// order is a command whose reply is empty.
func (c *Client) order(ctx context.Context, class Class, cmd Command, data []byte) error {
	b, err := c.Call(ctx, class, cmd, data)
	if err == nil && len(b) != 0 {
		err = badData("reply of %d bytes, not 0", len(b))
	}
	return err
}

// create is a command whose reply is an id.
func (c *Client) create(ctx context.Context, class Class, cmd Command, data []byte) (uint32, error) {
	var id number
	b, err := c.Call(ctx, class, cmd, data)
	if err == nil {
		err = get(b, id.decode)
	}
	return uint32(id), err
}

// lists asks for a list, frame by frame.
func lists[T any](ctx context.Context, c *Client, class Class, cmd Command, size int, decode func([]byte, *T) error, id func(*T) uint32) ([]T, error) {
	var all []T
	for after := uint32(0); ; {
		b, err := c.Call(ctx, class, cmd, le.AppendUint32(nil, after))
		if err != nil {
			return nil, err
		}
		var more bool
		if all, more, err = getList(b, all, size, decode); err != nil {
			return nil, err
		}
		if !more {
			return all, nil
		}
		last := id(&all[len(all)-1])
		if last <= after {
			return nil, badData("list: element %d after %d", last, after) // it would never end
		}
		after = last
	}
}
