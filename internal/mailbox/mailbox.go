// Package mailbox is the host's end of the page through which the driver of a guest's GPU,
// vnicgpu.ko, asks the NIC to release pages of programs (guest-images/vnicgpu/README.md, "The
// mailbox").
//
// The driver fills in one of 63 slots and waits. The host reads all slots (Poll), makes the NIC
// release the pages, and reports this (Done). A driver that has waited for too long gives up and
// continues as if the NIC had released the pages, so the host removes the region from the NIC
// permanently before it frees the slot (Free).
//
// The page belongs to the guest, which may write anything to it at any time: the only result is a
// request. No value makes Poll take longer, allocate or fail. A request may name a region, pages or
// a reason that do not exist, and may repeat; a range of pages does not wrap. A guest that lies
// harms only its own memory.
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

// Slots is the maximum of requests at the same time.
const Slots = 63

// Size is the size of a mailbox in bytes.
const Size = 4096

// The layout, little endian, as in guest-images/vnicgpu/mailbox.c: a header and slots of 64 bytes
// each.
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
	givenUp = 3 // by the guest, after asked
)

// Reasons that Linux does not have (enum mmu_notifier_event, from 0).
const (
	Removed = 0x100 // the GPU is removed from the guest
	Closed  = 0x101 // the program closed the region
)

// ErrNone means that there is no mailbox of this version.
var ErrNone = errors.New("no mailbox")

// Request asks that the NIC releases pages.
type Request struct {
	Slot         int
	GivenUp      bool // the guest no longer waits: remove the region from the NIC, then Free the slot
	Region       uint32
	First, Pages uint64 // of the region; the sum does not wrap
	Generation   uint32 // of the region; answers of the driver with a smaller one are invalid for these pages
	Reason       uint32
	Tag          uint64 // increases with each request
}

// Mailbox is the mailbox of a GPU. One goroutine may call Poll; the other methods are safe for
// concurrent use until Close.
type Mailbox struct {
	pin   *dma.Pin
	mem   []byte
	bound time.Duration
	seen  [Slots]seen // used by Poll
}

// seen is the state of a slot at the last Poll.
type seen struct {
	state uint32
	tag   uint64
}

// Open opens the mailbox at an offset of a GPU's memory, which the guest has named. The error is
// dma.ErrBounds or EINVAL for an offset where none can be, ErrNone if there is none. The GPU must
// stay open until Close, which the caller calls.
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

// Bound returns how long the driver waits for Done: any time, because the guest has written it.
func (m *Mailbox) Bound() time.Duration { return m.bound }

// Alive reports whether the driver has not removed the mailbox; it does so with its GPU, and then
// all regions are gone.
func (m *Mailbox) Alive() bool { return m.word(0) == magic }

// Lost returns how many requests have found no slot within the bound, ever. If it has changed,
// remove all regions of the GPU from the NIC, because it is unknown which ones were meant.
func (m *Mailbox) Lost() uint32 { return m.word(atLost) }

// Poll calls f for each request that is new since the last call, and again for a request that the
// guest has given up since then. It reads each slot once; f may call Done and Free. Poll does
// nothing if the mailbox is not Alive.
func (m *Mailbox) Poll(f func(Request)) {
	if !m.Alive() {
		return
	}
	for i := range Slots {
		state := m.word(place(i, atState))
		was := &m.seen[i]
		if state != asked && state != givenUp {
			was.state = state
			continue
		}
		tag := m.long(place(i, atTag))
		if was.state == state && was.tag == tag {
			continue
		}
		was.state, was.tag = state, tag
		r := Request{Slot: i, GivenUp: state == givenUp, Tag: tag,
			Region: m.word(place(i, atRegion)), First: m.long(place(i, atFirst)), Pages: m.long(place(i, atPages)),
			Generation: m.word(place(i, atGeneration)), Reason: m.word(place(i, atReason))}
		r.Pages = min(r.Pages, math.MaxUint64-r.First)
		f(r)
	}
}

// Done reports that the NIC has released the pages of a slot. It returns false if the guest no
// longer waits: then remove the region from the NIC and Free the slot.
func (m *Mailbox) Done(slot int) bool {
	return dma.CompareAndSwapWord(m.mem[place(slot, atState):], asked, done)
}

// Free frees a slot that the guest has given up. It returns false if the guest has not.
func (m *Mailbox) Free(slot int) bool {
	return dma.CompareAndSwapWord(m.mem[place(slot, atState):], givenUp, free)
}

// Close unpins the memory. A second Close does nothing.
func (m *Mailbox) Close() {
	m.pin.Close()
	m.mem = nil
}

// place returns the offset of a slot's field.
func place(slot, field int) int { return atSlot + slot*slotSize + field }

func (m *Mailbox) word(off int) uint32 { return dma.LoadWord(m.mem[off:]) }

// long reads two words: if the guest writes at the same time, the result may mix old and new.
func (m *Mailbox) long(off int) uint64 { return uint64(m.word(off)) | uint64(m.word(off+4))<<32 }
