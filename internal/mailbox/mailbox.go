// Package mailbox implements the host's end of the mailbox, a page in which vnicgpu.ko, the driver of a
// guest's GPU, asks the NIC to release pages (guest-images/vnicgpu/README.md, "The mailbox").
//
// The driver fills in a slot and waits. The host polls the slots (Poll), makes the NIC release the pages, and
// confirms (Done). If the driver has given up, the host must take the request's whole region from the NIC before it
// frees the slot (Free).
//
// The guest may write anything into the mailbox at any time, and no value makes Poll allocate or fail. A request may
// name a region or pages that do not exist, and may be repeated.
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
	atSlot    = 64 // of the first slot

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

// Reasons of requests besides Linux's enum mmu_notifier_event.
const (
	Removed = 0x100 // the GPU is removed from the guest
	Closed  = 0x101 // the program closed the region
)

// ErrNone means that there is no mailbox of this version with this number of slots.
var ErrNone = errors.New("no mailbox")

// Request asks the NIC to release pages.
type Request struct {
	Slot         int
	GivenUp      bool // the guest waits no longer: take the region from the NIC, then Free the slot
	Region       uint32
	First, Pages uint64 // the sum does not wrap
	// Generation is the region's. For these pages, what the driver answers to page requests with an earlier generation is
	// void.
	Generation uint32
	Reason     uint32
	Tag        uint64 // vnicgpu.ko gives no two requests of a guest the same tag
}

// Mailbox is a GPU's mailbox. Only one goroutine at a time may call Poll; the other methods except Close may be called
// concurrently.
type Mailbox struct {
	pin   *dma.Pin
	mem   []byte
	bound time.Duration
	seen  [Slots]seen // used by Poll
}

// seen is what the last Poll saw of a slot.
type seen struct {
	state uint32
	tag   uint64
}

// Open opens the mailbox at an offset of a GPU's memory. The error wraps EINVAL if off is no multiple of Size, one of
// dma.Region.Pin, as dma.ErrBounds, or ErrNone. The GPU must stay open until Close.
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

// check checks the header and sets bound. It reads the magic first, because the driver writes it last.
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

// Bound returns how long the driver waits for Done, as the header said in Open; the guest may have written any value.
func (m *Mailbox) Bound() time.Duration { return m.bound }

// Alive reports whether the mailbox still exists: the driver clears the magic when the GPU is removed.
func (m *Mailbox) Alive() bool { return m.word(0) == magic }

// Lost returns how many requests the driver did not make, because it found no free slot in time or an earlier
// request was given up and not freed. If the number has changed, take all regions of the GPU from the NIC.
func (m *Mailbox) Lost() uint32 { return m.word(atLost) }

// Poll calls f for each request that is new since the last Poll, and again for one that the guest has given up since. f
// may call Done and Free. If Alive is false, Poll calls f for none.
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

// Done tells the guest that the NIC has released a request's pages. false: the guest no longer waits; take the
// request's region from the NIC, and Free the slot.
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

// long reads a number of 64 bits as two words, which may not belong together if the guest writes meanwhile.
func (m *Mailbox) long(off int) uint64 { return uint64(m.word(off)) | uint64(m.word(off+4))<<32 }
