package gpumem

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"runtime"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/sha256x16"
)

// DigestPiece is the number of bytes in a piece, the unit that Digest hashes; the last piece may be shorter.
const DigestPiece = 1 << 20

// groupLen is the length of a group: a piece for each lane of sha256x16.
const groupLen = sha256x16.Lanes * DigestPiece

var inLanes = sha256x16.Available

// Extent is [Off, Off+Size) of a GPU's memory.
type Extent struct{ Off, Size uint64 }

// Digest returns the digest of extents of a GPU's memory: it takes the bytes of all extents one after the other, cuts
// them into pieces of DigestPiece bytes (the last may be shorter), and hashes the SHA-256s of the pieces by SHA-256.
// EFAULT: a piece, or its part in an extent, is not in one buffer that the Engine's port (a guest's NIC) has
// registered. ENODEV: the port has no such GPU. EINVAL: an extent is beyond its memory, or they are too long.
//
// Digests and jobs share the limit of maxInHand pieces in progress. If ctx ends, the error wraps the cause of
// ctx; after CancelAll or Reset it wraps ECANCELED.
func (e *Engine) Digest(ctx context.Context, gpu int, extents []Extent) (sum [32]byte, err error) {
	return e.DigestIdle(ctx, gpu, extents, nil)
}

// DigestIdle is Digest at low priority: until hurry is closed, it hashes in a single thread of policy
// SCHED_IDLE, or, if the thread may not have this policy, it waits. With a nil hurry it is Digest. A removal of
// guest memory, or of a registered buffer, may have to wait until the slow thread has hashed a piece.
func (e *Engine) DigestIdle(ctx context.Context, gpu int, extents []Extent, hurry <-chan struct{}) (sum [32]byte,
	err error) {
	g := e.registry.GPU(gpu)
	if g == nil {
		return sum, fmt.Errorf("digest: the port has no GPU %d: %w", gpu, syscall.ENODEV)
	}
	d := &digest{gpu: g, extents: extents}
	for _, x := range extents {
		if x.Size > g.Size() || x.Off > g.Size()-x.Size || d.total > 1<<62 {
			return sum, fmt.Errorf("digest of [%#x, +%#x): beyond the %#x bytes of GPU %d: %w", x.Off, x.Size, g.Size(), gpu,
				syscall.EINVAL)
		}
		d.total += x.Size
	}
	if err := context.Cause(ctx); err != nil {
		return sum, fmt.Errorf("digest: %w", err)
	}
	d.sums = make([][32]byte, (d.total+DigestPiece-1)/DigestPiece)
	r := e.enterDigest()
	defer e.leave(r)
	eg, inner := errgroup.WithContext(ctx)
	stop := context.AfterFunc(inner, func() { r.cancelled.Store(true) })
	defer stop()
	for i := range min(maxInHand, runtime.GOMAXPROCS(0), (len(d.sums)+sha256x16.Lanes-1)/sha256x16.Lanes) {
		eg.Go(func() error {
			dma.Guard()
			w := &work{running: r, e: e, gpu: g, copier: dma.NewCopier()}
			switch {
			case hurry == nil:
			case i == 0:
				w.thread.hurry = hurry
				w.thread.begin(inner.Done())
			default:
				select {
				case <-hurry:
				case <-inner.Done():
				}
			}
			return d.run(w)
		})
	}
	if err := eg.Wait(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return sum, fmt.Errorf("digest: %w", err)
	}
	list := sha256.New()
	for i := range d.sums {
		list.Write(d.sums[i][:])
	}
	list.Sum(sum[:0])
	return sum, nil
}

func (e *Engine) enterDigest() *running {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	r := &running{id: e.last, gone: make(chan struct{})}
	e.alive[r] = true
	return r
}

type digest struct {
	gpu     *GPU
	extents []Extent
	total   uint64
	next    atomic.Uint64 // where the next group begins
	sums    [][32]byte    // the digests of the pieces
}

func (d *digest) run(w *work) error {
	h, lanes := sha256.New(), new(sha256x16.State)
	for {
		pos := d.next.Add(groupLen) - groupLen
		if pos >= d.total {
			return nil
		}
		sums := d.sums[pos/DigestPiece:]
		if off, ok := d.contiguous(w, pos); ok && inLanes {
			if err := d.group(w, lanes, off, sums[:sha256x16.Lanes]); err != nil {
				return err
			}
			continue
		}
		for end := min(pos+groupLen, d.total); pos < end; pos += DigestPiece {
			if err := d.piece(w, h, pos, min(DigestPiece, end-pos), &sums[0]); err != nil {
				return err
			}
			sums = sums[1:]
		}
	}
}

// contiguous returns where [pos, pos+groupLen) of the extents begins in the memory, if ok is true: then the range lies
// in one extent and in one buffer.
func (d *digest) contiguous(w *work, pos uint64) (off uint64, ok bool) {
	if d.total-pos < groupLen {
		return 0, false
	}
	_ = d.segments(pos, groupLen, func(o, n uint64) error {
		off, ok = o, n == groupLen
		return nil
	})
	bufs, inside := w.e.registry.enter()
	defer w.e.registry.leave(inside)
	return off, ok && bufs.covers(d.gpu.id, off, groupLen)
}

// group hashes the pieces of a group in parallel.
func (d *digest) group(w *work, lanes *sha256x16.State, off uint64, sums [][32]byte) error {
	const part = pieceLen / sha256x16.Lanes
	const span = groupLen - DigestPiece + part // from the first piece's part to the end of the last piece's
	lanes.Reset()
	for pos := uint64(0); pos < DigestPiece; pos += part {
		if err := d.look(w, off+pos, span, pieceLen, func(b []byte) { lanes.Write(b, DigestPiece, part) }); err != nil {
			return err
		}
	}
	lanes.Sums(sums)
	return nil
}

func (d *digest) piece(w *work, h hash.Hash, pos, n uint64, sum *[32]byte) error {
	h.Reset()
	if err := d.segments(pos, n, func(off, n uint64) error {
		return d.look(w, off, n, n, func(b []byte) { h.Write(b) })
	}); err != nil {
		return err
	}
	h.Sum(sum[:0])
	return nil
}

// segments calls f with the ranges of memory that make up [pos, pos+n) of the extents, until f returns an error.
func (d *digest) segments(pos, n uint64, f func(off, n uint64) error) error {
	for _, x := range d.extents {
		if n == 0 {
			return nil
		}
		if pos >= x.Size {
			pos -= x.Size
			continue
		}
		k := min(n, x.Size-pos)
		if err := f(x.Off+pos, k); err != nil {
			return err
		}
		pos, n = 0, n-k
	}
	return nil
}

// look calls f with the bytes [off, off+n) of the memory, which must lie in one buffer; reads is how many of them it
// counts as hashed.
func (d *digest) look(w *work, off, n, reads uint64, f func([]byte)) error {
	w.thread.look()
	return w.view(off, n, func(b []byte) {
		f(b)
		w.moved(&w.e.hashed, reads)
	})
}
