package gve

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// irqEnable arms a vector; bits 1 (clear PBA), 3 and 4 (ITR select) and 5 to 16 (interval) do not concern a device that never
// delays an interrupt and never loses one (gve_dqo.h, GVE_ITR_*).
const irqEnable = 1 << 0 // GVE_ITR_ENABLE_BIT_DQO

var one = [8]byte{1} // what an eventfd is written, little endian

// vectors are the MSI-X vectors of a device. A vector fires once, is masked by that, and is armed again by its doorbell; what
// happens while it is masked is latched, and fires then: the driver does not look again after it has armed
// (gve_napi_poll_dqo). They may be fired and armed on any goroutine.
//
// Nothing but O_NONBLOCK keeps a write to a full eventfd from blocking, and that flag belongs to the open file, which the
// frontend shares with us and may change. So the keeper has an eye on writers that are inside of a full one, and frees them
// by reading. As no honest eventfd is ever full, the frontend gets no interrupts then until it connects again: who writes is
// another guest's worker, most often.
type vectors struct {
	v       []vector
	hostile atomic.Bool // the frontend was caught at keeping writers

	mu   sync.Mutex
	left []*line // under mu: taken away with writers inside
}

// vector is one MSI-X vector. Its lock is a leaf, held over no system call.
type vector struct {
	mu     sync.Mutex
	l      *line // under mu; nil: none
	armed  bool  // under mu
	always bool  // under mu: never masked, as the management vector
	due    bool  // under mu: latched
}

// line is the eventfd of a vector.
type line struct {
	f      *os.File
	inside atomic.Int32 // writers; rises only under the mu of the vector that has the line
}

func (vs *vectors) init(n int) { vs.v = make([]vector, n) }

// at gives vector i, nil if there is none.
func (vs *vectors) at(i int) *vector {
	if i < 0 || i >= len(vs.v) {
		return nil
	}
	return &vs.v[i]
}

// fire raises vector i, or latches it if it is masked or has no eventfd.
func (vs *vectors) fire(i int) {
	if v := vs.at(i); v != nil {
		v.change(func() { v.due = true })
	}
}

// arm is vector i's doorbell.
func (vs *vectors) arm(i int, db uint32) {
	if v := vs.at(i); v != nil {
		v.change(func() { v.armed = db&irqEnable != 0 })
	}
}

// manage makes i the vector that is never masked, besides which there is none; -1: there is none at all.
func (vs *vectors) manage(i int) {
	for j := range vs.v {
		v := &vs.v[j]
		v.change(func() { v.always = j == i })
	}
}

// change changes the vector's state, and writes its eventfd if that is due then.
func (v *vector) change(to func()) {
	v.mu.Lock()
	to()
	l := v.l
	if !v.due || !v.armed && !v.always || l == nil {
		v.mu.Unlock()
		return
	}
	v.due, v.armed = false, false
	l.inside.Add(1)
	v.mu.Unlock()
	_, _ = l.f.Write(one[:]) // a full counter is a signal already, a broken eventfd its owner's loss
	l.inside.Add(-1)
}

// setFD gives vector i an eventfd, which is the vector's from now on; -1: none. What is latched fires if the vector is armed.
func (vs *vectors) setFD(i, fd int) {
	v := vs.at(i)
	if fd >= 0 && (v == nil || vs.hostile.Load()) {
		_ = unix.Close(fd)
		fd = -1
	}
	if v == nil {
		return
	}
	var l *line
	if fd >= 0 {
		// Its writes go straight to the kernel: os.File leaves descriptors to the netpoller that are not blocking when it gets
		// them.
		_ = unix.SetNonblock(fd, false)
		l = &line{f: os.NewFile(uintptr(fd), "irq")}
		_ = unix.SetNonblock(fd, true)
	}
	var old *line
	v.change(func() {
		old, v.l = v.l, l
		if old != nil && old.inside.Load() > 0 { // what somebody wants to say there may not arrive: it is for the new one
			v.due, v.armed = true, true
		}
	})
	switch {
	case old == nil:
	case old.inside.Load() > 0: // perhaps stuck
		vs.mu.Lock()
		vs.left = append(vs.left, old)
		vs.mu.Unlock()
	default:
		_ = old.f.Close()
	}
}

// reset masks all vectors and forgets what is latched. Eventfds stay.
func (vs *vectors) reset() {
	for i := range vs.v {
		v := &vs.v[i]
		v.change(func() { v.armed, v.always, v.due = false, false, false })
	}
}

// close lets go of all eventfds.
func (vs *vectors) close() {
	for i := range vs.v {
		vs.setFD(i, -1)
	}
}

// open says whether there is any eventfd.
func (vs *vectors) open() bool {
	for i := range vs.v {
		if vs.v[i].line() != nil {
			return true
		}
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return len(vs.left) > 0
}

func (v *vector) line() *line {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.l
}

// look frees writers that are stuck, and takes all eventfds away if there are any. It says whether it did that.
func (vs *vectors) look() (caught bool) {
	for i := range vs.v {
		if l := vs.v[i].line(); l != nil && l.inside.Load() > 0 && l.full() {
			caught = true
		}
	}
	if caught {
		vs.hostile.Store(true)
		vs.close()
	}
	vs.free()
	return caught
}

// freeTime is how long at most the keeper tries to free writers at one go: others may fill the eventfd again meanwhile.
const freeTime = 100 * time.Millisecond

// free frees the writers of eventfds that were taken away, and closes those that nobody writes to any more.
func (vs *vectors) free() {
	vs.mu.Lock()
	left := vs.left
	vs.left = nil
	vs.mu.Unlock()
	var still []*line
	for end := time.Now().Add(freeTime); len(left) > 0; left = left[1:] {
		l := left[0]
		for l.inside.Load() > 0 && time.Now().Before(end) {
			l.drain()
		}
		if l.inside.Load() > 0 {
			still = append(still, l)
			continue
		}
		_ = l.f.Close()
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.left = append(vs.left, still...)
}

// full says whether a write to the eventfd would block now.
func (l *line) full() (full bool) {
	l.do(func(fd int) { full = isFull(fd) })
	return full
}

// drain makes room in the eventfd, if it is full: else what is read is an interrupt that is lost. Who is stuck in a write to
// it goes on, unless somebody else is faster.
func (l *line) drain() {
	l.do(func(fd int) {
		if isFull(fd) {
			var b [8]byte
			_, _ = unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT) // whatever the file's flags say
		}
	})
}

// do does something with the descriptor that does not block.
func (l *line) do(f func(fd int)) {
	if raw, err := l.f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

func isFull(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&unix.POLLOUT == 0
}
