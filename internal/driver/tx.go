package driver

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/virtq"
)

const (
	chunkLen   = 2048          // bytes of a chunk of DMA memory for headers and linear data
	wholeLen   = 17 * PageSize // bytes of a chunk for a whole frame (Options.WholeFrames)
	maxTxDescs = 64            // most descriptors of a chain
	// MaxTxRanges is the most Device ranges of a TxFrame.
	MaxTxRanges = 30
	// MaxTxLinear is the most bytes of a TxFrame's Header and Linear together.
	MaxTxLinear = 33*chunkLen - netHdrLen
)

// txQueue is a transmit queue, used under mu.
type txQueue struct {
	n     *NIC
	index int

	mu      sync.Mutex
	ring    *ring
	err     error // set: the queue is closed
	chunks  []memory
	chunk   int // bytes of each chunk
	free    []uint32
	slots   []txSlot
	idle    []uint32
	watched int  // how many frames in flight have a TxFrame.Cookie
	starved bool // Transmit has returned because the ring was full, and Completed was not called since
	freed   bool // the device has returned a frame since starved was last set
	asleep  bool
	calls   bool     // the device was asked for calls
	done    []uint64 // returned cookies that Completed has not reported
	bufs    []virtq.Buf
	used    []virtq.Used

	stats counters
}

func doneLen(size int) int { return 4 * size }

type txSlot struct {
	cookie uint64
	chunks []uint32
}

func newTxQueue(n *NIC, index int) (*txQueue, error) {
	r, err := newRing(n.t, 2*index+1, uint16(n.opts.RingSize), n.features, maxTxDescs)
	if err != nil {
		return nil, err
	}
	size := int(r.config.Size)
	q := &txQueue{
		n: n, index: index, ring: r, slots: make([]txSlot, size), bufs: make([]virtq.Buf, 0, maxTxDescs),
		used: make([]virtq.Used, min(size, 64)), done: make([]uint64, 0, doneLen(size)),
	}
	count := max(4*size, 2*MaxTxLinear/chunkLen)
	if q.chunk = chunkLen; n.opts.WholeFrames {
		q.chunk, count = wholeLen, size
	}
	if q.chunks, err = slab(n.t, count, q.chunk); err != nil {
		return nil, err
	}
	for i := len(q.chunks) - 1; i >= 0; i-- {
		q.free = append(q.free, uint32(i))
	}
	for i := size - 1; i >= 0; i-- {
		q.idle = append(q.idle, uint32(i))
	}
	return q, n.t.setupQueue(r.vq, r.addrs)
}

// Transmit puts frames on a transmit queue and returns how many it accepted. If the ring is full, that is fewer than
// all, and the polling goroutine calls Completed, with or without cookies, when the device has returned frames. With
// an error, frame f[n] and the later ones are not accepted. Any goroutine may call Transmit.
func (n *NIC) Transmit(queue int, f []TxFrame) (int, error) {
	if queue < 0 || queue >= len(n.tx) {
		return 0, fmt.Errorf("transmit queue %d of %d: %w", queue, len(n.tx), unix.EINVAL)
	}
	return n.tx[queue].transmit(f)
}

func (q *txQueue) transmit(f []TxFrame) (n int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return 0, q.err
	}
	for n < len(f) {
		if err = q.add(&f[n]); errors.Is(err, virtq.ErrFull) {
			if err = q.reap(); err != nil {
				break
			}
			err = q.add(&f[n])
		}
		if err != nil {
			break
		}
		n++
	}
	if q.ring.Publish() {
		q.n.t.kick(q.ring.vq) // under mu, so that NIC.Close does not close the descriptor meanwhile
		q.stats.kicks.Add(1)
	}
	if errors.Is(err, virtq.ErrFull) {
		err, q.starved, q.freed = nil, true, false
		q.stats.full.Add(1)
	}
	if q.asleep && (len(q.done) > 0 || q.wanted() && !q.calls && q.askCalls()) {
		q.n.t.sleeper().wake()
	}
	return n, err
}

func (q *txQueue) add(f *TxFrame) error {
	linear := len(f.Header) + len(f.Linear)
	if linear == 0 || linear > MaxTxLinear || len(f.Device) > MaxTxRanges {
		return fmt.Errorf("frame of %d header and %d linear bytes (at least 1, at most %d) and %d ranges (at most %d): %w",
			len(f.Header), len(f.Linear), MaxTxLinear, len(f.Device), MaxTxRanges, unix.EMSGSIZE)
	}
	h, err := netHdrOf(&q.n.offloads, f)
	if err != nil {
		return err
	}
	if q.n.opts.WholeFrames && len(f.Device) > 0 {
		return fmt.Errorf("a frame with %d ranges, where frames are to lie in one buffer: %w", len(f.Device), unix.EINVAL)
	}
	chunks := (netHdrLen + linear + q.chunk - 1) / q.chunk
	if len(q.idle) == 0 || len(q.free) < chunks || len(q.done) == cap(q.done) {
		return virtq.ErrFull
	}
	id := q.idle[len(q.idle)-1]
	slot := &q.slots[id]
	taken := q.free[len(q.free)-chunks:]
	slot.chunks = append(slot.chunks[:0], taken...)
	q.copyIn(slot, &h, f)
	payload, err := q.addDevice(f.Device)
	if err != nil {
		return err
	}
	if err := q.ring.Add(q.bufs, nil, id); err != nil {
		return err
	}
	q.free = q.free[:len(q.free)-chunks]
	q.idle = q.idle[:len(q.idle)-1]
	if slot.cookie = f.Cookie; f.Cookie != 0 {
		q.watched++
	}
	q.stats.frames.Add(1)
	q.stats.bytes.Add(uint64(linear + payload))
	q.stats.payload.Add(uint64(payload))
	return nil
}

