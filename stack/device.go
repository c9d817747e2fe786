package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/splitter"
)

// minPages is how many pages a receive binding's buffer needs at least for each queue.
const minPages = 4 * gpumem.FramePages

const pageSize = gpumem.PageSize

type flowKey = splitter.Flow

// Register implements devmem.Device.
func (s *Stack) Register(gpu int, off, size uint64) (devmem.Buffer, error) {
	fail := func(err error, why string) (devmem.Buffer, error) {
		return nil, fmt.Errorf("register %#x+%#x of gpu %d: %s: %w", off, size, gpu, why, err)
	}
	region, err := devmembase.NewRegion(gpu, off, size)
	if err != nil {
		return nil, fmt.Errorf("register %#x+%#x of gpu %d: %w", off, size, gpu, err)
	}
	i := slices.IndexFunc(s.nic.GPUs(), func(g driver.GPUInfo) bool { return g.ID == gpu })
	if i < 0 || s.control == nil {
		return fail(syscall.ENODEV, "no such gpu")
	}
	if n := s.nic.GPUs()[i].Size; off > n || size > n-off {
		return fail(syscall.EINVAL, diagnosis.PastEnd(n))
	}
	s.configMu.Lock()
	defer s.configMu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	id, err := s.control.RegisterBuffer(ctx, uint16(gpu), off, size)
	if err != nil {
		return fail(err, "refused by the nic")
	}
	b := &Buffer{Region: region, s: s, id: id}
	s.buffers[b] = struct{}{}
	return b, nil
}

// BindRX implements devmem.Device.
func (s *Stack) BindRX(buf devmem.Buffer, queues ...int) (devmem.Binding, error) {
	s.configMu.Lock()
	defer s.configMu.Unlock()
	queues = slices.Compact(slices.Sorted(slices.Values(queues)))
	rb, err := s.bindRX(buf, queues)
	if err != nil {
		return nil, fmt.Errorf("bind rx queues %s: %w", diagnosis.Numbers(queues), err)
	}
	return rb, nil
}

// buffer returns buf as a *Buffer, or EBADF if it is closed or not this stack's. The caller holds configMu.
func (s *Stack) buffer(buf devmem.Buffer) (*Buffer, error) {
	b, ok := buf.(*Buffer)
	if !ok || b.s != s || b.closed {
		return nil, fmt.Errorf("no such buffer: %w", syscall.EBADF)
	}
	return b, nil
}

