package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pieceLen = 64 << 10
	// Sizes of a copy's source and destination: hotLen fits into a processor's caches, coldLen is larger than most caches.
	hotLen  = pieceLen
	coldLen = 128 << 20
)

// memory is two mapped memory files, or parts of them: copies go from src to dst.
type memory struct{ src, dst []byte }

// newMemory makes memory files of src and dst bytes, and touches their pages.
func newMemory(src, dst int) (m *memory, err error) {
	file := func(size int) (b []byte) {
		if err != nil {
			return nil
		}
		var fd int
		if fd, b, err = mapped(size); err == nil {
			err = unix.Close(fd)
		}
		return b
	}
	m = &memory{src: file(src), dst: file(dst)}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	for i := range m.src {
		m.src[i] = byte(i*7 + i>>8)
	}
	clear(m.dst)
	return m, nil
}

func (m *memory) close() (err error) {
	for _, b := range [][]byte{m.src, m.dst} {
		if b != nil {
			err = errors.Join(err, unix.Munmap(b))
		}
	}
	return err
}

func mapped(size int) (fd int, b []byte, err error) {
	if fd, err = unix.MemfdCreate("vnic-bench", unix.MFD_CLOEXEC); err != nil {
		return -1, nil, fmt.Errorf("memfd: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		b, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return -1, nil, errors.Join(fmt.Errorf("mapping a memfd of %d bytes: %w", size, err), unix.Close(fd))
	}
	return fd, b, nil
}

// copier returns a run that copies from src to dst, piece bytes at a time, and begins again where either ends.
func (m *memory) copier(piece int) runFunc {
	from, to := 0, 0
	return func(_ context.Context, d time.Duration) (w work, _ error) {
		start := time.Now()
		for w.spent < d || w.frames == 0 {
			for range max(1, 1<<20/piece) { // read the clock once a MiB
				if from+piece > len(m.src) {
					from = 0
				}
				if to+piece > len(m.dst) {
					to = 0
				}
				copy(m.dst[to:to+piece], m.src[from:from+piece])
				from, to = from+piece, to+piece
				w.frames++
			}
			w.spent = time.Since(start)
		}
		w.bytes = w.frames * uint64(piece)
		return w, nil
	}
}

func copies(size int) openFunc {
	return func(_ context.Context, _ *slog.Logger, r *rig) error {
		m, err := newMemory(size, size)
		if err != nil {
			return err
		}
		r.undo.Add(m.close)
		r.ours = m.copier(pieceLen)
		r.check = func() error {
			// The first run begins with this piece of dst; a later one may write the same bytes there again.
			if !bytes.Equal(m.dst[:pieceLen], m.src[:pieceLen]) {
				return errors.New("what was copied is not there")
			}
			return nil
		}
		return nil
	}
}
