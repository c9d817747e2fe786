package vfiouser

import (
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
)

func (s *session) vectors(i uint32) uint32 {
	if int64(i) >= int64(len(s.info.IRQs)) {
		return 0
	}
	return uint32(max(s.info.IRQs[i].Count, 0))
}

func (s *session) getIRQInfo(m *message) error {
	i := peer.Decode[irqInfo](m.body)
	if i.Argsz < irqInfoLen || i.Index >= NumIRQs {
		return fmt.Errorf("argsz %d, index %d: %w", i.Argsz, i.Index, unix.EINVAL)
	}
	i = irqInfo{Argsz: irqInfoLen, Index: i.Index, Count: s.vectors(i.Index)}
	if i.Count > 0 {
		i.Flags = irqEventFD
	}
	s.out = peer.Append(s.out, i)
	return nil
}

// setIRQs serves DEVICE_SET_IRQS. QEMU may send a vector's eventfd again when the guest unmasks the vector.
func (s *session) setIRQs(m *message) error {
	i := peer.Decode[irqSet](m.body)
	n := s.vectors(i.Index)
	switch {
	case i.Argsz < irqSetLen || i.Index >= NumIRQs:
		return fmt.Errorf("argsz %d, index %d: %w", i.Argsz, i.Index, unix.EINVAL)
	case i.Start > n || i.Count > n-i.Start:
		return fmt.Errorf("index %d: vectors [%d, +%d) of %d: %w", i.Index, i.Start, i.Count, n, unix.EINVAL)
	case i.Flags&irqFDs == 0 && m.fds.Len() > 0:
		return fmt.Errorf("flags %#x with %d descriptors: %w", i.Flags, m.fds.Len(), unix.EINVAL)
	}
	switch i.Flags {
	case irqFDs | irqTrigger:
		return s.setEvents(m, &i)
	case irqNone | irqTrigger, irqBool | irqTrigger:
		if i.Flags&irqNone != 0 && i.Start == 0 && i.Count == 0 { // this "disables all interrupts of the index"
			return s.disableIRQs(i.Index)
		}
		return fmt.Errorf("the client cannot trigger interrupts: %w", unix.ENOTSUP)
	case irqNone | irqMask, irqBool | irqMask, irqFDs | irqMask, irqNone | irqUnmask, irqBool | irqUnmask,
		irqFDs | irqUnmask:
		return fmt.Errorf("interrupts cannot be masked here: %w", unix.ENOTSUP)
	}
	return fmt.Errorf("flags %#x: not one kind of data and one action: %w", i.Flags, unix.EINVAL)
}

// setEvents gives the device an eventfd of m for each vector of i, or removes the vectors' eventfds: "If no file
// descriptors are provided, this de-assigns the specified previously configured interrupts".
func (s *session) setEvents(m *message, i *irqSet) error {
	if i.Count == 0 || m.fds.Len() != 0 && uint32(m.fds.Len()) != i.Count {
		return fmt.Errorf("index %d: %d descriptors for %d vectors: %w", i.Index, m.fds.Len(), i.Count, unix.EINVAL)
	}
	for k := range m.fds.Len() { // check all eventfds before the device gets the first one
		if err := scm.CheckEvent(m.fds.At(k)); err != nil {
			return fmt.Errorf("index %d: vector %d: %w", i.Index, int(i.Start)+k, err)
		}
	}
	for k := range int(i.Count) {
		fd := -1
		if m.fds.Len() > 0 {
			fd = m.fds.Take(k)
		}
		if err := s.dev.SetIRQ(int(i.Index), int(i.Start)+k, fd); err != nil {
			return fmt.Errorf("index %d: vector %d: %w", i.Index, int(i.Start)+k, err)
		}
	}
	return nil
}

// An index without vectors is no error: QEMU disables any index that it may have enabled.
func (s *session) disableIRQs(index uint32) error {
	if s.vectors(index) == 0 {
		return nil
	}
	return peer.Wrap(s.dev.DisableIRQs(int(index)), "index %d", index)
}
