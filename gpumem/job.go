package gpumem

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/elements"
	"vnic.dev/vnic/internal/lab/shape"
)

// Op is a job's operation. The numbers are the control protocol's.
type Op uint8

const (
	Fill          Op = 1 // writes the pattern of Seed, from its byte Stream on, to [Off, Off+Len)
	Poison        Op = 2 // writes the byte Seed&0xff to [Off, Off+Len)
	Gather        Op = 3 // copies entries of the table; src and dst are GPU offsets
	CopyToGuest   Op = 4 // copies entries of the table; src is a GPU offset, dst an IOVA
	CopyFromGuest Op = 5 // copies entries of the table; src is an IOVA, dst a GPU offset
	SHA256        Op = 6 // hashes [Off, Off+Len)
	Reduce        Op = 7 // adds elements of type Seed at src to dst, for the entries of the table; both are GPU offsets
)

// Limits of a job and its parts.
const (
	MaxEntries = 1 << 20
	EntryLen   = 24      // bytes of an entry: {src u64, dst u64, len u32, zero u32}, little endian
	pieceLen   = 1 << 20 // most bytes of a piece
	batchLen   = 256     // most entries of a table that are read at a time
)

// Job is work for an engine. Each range of GPU offsets must lie in one buffer of the engine's port (a guest's
// NIC); the engine checks this piece by piece. Entries are processed in their order; if source and
// destination of an entry overlap, but are not the same range, the written bytes are unspecified.
type Job struct {
	Op         Op
	GPU        int    // the GPU that offsets refer to
	Off, Len   uint64 // of Fill, Poison, SHA256
	Seed       uint64 // of Fill, Poison; for Reduce, the elements' type
	Stream     uint64 // of Fill: the byte of the pattern to begin with
	Table      uint64 // address of the entries, for the other operations
	TableInGPU bool   // Table is a GPU offset, not an IOVA
	Entries    uint32
}

type entry struct {
	src, dst uint64
	len      uint32
}

func (e *entry) decode(b *[EntryLen]byte) error {
	*e = entry{src: le.Uint64(b[0:]), dst: le.Uint64(b[8:]), len: le.Uint32(b[16:])}
	if le.Uint32(b[20:]) != 0 {
		return fmt.Errorf("entry [%#x -> %#x, %d bytes]: reserved bytes not zero: %w", e.src, e.dst, e.len, syscall.EINVAL)
	}
	return nil
}

// work is the state of a goroutine that executes a job, or a part of a digest.
type work struct {
	*running
	e      *Engine
	gpu    *GPU
	copier *dma.Copier
	hash   hash.Hash
	thread idleThread // used by digests

	table    [batchLen * EntryLen]byte // entries as read; for Poison, the bytes to write
	entries  [batchLen]entry           // entries[first:n] are not completely done
	n, first int
	part     uint32 // how many bytes of entries[first] are done
	segs     []dma.Segment
	dst, src []dma.Segment
}

func (w *work) run() error {
	switch w.job.Op {
	case Fill:
		return w.inPlace(&w.e.filled, func(b []byte, pos uint64) { FillAt(b, w.job.Seed, w.job.Stream+pos) })
	case Poison:
		for i := range w.table {
			w.table[i] = byte(w.job.Seed)
		}
		return w.inPlace(&w.e.filled, func(b []byte, _ uint64) {
			for len(b) > 0 {
				b = b[copy(b, w.table[:]):]
			}
		})
	case SHA256:
		w.hash = sha256.New()
		return w.inPlace(&w.e.hashed, func(b []byte, _ uint64) { w.hash.Write(b) })
	case Gather:
		return w.list(&w.e.gathered)
	case Reduce:
		return w.list(&w.e.reduced)
	case CopyToGuest:
		return w.list(&w.e.toGuest)
	default: // CopyFromGuest
		return w.list(&w.e.fromGuest)
	}
}

// inPlace calls f for pieces of the job's [Off, Off+Len), in order, with their bytes and how far from Off they begin.
func (w *work) inPlace(c *atomic.Uint64, f func(b []byte, pos uint64)) error {
	for done := uint64(0); done < w.job.Len; {
		off, n := w.job.Off+done, min(w.job.Len-done, pieceLen)
		if off < done {
			return w.outside(off, n)
		}
		if err := w.view(off, n, func(b []byte) { f(b, done) }); err != nil {
			return err
		}
		w.moved(c, n)
		done += n
	}
	return nil
}

