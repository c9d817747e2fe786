package vfiotest

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/vfiouser"
)

// IRQSet returns the body of a DEVICE_SET_IRQS request without data.
func IRQSet(flags uint32, index, start, count int) []byte {
	return words(20, flags, uint32(index), uint32(start), uint32(count))
}

// Flags of DEVICE_SET_IRQS (include/uapi/linux/vfio.h): VFIO_IRQ_SET_DATA_EVENTFD and DATA_NONE, with
// ACTION_TRIGGER.
const (
	irqEvents  = 0x24
	irqDisable = 0x21
)

// SetIRQ sets the event that the device signals for a vector; nil removes it. The caller still owns e.
func (c *Client) SetIRQ(index, vector int, e *Event) error {
	if e == nil {
		_, err := c.Request(vfiouser.CmdSetIRQs, IRQSet(irqEvents, index, vector, 1), 0)
		return err
	}
	return c.SetIRQs(index, vector, e)
}

// SetIRQs sets the events of successive vectors, from vector start on, with one message. The caller still owns events.
func (c *Client) SetIRQs(index, start int, events ...*Event) error {
	fds := make([]int, len(events))
	for i, e := range events {
		fds[i] = e.FD()
	}
	_, err := c.Request(vfiouser.CmdSetIRQs, IRQSet(irqEvents, index, start, len(events)), 0, fds...)
	return err
}

// DisableIRQs removes the events of all vectors of an index.
func (c *Client) DisableIRQs(index int) error {
	_, err := c.Request(vfiouser.CmdSetIRQs, IRQSet(irqDisable, index, 0, 0), 0)
	return err
}

// Event is an eventfd.
type Event struct {
	fd   int
	file *os.File // of fd, which is non-blocking: reads of file can have a deadline
}

// NewEvent makes an Event.
func NewEvent() (*Event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &Event{fd, os.NewFile(uintptr(fd), "eventfd")}, nil
}

// FD returns the descriptor, which the Event still owns.
func (e *Event) FD() int { return e.fd }

// Wait waits until the eventfd's counter is not 0, sets it to 0 and returns its value: the number of signals since the
// last Wait or Poll, if each signal adds 1. If ctx ends first, Wait returns its cause.
func (e *Event) Wait(ctx context.Context) (uint64, error) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = e.file.SetReadDeadline(time.Unix(1, 0))
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended
		}
		_ = e.file.SetReadDeadline(time.Time{})
	}()
	var b [8]byte
	if _, err := e.file.Read(b[:]); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return 0, fmt.Errorf("eventfd: %w", err)
	}
	return le.Uint64(b[:]), nil
}

// Poll sets the eventfd's counter to 0 and returns its value, as Wait does, but does not wait: it returns 0 if the
// event was not signalled since the last Wait or Poll.
func (e *Event) Poll() uint64 {
	var b [8]byte
	if n, err := unix.Read(e.fd, b[:]); err != nil || n != len(b) {
		return 0
	}
	return le.Uint64(b[:])
}

// Close closes the eventfd.
func (e *Event) Close() { e.file.Close() }
