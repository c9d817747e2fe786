package guestnvme

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/agent"
)

// Ops registers the guest's operations with package agent.
func Ops() {
	s := new(server)
	opServe.Serve(s.serve)
	opStop.Serve(s.stop)
	opConnect.Serve(connect)
	opDisconnect.Serve(disconnect)
	opRead.Serve(func(ctx context.Context, t transfer) (readResult, error) {
		return within(ctx, func() (readResult, error) { return t.read(ctx) }, nil)
	})
	opWrite.Serve(func(ctx context.Context, t transfer) (agent.None, error) {
		return within(ctx, func() (agent.None, error) { return agent.None{}, t.write(ctx) }, nil)
	})
}

const (
	defaultChunk = 1 << 20
	maxChunk     = 16 << 20
)

// open checks the range, opens its device, and maps a buffer of Chunk bytes. The caller closes f and unmaps buf.
func (r *Range) open(flags int) (f *os.File, buf []byte, err error) {
	if !plain.MatchString(r.Device) {
		return nil, nil, fmt.Errorf("device %q: %w", r.Device, unix.EINVAL)
	}
	size, block := sizes(r.Device)
	if size == 0 || block == 0 {
		return nil, nil, fmt.Errorf("%s: no such block device: %w", r.Device, unix.ENODEV)
	}
	if err := r.check(size, block); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", r.Device, err)
	}
	if !r.Buffered {
		flags |= unix.O_DIRECT
	}
	if f, err = os.OpenFile("/dev/"+r.Device, flags, 0); err != nil {
		return nil, nil, err
	}
	buf, err = unix.Mmap(-1, 0, r.Chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("buffer of %d bytes: %w", r.Chunk, err), f.Close())
	}
	return f, buf, nil
}

// check sets Chunk to its default if it is 0. It returns EINVAL if Chunk is out of bounds, if Chunk, Off or Len is no
// multiple of block, or if the range ends beyond size.
func (r *Range) check(size uint64, block uint32) error {
	if r.Chunk == 0 {
		r.Chunk = defaultChunk
	}
	b := uint64(block)
	switch {
	case r.Chunk < 0 || r.Chunk > maxChunk || uint64(r.Chunk)%b != 0:
		return fmt.Errorf("chunks of %d bytes: whole blocks of %d, %d at most: %w", r.Chunk, b, maxChunk, unix.EINVAL)
	case r.Off%b != 0 || r.Len%b != 0:
		return fmt.Errorf("%d bytes at %d: blocks have %d: %w", r.Len, r.Off, b, unix.EINVAL)
	case r.Off > size || r.Len > size-r.Off:
		return fmt.Errorf("%d bytes at %d: the device has %d: %w", r.Len, r.Off, size, unix.EINVAL)
	}
	return nil
}

func (r *Range) each(ctx context.Context, buf []byte, f func(b []byte, off uint64) error) error {
	for done := uint64(0); done < r.Len; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := buf[:min(uint64(len(buf)), r.Len-done)]
		if err := f(b, r.Off+done); err != nil {
			return err
		}
		done += uint64(len(b))
	}
	return nil
}

var errDiffers = errors.New("differs")

// read returns the range's digest if Seed is nil, else how many of its first bytes have the pattern.
func (t *transfer) read(ctx context.Context) (r readResult, err error) {
	f, buf, err := t.open(os.O_RDONLY)
	if err != nil {
		return r, err
	}
	defer func() { _, _ = f.Close(), unix.Munmap(buf) }()
	sum := sha256.New()
	err = t.each(ctx, buf, func(b []byte, off uint64) error {
		if _, err := f.ReadAt(b, int64(off)); err != nil {
			return fmt.Errorf("read %d bytes at %d: %w", len(b), off, err)
		}
		if t.Seed == nil {
			_, _ = sum.Write(b)
			return nil
		}
		n := gpumem.MatchAt(b, *t.Seed, off)
		if r.Match += uint64(n); n < len(b) {
			return errDiffers
		}
		return nil
	})
	if errors.Is(err, errDiffers) {
		err = nil
	}
	if t.Seed == nil {
		r.SHA256 = sum.Sum(nil)
	}
	return r, err
}

func (t *transfer) write(ctx context.Context) error {
	if t.Seed == nil {
		return fmt.Errorf("no seed: %w", unix.EINVAL)
	}
	f, buf, err := t.open(os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(buf) }()
	err = t.each(ctx, buf, func(b []byte, off uint64) error {
		gpumem.FillAt(b, *t.Seed, off)
		if _, err := f.WriteAt(b, int64(off)); err != nil {
			return fmt.Errorf("write %d bytes at %d: %w", len(b), off, err)
		}
		return nil
	})
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
