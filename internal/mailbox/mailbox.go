// Package mailbox implements the host's end of the mailbox: a page in which the driver of a guest's
// GPU, vnicgpu.ko, tells the NIC that it must release pages of programs
// (guest-images/vnicgpu/README.md, "The mailbox").
//
// The driver fills in one of 63 slots and waits. The host polls all slots (Poll), makes the NIC
// release the pages, and confirms (Done). A driver that has waited for too long gives up and
// continues as if the NIC had released the pages. The host then takes the whole region from the NIC
// for good before it frees the slot (Free).
//
// The guest owns the page and may write anything there at any time: the host only ever reads
// requests from it, and no value makes Poll take longer, allocate or fail. A request may name a
// region, pages or a reason that do not exist, and may be repeated; a range of pages does not wrap.
// A guest that writes false requests harms only itself.
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
	asked   = 1 // set by the guest
	done    = 2 // set by the host
	givenUp = 3 // set by the guest, in place of asked
)

// Reasons that are not values of Linux's enum mmu_notifier_event, which begins at 0.
const (
	Removed = 0x100 // the GPU is removed from the guest
	Closed  = 0x101 // the program closed the region
)

// ErrNone is the error when there is no mailbox of this version.
var ErrNone = errors.New("no mailbox")

// Request asks that the NIC release pages.
type Request struct {
	Slot         int
	GivenUp      bool // the guest waits no longer: take the region from the NIC, then Free the slot
	Region       uint32
	First, Pages uint64 // pages of the region; the sum does not wrap
	Generation   uint32 // of the region; the driver's answers with a smaller Generation are void for these pages
	Reason       uint32
	Tag          uint64 // increases with each request
}

// Mailbox is the mailbox of one GPU. Only one goroutine may call Poll; any may call the other
// methods, until Close.
type Mailbox struct {
	pin   *dma.Pin
	mem   []byte
	bound time.Duration
	seen  [Slots]seen // used by Poll
}

// seen is the state of a slot that Poll saw last.
type seen struct {
	state uint32
	tag   uint64
}

// Open opens the mailbox at an offset of a GPU's memory that the guest named. The error is
// dma.ErrBounds or EINVAL for an offset where no mailbox can be, and ErrNone if there is none. The
// GPU stays open until the caller calls Close.
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

// check reads the header. It reads the magic first, because the driver writes it last.
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

// Bound returns how long the driver waits for Done. The guest may have written any value.
func (m *Mailbox) Bound() time.Duration { return m.bound }

// Alive reports whether the mailbox still exists. The driver removes it together with its GPU,
// after all regions.
func (m *Mailbox) Alive() bool { return m.word(0) == magic }

// Lost returns the number of requests so far that found no free slot in time. If it has changed,
// take all regions of the GPU from the NIC, because it is unknown which ones those requests named.
func (m *Mailbox) Lost() uint32 { return m.word(atLost) }

// Poll calls f for each request that is new since the last call, and again for one that the guest
// has given up since. It looks at each slot once; f may call Done and Free. A mailbox that is not
// Alive has no new requests.
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

// Done tells the guest that the NIC has released the pages of a slot's request. It returns false if
// the guest no longer waits: then take the region from the NIC, and Free the slot.
func (m *Mailbox) Done(slot int) bool {
	return dma.CompareAndSwapWord(m.mem[fieldOff(slot, atState):], asked, done)
}

// Free frees a slot whose request the guest has given up. It returns false if the guest has not.
func (m *Mailbox) Free(slot int) bool {
	return dma.CompareAndSwapWord(m.mem[fieldOff(slot, atState):], givenUp, free)
}

// Close unpins the memory. A second Close does nothing.
func (m *Mailbox) Close() {
	m.pin.Close()
	m.mem = nil
}

// fieldOff is the offset of a field of a slot.
func fieldOff(slot, field int) int { return atSlot + slot*slotSize + field }

func (m *Mailbox) word(off int) uint32 { return dma.LoadWord(m.mem[off:]) }

// long reads two words; it may mix old and new ones if the guest writes meanwhile.
func (m *Mailbox) long(off int) uint64 { return uint64(m.word(off)) | uint64(m.word(off+4))<<32 }