// view calls f with the bytes [off, off+n) of the GPU's memory, which must lie in one buffer (else EFAULT).
// ECANCELED: the job or digest is cancelled.
func (w *work) view(off, n uint64, f func(b []byte)) error {
	if err := w.acquire(); err != nil {
		return err
	}
	defer w.e.release()
	return w.piece(func(bufs *buffers) error {
		if !bufs.covers(w.gpu.id, off, n) {
			return w.outside(off, n)
		}
		return w.copier.View(w.gpu.segment(off, n), groupLen, func(b []byte) error {
			f(b)
			return nil
		})
	})
}

func (w *work) list(c *atomic.Uint64) error {
	links, by := w.links()
	for next := uint32(0); next < w.job.Entries || w.first < w.n; {
		if err := w.acquire(); err != nil {
			return err
		}
		var copied uint64
		node := -1
		err := w.piece(func(bufs *buffers) (err error) {
			if w.first == w.n {
				if err := w.readTable(bufs, next, min(w.job.Entries-next, batchLen)); err != nil {
					return err
				}
				next += uint32(w.n)
			}
			copied, err = w.batch(bufs)
			if by != nil {
				node = w.count(by, copied)
			}
			return err
		})
		w.e.release()
		w.moved(c, copied)
		if err == nil && copied > 0 && links != nil {
			err = w.cross(links(w.gpu.id, node), copied)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// links returns, for a job that copies to or from guest memory, the function for the links that copies cross,
// and the counters of the copied bytes; for another job it returns nil twice.
func (w *work) links() (route func(gpu, node int) *shape.Route, by *byNode) {
	c := &w.e.copies[w.gpu.id]
	switch w.job.Op {
	case CopyToGuest:
		return w.e.o.ToGuest, &c.to
	case CopyFromGuest:
		return w.e.o.FromGuest, &c.from
	}
	return nil, nil
}

// count adds the first n bytes of the batch to the counters, by the NUMA node of their guest memory.
// It returns the node of the first of these bytes whose node is known, or -1.
func (w *work) count(by *byNode, n uint64) (first int) {
	segs := w.dst
	if w.job.Op == CopyFromGuest {
		segs = w.src
	}
	first = -1
	for i := range segs {
		part := min(n, uint64(segs[i].Len))
		if node := segs[i].Node(); part > 0 {
			by[node+1].Add(part)
			if first < 0 {
				first = node
			}
		}
		n -= part
	}
	return first
}

// longestSleep is the longest sleep between two checks for cancellation.
const longestSleep = 10 * time.Millisecond

// cross waits as long as n bytes need to cross the links. ECANCELED: the job is cancelled.
func (w *work) cross(links *shape.Route, n uint64) error {
	until := links.Take(shape.Now(), shape.Use{Payload: uint32(n)})
	for left := shape.Until(until); left > 0; left = shape.Until(until) {
		if w.cancelled.Load() {
			return fmt.Errorf("job %d: %w", w.id, syscall.ECANCELED)
		}
		time.Sleep(min(left, longestSleep))
	}
	return nil
}

// readTable reads n entries of the table, from entry next on.
func (w *work) readTable(bufs *buffers, next, n uint32) (err error) {
	w.n, w.first = 0, 0
	addr, size := w.job.Table+uint64(next)*EntryLen, uint64(n)*EntryLen
	if addr < w.job.Table {
		return fmt.Errorf("table at %#x: entry %d is beyond all memory: %w", w.job.Table, next, syscall.EFAULT)
	}
	if w.segs, err = w.segments(bufs, w.segs[:0], addr, size, !w.job.TableInGPU, dma.Read); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	if _, err := w.copier.Read(w.table[:size], w.segs); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	w.e.tables.Add(size)
	for i := range n {
		if err := w.entries[i].decode((*[EntryLen]byte)(w.table[i*EntryLen:])); err != nil {
			return fmt.Errorf("entry %d: %w", next+i, err)
		}
	}
	w.n = int(n)
	return nil
}

// batch copies or adds the bytes of entries, at most pieceLen, and returns how many it has done, also with an error.
func (w *work) batch(bufs *buffers) (copied uint64, err error) {
	w.dst, w.src = w.dst[:0], w.src[:0]
	first, part, bad := w.first, w.part, error(nil)
	total := uint32(0)
	for first < w.n && total < pieceLen && bad == nil {
		e := &w.entries[first]
		n := min(e.len-part, pieceLen-total)
		if n > 0 {
			if bad = w.add(bufs, e, uint64(part), uint64(n)); bad != nil {
				break
			}
		}
		total += n
		if part += n; part == e.len {
			first, part = first+1, 0
		}
	}
	if w.job.Op == Reduce {
		copied, err = w.reduce()
	} else {
		copied, err = w.copier.Copy(w.dst, w.src)
	}
	if err == nil && copied != uint64(total) {
		err = fmt.Errorf("%d of %d bytes copied: %w", copied, total, syscall.EIO)
	}
	if err != nil {
		w.advance(copied)
		return copied, err
	}
	w.done.Add(uint32(first - w.first))
	w.first, w.part = first, part
	return copied, bad
}

func (w *work) add(bufs *buffers, e *entry, part, n uint64) (err error) {
	src, dst := e.src+part, e.dst+part
	if src < e.src || dst < e.dst {
		return fmt.Errorf("entry [%#x -> %#x, %d bytes] goes beyond all memory: %w", e.src, e.dst, e.len, syscall.EFAULT)
	}
	if w.job.Op == Reduce && (e.src|e.dst|uint64(e.len))%uint64(elements.Type(w.job.Seed).Size()) != 0 {
		return fmt.Errorf("entry [%#x -> %#x, %d bytes]: not whole elements of %d bytes: %w", e.src, e.dst, e.len,
			elements.Type(w.job.Seed).Size(), syscall.EINVAL)
	}
	if w.src, err = w.segments(bufs, w.src, src, n, w.job.Op == CopyFromGuest, dma.Read); err != nil {
		return err
	}
	// After an error here, w.src is longer than w.dst, and the shorter one limits the copy.
	w.dst, err = w.segments(bufs, w.dst, dst, n, w.job.Op == CopyToGuest, dma.Write)
	return err
}

// reduce adds w.src to w.dst, segment by segment.
func (w *work) reduce() (done uint64, err error) {
	for i := range w.dst {
		err := w.copier.View(w.dst[i], pieceLen, func(dst []byte) error {
			return w.copier.View(w.src[i], pieceLen, func(src []byte) error {
				elements.Add(elements.Type(w.job.Seed), dst, src)
				return nil
			})
		})
		if err != nil {
			return done, err
		}
		done += uint64(w.dst[i].Len)
	}
	return done, nil
}

// segments appends to segs n bytes at addr, of the guest's memory or of the GPU's. With an error it
// returns segs unchanged.
func (w *work) segments(bufs *buffers, segs []dma.Segment, addr, n uint64, guest bool, a dma.Access) ([]dma.Segment,
	error) {
	if !guest {
		if !bufs.covers(w.gpu.id, addr, n) {
			return segs, w.outside(addr, n)
		}
		return append(segs, w.gpu.segment(addr, n)), nil
	}
	out, err := w.e.space.Translate(segs, addr, n, a)
	if err != nil {
		return segs, fmt.Errorf("%w: %w", err, syscall.EFAULT)
	}
	return out, nil
}

func (w *work) outside(off, n uint64) error {
	return fmt.Errorf("[%#x, +%#x) of GPU %d is not in one buffer of this port: %w", off, n, w.gpu.id, syscall.EFAULT)
}

// advance counts the complete entries of a failed batch; copied is how many bytes of the batch are done.
func (w *work) advance(copied uint64) {
	for ; w.first < w.n; w.first++ {
		left := uint64(w.entries[w.first].len - w.part)
		if copied < left {
			return
		}
		copied, w.part = copied-left, 0
		w.done.Add(1)
	}
}

// piece calls f. Regions and buffers that f finds stay valid until f returns.
func (w *work) piece(f func(*buffers) error) (err error) {
	defer dma.Recover(&err)
	token := w.e.space.Enter()
	defer w.e.space.Leave(token)
	bufs, inside := w.e.registry.enter()
	defer w.e.registry.leave(inside)
	return f(bufs)
}

// acquire waits for one of maxInHand places, which Engine.release gives back. With ECANCELED (the job
// or digest is cancelled) it holds no place.
func (w *work) acquire() error {
	w.e.inHand <- struct{}{}
	if w.cancelled.Load() {
		w.e.release()
		return fmt.Errorf("job %d: %w", w.id, syscall.ECANCELED)
	}
	return nil
}

func (w *work) moved(c *atomic.Uint64, n uint64) {
	c.Add(n)
	w.bytes.Add(n)
}
