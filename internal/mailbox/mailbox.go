// Package mailbox is the host's end of the page by which the driver of a guest's GPU, vnicgpu.ko, tells the NIC that it
// has to let go of pages of programs (guest-images/vnicgpu/README.md, "The mailbox").
//
// The driver fills in one of 63 slots and waits. The host looks at all of them (Poll), has the NIC let go of what is
// asked, and says so (Done). A driver that has waited for too long has given up: it does as if the NIC had let go, so
// the host takes the region from the NIC for good before it gives the slot back (Free).
//
// The page is the guest's, which may write anything there at any time: what comes out of it is a request that says so,
// and nothing else. No value has Poll take longer, allocate or fail. A request may name a region, pages or a reason
// that there are not, and be there again and again; a range of pages does not wrap. Guests that lie are told lies by
// their own memory, and by nobody else's.
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

// Slots is how many requests there may be at the same time.
const Slots = 63

// Size is that of a mailbox, in bytes.
const Size = 4096

// The layout, little endian, as guest-images/vnicgpu/mailbox.c has it: a header and slots of 64 bytes each.
const (
	magic   = 0x424d4756 // "VGMB"
	version = 1

	atVersion = 4
	atSlots   = 8
	atAck     = 12
	atLost    = 16
	atSlot    = 64 // the first one

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
	givenUp = 3 // by the guest, in the place of asked
)

// Reasons that are none of Linux's (enum mmu_notifier_event, from 0).
const (
	Removed = 0x100 // the GPU is removed from the guest
	Closed  = 0x101 // the program closed the region
)

// ErrNone says that there is no mailbox of this version.
var ErrNone = errors.New("no mailbox")

// Request is that the NIC lets go of pages.
type Request struct {
	Slot         int
	GivenUp      bool // the guest waits no more: take the region from the NIC, then Free the slot
	Region       uint32
	First, Pages uint64 // of the region; the sum does not wrap
	Generation   uint32 // of the region; answers of the driver with a smaller one are void for these pages
	Reason       uint32
	Tag          uint64 // counts up
}

// Mailbox is one of a GPU. Poll is for one goroutine, all else for any, until Close.
type Mailbox struct {
	pin   *dma.Pin
	mem   []byte
	bound time.Duration
	seen  [Slots]seen // of Poll
}

// seen is what Poll saw last in a slot.
type seen struct {
	state uint32
	tag   uint64
}

// Open finds the mailbox at an offset of a GPU's memory, as its guest names it. It is dma.ErrBounds or EINVAL for a
// place where none can be, ErrNone where there is none. The GPU stays open until Close, which is the caller's.
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

// check reads the header. The magic is read first, as the driver writes it last.
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

// Bound is how long the driver said that it waits for Done: any time, as the guest wrote it.
func (m *Mailbox) Bound() time.Duration { return m.bound }

// Alive tells whether the driver has not taken the mailbox away, as it does with its GPU: all regions are gone then.
func (m *Mailbox) Alive() bool { return m.word(0) == magic }

// Lost is how many requests have found no slot within the bound, ever: where it has changed, take all regions of the
// GPU from the NIC, as which ones are meant is not known.
func (m *Mailbox) Lost() uint32 { return m.word(atLost) }

// Poll calls f for each request that is new since the last call, and again for one that the guest has given up since.
// It looks at each slot once; f may call Done and Free. Nothing is new in a mailbox that is not Alive.
func (m *Mailbox) Poll(f func(Request)) {
	if !m.Alive() {
		return
	}
	for i := range Slots {
		state := m.word(at(i, atState))
		was := &m.seen[i]
		if state != asked && state != givenUp {
			was.state = state
			continue
		}
		tag := m.long(at(i, atTag))
		if was.state == state && was.tag == tag {
			continue
		}
		was.state, was.tag = state, tag
		r := Request{Slot: i, GivenUp: state == givenUp, Tag: tag,
			Region: m.word(at(i, atRegion)), First: m.long(at(i, atFirst)), Pages: m.long(at(i, atPages)),
			Generation: m.word(at(i, atGeneration)), Reason: m.word(at(i, atReason))}
		r.Pages = min(r.Pages, math.MaxUint64-r.First)
		f(r)
	}
}

// Done says that the NIC has let go of what was asked in a slot. It is false where the guest does not wait for it any
// more: then the slot is to be freed (Free), once its region is taken from the NIC.
func (m *Mailbox) Done(slot int) bool {
	return dma.CompareAndSwapWord(m.mem[at(slot, atState):], asked, done)
}

// Free gives back a slot that the guest has given up. It is false for one that it has not.
func (m *Mailbox) Free(slot int) bool {
	return dma.CompareAndSwapWord(m.mem[at(slot, atState):], givenUp, free)
}

// Close lets go of the memory. A second Close does nothing.
func (m *Mailbox) Close() {
	m.pin.Close()
	m.mem = nil
}

// at is the place of a field of a slot.
func at(slot, field int) int { return atSlot + slot*slotSize + field }

func (m *Mailbox) word(off int) uint32 { return dma.LoadWord(m.mem[off:]) }

// long reads two words: a guest that writes meanwhile gives some of both.
func (m *Mailbox) long(off int) uint64 { return uint64(m.word(off)) | uint64(m.word(off+4))<<32 }