func (q *txQueue) copyIn(slot *txSlot, h *netHdr, f *TxFrame) {
	q.bufs = q.bufs[:0]
	var hdr [netHdrLen]byte
	h.encode(&hdr)
	parts := [...][]byte{hdr[:], f.Header, f.Linear}
	part := 0
	for _, c := range slot.chunks {
		m := &q.chunks[c]
		pos := 0
		for part < len(parts) && pos < len(m.b) {
			n := copy(m.b[pos:], parts[part])
			pos += n
			if parts[part] = parts[part][n:]; len(parts[part]) == 0 {
				part++
			}
		}
		q.addBuf(m.addr, uint32(pos))
	}
	if f.NeedsCsum && !q.n.offloads.TxCsum {
		be.PutUint16(q.chunks[slot.chunks[0]].b[netHdrLen+int(f.CsumStart)+int(f.CsumOffset):], f.sum())
	}
}

func (q *txQueue) addDevice(ranges []Range) (payload int, err error) {
	for i, r := range ranges {
		g := q.n.gpu(r.GPU)
		if g == nil || r.Len == 0 || r.Off > g.Size || uint64(r.Len) > g.Size-r.Off ||
			payload+int(r.Len) > maxFrame {
			return 0, fmt.Errorf("range %d: %d bytes at %#x of GPU %d: no such place, or more than %d bytes: %w", i, r.Len,
				r.Off, r.GPU,
				maxFrame, unix.EFAULT)
		}
		if err := q.n.useGPU(g); err != nil {
			return 0, err
		}
		q.addBuf(g.Addr+r.Off, r.Len)
		payload += int(r.Len)
	}
	return payload, nil
}

func (q *txQueue) addBuf(addr uint64, n uint32) {
	if i := len(q.bufs) - 1; i >= 0 && q.bufs[i].Addr+uint64(q.bufs[i].Len) == addr {
		q.bufs[i].Len += n
		return
	}
	q.bufs = append(q.bufs, virtq.Buf{Addr: addr, Len: n})
}

func (q *txQueue) reap() error {
	for cap(q.done)-len(q.done) >= len(q.used) {
		n, err := q.ring.Poll(q.used)
		q.freed = q.freed || n > 0
		for _, u := range q.used[:n] {
			slot := &q.slots[u.Cookie]
			q.free = append(q.free, slot.chunks...)
			q.idle = append(q.idle, u.Cookie)
			if slot.cookie != 0 {
				q.done = append(q.done, slot.cookie)
				q.watched--
			}
			slot.cookie, slot.chunks = 0, slot.chunks[:0]
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrBroken, err)
		}
		if n < len(q.used) {
			break
		}
	}
	return nil
}

func (q *txQueue) poll(cookies []uint64) (worked bool, err error) {
	q.mu.Lock()
	if q.err != nil {
		q.mu.Unlock()
		return false, nil
	}
	err = q.reap()
	cookies = append(cookies, q.done...)
	q.done = q.done[:0]
	report := len(cookies) > 0 || q.starved && q.freed
	if report {
		q.starved = false
	}
	q.mu.Unlock()
	if report {
		if r := q.n.receiver.Load(); r != nil {
			(*r).Completed(q.index, cookies)
		}
	}
	return report, err
}

// wanted reports whether somebody waits until the device has returned frames: one has a cookie, or Transmit found the
// ring full. Otherwise the next poll takes frames back, or Transmit when the ring is full, without an interrupt: an
// interrupt for each TCP acknowledgment would cost more than sending it.
func (q *txQueue) wanted() bool { return q.watched > 0 || q.starved }

func (q *txQueue) askCalls() (more bool) {
	q.calls = true
	return q.ring.EnableCall()
}

func (q *txQueue) enableCall() (more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return false
	}
	q.asleep = true
	if q.wanted() {
		more = q.askCalls()
	}
	return more || len(q.done) > 0
}

func (q *txQueue) disableCall() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.asleep = false; q.calls {
		q.calls = false
		q.ring.DisableCall()
	}
}

func (q *txQueue) close(err error) (cookies []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	cookies = append(cookies, q.done...)
	for i := range q.slots {
		if c := q.slots[i].cookie; c != 0 {
			cookies = append(cookies, c)
			q.slots[i].cookie = 0
		}
	}
	q.done = q.done[:0]
	return cookies
}

func (n *NIC) gpu(id int) *GPUInfo {
	for i := range n.gpus {
		if n.gpus[i].ID == id {
			return &n.gpus[i]
		}
	}
	return nil
}
