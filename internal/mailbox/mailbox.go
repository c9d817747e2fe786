// Package mailbox implements the host's end of the mailbox, a page in which vnicgpu.ko, the driver of a
// guest's GPU, asks the NIC to release pages (guest-images/vnicgpu/README.md, "The mailbox").
//
// The driver fills in a slot and waits. The host polls the slots (Poll), makes the NIC release the pages, and
// confirms (Done). If the driver has given up, the host must take the whole region from the NIC before it
// frees the slot (Free).
//
// The guest may write anything there at any time, and no value makes Poll allocate or fail. A request may name a
// region or pages that do not exist, and may be repeated.
//
// The package is not API (README, Stability).
package mailbox

import (
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
)

// Slots is the maximum number of concurrent requests.
const Slots = 63

// Size is the size of a mailbox in bytes.
const Size = 4096

// The layout, little endian, as in guest-images/vnicgpu/mailbox.c: a header and slots.
const (
	magic   = 0x424d4756 // "VGMB"
	version = 1

	atVersion = 4
	atSlots   = 8
	atAck     = 12
	atLost    = 16
	atSlot    = 64 // of the first one

	slotSize     = 64
	atState      = 0
	atRegion     = 4
	atFirst      = 8
	atPages      = 16
	atGeneration = 24
	atReason     = 28
	atTag        = 32

	free    = 0
	asked   = 1 // by the guest
	done    = 2 // by the host
	givenUp = 3 // by the guest
)

// Reasons besides Linux's enum mmu_notifier_event.
const (
	Removed = 0x100 // the GPU is removed from the guest
	Closed  = 0x101 // the program closed the region
)

// ErrNone means that there is no mailbox of this version.
var ErrNone = errors.New("no mailbox")

// Request asks the NIC to release pages.
type Request struct {
	Slot         int
	GivenUp      bool // the guest waits no longer: take the region from the NIC, then Free the slot
	Region       uint32
	First, Pages uint64 // the sum does not wrap
	Generation   uint32 // of the region; the driver's answers of smaller ones are void for these pages
	Reason       uint32
	Tag          uint64 // increases with each request
}

// Mailbox is a GPU's mailbox. Only one goroutine may call Poll; the other methods may be called concurrently
// until Close.
type Mailbox struct {
	pin   *dma.Pin
	mem   []byte
	bound time.Duration
	seen  [Slots]seen // for Poll
}

// seen is what Poll saw of a slot.
type seen struct {
	state uint32
	tag   uint64
}

// Open opens the mailbox at an offset of a GPU's memory. The error is one of dma.Region.Pin, as dma.ErrBounds,
// EINVAL, or ErrNone. The GPU must stay open until Close.
func Open(gpu *gpumem.GPU, off uint64) (*Mailbox, error) {
	m, err := open(gpu.Region(), off)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: mailbox at %#x: %w", gpu.ID(), off, err)
	}
	return m, nil
}

func open(r *dma.Region, off uint64) (*Mailbox, error) {
	if off%Size != 0 {
		return nil, fmt.Errorf("not at a multiple of %d: %w", Size, syscall.EINVAL)
	}
	pin, err := r.Pin(off, Size)
	if err != nil {
		return nil, err
	}
	m := &Mailbox{pin: pin, mem: pin.Bytes()}
	if err := m.check(); err != nil {
		pin.Close()
		return nil, err
	}
	return m, nil
}

// check reads the header: the magic, which the driver writes last, first.
func (m *Mailbox) check() error {
	if x := m.word(0); x != magic {
		return fmt.Errorf("%w: it begins with %#x", ErrNone, x)
	}
	if v, n := m.word(atVersion), m.word(atSlots); v != version || n != Slots {
		return fmt.Errorf("%w of version %d with %d slots: version %d of %d", ErrNone, version, Slots, v, n)
	}
	m.bound = time.Duration(m.word(atAck)) * time.Millisecond
	return nil
}

// Bound returns how long the driver waits for Done; the guest may have written any value.
func (m *Mailbox) Bound() time.Duration { return m.bound }

// Alive reports whether the mailbox still exists.
func (m *Mailbox) Alive() bool { return m.word(0) == magic }

// Lost returns how many requests found no free slot. If it has changed, take all regions of the GPU from the
// NIC.
func (m *Mailbox) Lost() uint32 { return m.word(atLost) }

// Poll calls f for each request that is new, and again for one that the guest has given up since. f may call
// Done and Free. Without Alive it calls f for none.
func (m *Mailbox) Poll(f func(Request)) {
	if !m.Alive() {
		return
	}
	for i := range Slots {
		state := m.word(fieldOff(i, atState))
		was := &m.seen[i]
		if state != asked && state != givenUp {
			was.state = state
			continue
		}
		tag := m.long(fieldOff(i, atTag))
		if was.state == state && was.tag == tag {
			continue
		}
		was.state, was.tag = state, tag
		r := Request{Slot: i, GivenUp: state == givenUp, Tag: tag,
			Region: m.word(fieldOff(i, atRegion)), First: m.long(fieldOff(i, atFirst)), Pages: m.long(fieldOff(i, atPages)),
			Generation: m.word(fieldOff(i, atGeneration)), Reason: m.word(fieldOff(i, atReason))}
		r.Pages = min(r.Pages, math.MaxUint64-r.First)
		f(r)
	}
}

// Done tells the guest that the NIC has released a request's pages. false: the guest does not wait; take the
// region from the NIC, and Free the slot.
func (m *Mailbox) Done(slot int) bool {
	return dma.CompareAndSwapWord(m.mem[fieldOff(slot, atState):], asked, done)
}

// Free frees a slot whose request the guest has given up; false: it has not.
func (m *Mailbox) Free(slot int) bool {
	return dma.CompareAndSwapWord(m.mem[fieldOff(slot, atState):], givenUp, free)
}

// Close unpins the memory. It may be called again; after it, no other method may be called.
func (m *Mailbox) Close() {
	m.pin.Close()
	m.mem = nil
}

func fieldOff(slot, field int) int { return atSlot + slot*slotSize + field }

func (m *Mailbox) word(off int) uint32 { return dma.LoadWord(m.mem[off:]) }

// long reads two words, which may not match if the guest writes.
func (m *Mailbox) long(off int) uint64 { return uint64(m.word(off)) | uint64(m.word(off+4))<<32 }