// bindRX is BindRX for queues that are sorted and without duplicates. The caller holds configMu.
func (s *Stack) bindRX(buf devmem.Buffer, queues []int) (*rxBinding, error) {
	b, err := s.buffer(buf)
	if err != nil {
		return nil, err
	}
	bound := func(q int) bool { return s.rx[q].Load() != nil }
	if err := devmembase.CheckQueues(queues, len(s.rx), bound); err != nil {
		return nil, err
	}
	if err := b.CheckRX(len(queues), minPages, s.allBindings()); err != nil {
		return nil, err
	}
	rb := &rxBinding{binding: binding{s: s, id: s.newID(), buf: b, done: make(chan struct{})}}
	if rb.pool, err = gpumem.NewPool(b.GPU(), b.Offset(), b.Size(), s.nic.Refill, rb.ended); err != nil {
		return nil, fmt.Errorf("its pages: %w", err)
	}
	for _, q := range queues {
		l, err := s.newShadowQueue(q, rb)
		if err != nil {
			s.dropShadowQueues(rb.shadowQueues)
			return nil, fmt.Errorf("%w: %w", err, syscall.ENOMEM)
		}
		rb.shadowQueues = append(rb.shadowQueues, l)
	}
	s.rxBinds[rb.id] = rb
	s.addShadowQueues(rb.shadowQueues)
	for i, l := range rb.shadowQueues { // BindQueue turns on header split, which the NIC requires before BindRx
		s.rx[l.queue].Store(l)
		if err := s.nic.BindQueue(l.queue, b.GPU(), rb.pool); err != nil {
			s.rx[l.queue].Store(nil)
			s.dropShadowQueues(rb.shadowQueues[i:])
			rb.shadowQueues = rb.shadowQueues[:i]
			_ = s.closeRX(rb) // err is the cause
			return nil, fmt.Errorf("queue %d: %w", l.queue, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	if rb.nicID, err = s.control.BindRx(ctx, b.id, rb.queues()...); err != nil {
		_ = s.closeRX(rb)
		return nil, fmt.Errorf("refused by the nic: %w", err)
	}
	return rb, nil
}

// BindTX implements devmem.Device.
func (s *Stack) BindTX(buf devmem.Buffer) (devmem.Binding, error) {
	s.configMu.Lock()
	defer s.configMu.Unlock()
	b, err := s.buffer(buf)
	if err != nil {
		return nil, fmt.Errorf("bind tx: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	id, err := s.control.BindTx(ctx, b.id)
	if err != nil {
		return nil, fmt.Errorf("bind tx: refused by the nic: %w", err)
	}
	tb := &txBinding{binding: binding{s: s, id: s.newID(), buf: b, nicID: id, done: make(chan struct{})}}
	tb.refs.Store(1)
	s.txBinds.Store(tb.id, tb)
	return tb, nil
}

func (s *Stack) newID() uint32 {
	for {
		s.nextID++
		_, tx := s.txBinds.Load(s.nextID)
		if _, rx := s.rxBinds[s.nextID]; !rx && !tx && s.nextID != 0 {
			return s.nextID
		}
	}
}

// newShadowQueue makes a shadow queue. It reuses the shadow of a dropped queue with as many slots, if there is one. The
// caller holds configMu.
func (s *Stack) newShadowQueue(queue int, b *rxBinding) (*shadowQueue, error) {
	n := min(b.pool.Pages(), maxSlots-1) + 1 // one more, for the junk slot
	free := s.shadows[n]
	if len(free) == 0 {
		sh, err := newShadow(n)
		if err != nil {
			return nil, err
		}
		free = []*shadow{sh}
	}
	s.shadows[n] = free[:len(free)-1]
	return makeShadowQueue(queue, b, free[len(free)-1], n), nil
}

// dropShadowQueues removes shadow queues from shadowQueues. It keeps their address space for later ones: netstack may
// still have views of it. The caller holds configMu.
func (s *Stack) dropShadowQueues(ls []*shadowQueue) {
	all := slices.DeleteFunc(slices.Clone(*s.shadowQueues.Load()),
		func(l *shadowQueue) bool { return slices.Contains(ls, l) })
	s.shadowQueues.Store(&all)
	for _, l := range ls {
		s.shadows[len(l.slots)] = append(s.shadows[len(l.slots)], l.shadow)
	}
}

func (s *Stack) addShadowQueues(ls []*shadowQueue) {
	all := append(slices.Clone(*s.shadowQueues.Load()), ls...)
	slices.SortFunc(all, func(a, b *shadowQueue) int { return cmp.Compare(a.shadow.lo, b.shadow.lo) })
	s.shadowQueues.Store(&all)
}

// find returns the shadow queue, the slot and the offset in the slot where b starts; l is nil if b is in no shadow. It
// does not read b.
func (s *Stack) find(b []byte) (l *shadowQueue, slot uint32, off int) {
	all := *s.shadowQueues.Load()
	i, j := 0, len(all)
	for i < j { // the last shadow that does not start behind b
		if m := int(uint(i+j) / 2); all[m].shadow.startsBehind(b) {
			j = m
		} else {
			i = m + 1
		}
	}
	if i > 0 {
		if slot, off, ok := all[i-1].shadow.find(b); ok {
			return all[i-1], slot, off
		}
	}
	return nil, 0, 0
}

// AddFlow implements devmem.Device.
func (s *Stack) AddFlow(f devmem.Flow) (devmem.FlowID, error) {
	if err := devmembase.CheckFlow(f, len(s.rx)); err != nil {
		return 0, fmt.Errorf("flow %v to %v: %w", f.Src, f.Dst, err)
	}
	if s.control == nil {
		return 0, syscall.EOPNOTSUPP
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	src, dst := f.Src.Addr().Unmap(), f.Dst.Addr().Unmap()
	r := control.FlowRule{
		IPv6: src.Is6() || dst.Is6(), Proto: splitter.ProtoTCP, Src: src, Dst: dst,
		SrcPort: f.Src.Port(), DstPort: f.Dst.Port(), Queue: uint16(f.Queue),
	}
	s.configMu.Lock()
	defer s.configMu.Unlock()
	var err error
	if r.ID, err = s.control.AddFlow(ctx, r); err != nil {
		return 0, fmt.Errorf("flow %v to %v: %w", f.Src, f.Dst, err)
	}
	s.nextFlow++
	s.rules[s.nextFlow] = r
	return s.nextFlow, nil
}

// DelFlow implements devmem.Device.
func (s *Stack) DelFlow(id devmem.FlowID) error {
	s.configMu.Lock()
	defer s.configMu.Unlock()
	r, ok := s.rules[id]
	if !ok {
		return diagnosis.NoFlow(id, slices.Collect(maps.Keys(s.rules)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	if err := s.control.DelFlow(ctx, r.ID); err != nil {
		return fmt.Errorf("flow %d: %w", id, err)
	}
	delete(s.rules, id)
	return nil
}

// SetRSS implements devmem.Device.
func (s *Stack) SetRSS(n int) error {
	if n < 1 || n > len(s.rx) {
		return fmt.Errorf("rss over %d queues of %d: %w", n, len(s.rx), syscall.EINVAL)
	}
	if s.control == nil {
		return syscall.EOPNOTSUPP
	}
	r := control.RSS{
		HashTypes: control.HashIPv4 | control.HashTCPv4 | control.HashUDPv4 |
			control.HashIPv6 | control.HashTCPv6 | control.HashUDPv6,
		Key: splitter.DefaultKey, Table: make([]uint16, 128),
	}
	for i := range r.Table {
		r.Table[i] = uint16(i % n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	s.configMu.Lock()
	defer s.configMu.Unlock()
	if err := s.control.SetRSS(ctx, r); err != nil {
		return fmt.Errorf("rss over %d queues: %w", n, err)
	}
	s.rss = &r
	return nil
}

// Restore sets up buffers, bindings (not closed ones for receive), rules and, if SetRSS was called, RSS again after the
// NIC has lost them (driver.Options.OnGeneration). Connections, tokens and the ids of bindings and flows stay valid.
func (s *Stack) Restore(ctx context.Context) error {
	s.configMu.Lock()
	defer s.configMu.Unlock()
	var errs []error
	do := func(id *uint32, what string, f func() (uint32, error)) {
		n, err := f()
		if err != nil {
			errs = append(errs, fmt.Errorf("restore %s: %w", what, err))
		}
		*id = n // f returns 0 with an error
	}
	for b := range s.buffers {
		do(&b.id, "buffer", func() (uint32, error) {
			return s.control.RegisterBuffer(ctx, uint16(b.GPU()), b.Offset(), b.Size())
		})
	}
	for _, b := range s.rxBinds {
		if !b.closed {
			do(&b.nicID, "rx binding", func() (uint32, error) { return s.control.BindRx(ctx, b.buf.id, b.queues()...) })
		}
	}
	s.txBinds.Range(func(_, v any) bool {
		b := v.(*txBinding)
		do(&b.nicID, "tx binding", func() (uint32, error) { return s.control.BindTx(ctx, b.buf.id) })
		return true
	})
	for _, id := range slices.Sorted(maps.Keys(s.rules)) {
		r := s.rules[id]
		do(&r.ID, "rule", func() (uint32, error) { return s.control.AddFlow(ctx, r) })
		s.rules[id] = r
	}
	if s.rss != nil {
		errs = append(errs, s.control.SetRSS(ctx, *s.rss))
	}
	return errors.Join(errs...)
}

// Stats implements devmem.Device. With a Control, and before Close, it reads NICDrops from the NIC by a command;
// else, or if the command fails, NICDrops is 0.
func (s *Stack) Stats() devmem.Stats {
	t := s.ns.Stats().TCP
	st := devmem.Stats{
		RxDevmemBytes: s.count.rxDevice.Load(), RxLinearBytes: s.count.rxLinear.Load(),
		TxDevmemBytes: s.count.txDevice.Load(), TxLinearBytes: s.count.txLinear.Load(),
		RxSegments: t.ValidSegmentsReceived.Value(), TxSegments: t.SegmentsSent.Value(), Retransmits: t.Retransmits.Value(),
		RxFrameDrops: s.count.rxDropped.Load(), RxRefused: s.count.rxRefused.Load(), TxFrameDrops: s.count.txDropped.Load(),
	}
	if s.control != nil && !s.conns.Closed() {
		ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
		if c, err := s.control.PortCounters(ctx); err == nil {
			st.NICDrops = c.Rx.Drops
		}
		cancel()
	}
	s.configMu.Lock()
	defer s.configMu.Unlock()
	for q := range s.rx {
		qs := devmem.QueueStats{Queue: q}
		if l := s.rx[q].Load(); l != nil {
			qs.Binding = l.binding.id
		}
		st.Queues = append(st.Queues, qs)
	}
	st.Bindings = diagnosis.Stats(s.allBindings())
	return st
}
