// Package devmembase has code that package devmem's implementations share: checks of arguments, the waits and
// errors of a connection, a set for a device's open connections and listeners, and a devmem.Memory whose work
// a [Worker] does.
//
// The package is not API (README, Stability).
package devmembase

import (
	"fmt"
	"slices"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/diagnosis"
)

// Region is the memory of a buffer: whole pages of a GPU.
type Region struct {
	gpu       int
	off, size uint64
}

// NewRegion returns [off, off+size) of a GPU's memory. EINVAL: it is not one or more whole pages, or its end
// exceeds 64 bits. The caller checks the size of the GPU's memory.
func NewRegion(gpu int, off, size uint64) (Region, error) {
	if size == 0 || size%devmem.PageSize != 0 || off%devmem.PageSize != 0 {
		return Region{}, fmt.Errorf("not whole pages: %w", syscall.EINVAL)
	}
	if off+size < off {
		return Region{}, fmt.Errorf("ends past the end: %w", syscall.EINVAL)
	}
	return Region{gpu, off, size}, nil
}

// GPU implements devmem.Buffer.
func (r *Region) GPU() int { return r.gpu }

// Offset implements devmem.Buffer.
func (r *Region) Offset() uint64 { return r.off }

// Size implements devmem.Buffer.
func (r *Region) Size() uint64 { return r.size }

// Pages returns the number of pages.
func (r *Region) Pages() int { return int(r.size / devmem.PageSize) }

// InUse returns an error if one of all, the device's bindings that are not done (devmem.Binding.Done), is a binding
// of b. InUse changes all.
func InUse(b devmem.Buffer, all []diagnosis.Binding) error {
	bound := slices.DeleteFunc(all, func(x diagnosis.Binding) bool { return x.Buffer != b })
	if len(bound) == 0 {
		return nil
	}
	return fmt.Errorf("buffer [%#x, +%#x) of gpu %d: close: %w", b.Offset(), b.Size(), b.GPU(), diagnosis.InUse(bound))
}

// CheckRX returns EBUSY if a receive binding in all, the device's bindings that are not done, has some of the
// memory, and ENOSPC if the memory has less than minPages pages for each of the queues.
func (r *Region) CheckRX(queues, minPages int, all []diagnosis.Binding) error {
	for _, o := range all {
		off := o.Buffer.Offset()
		if !o.TX && o.Buffer.GPU() == r.gpu && r.off < off+o.Buffer.Size() && off < r.off+r.size {
			return fmt.Errorf("binding %d receives into the same memory: %w", o.ID, syscall.EBUSY)
		}
	}
	if r.Pages() < minPages*queues {
		return fmt.Errorf("%d pages, %d needed for each queue: %w", r.Pages(), minPages, syscall.ENOSPC)
	}
	return nil
}

// Inside returns the ranges before the first one outside the memory. EINVAL: there is no range, or an empty
// one. EFAULT: the first one is outside.
func (r *Region) Inside(ranges []devmem.Range) ([]devmem.Range, error) {
	if len(ranges) == 0 || slices.ContainsFunc(ranges, func(x devmem.Range) bool { return x.Len == 0 }) {
		return nil, syscall.EINVAL
	}
	switch i := slices.IndexFunc(ranges, func(x devmem.Range) bool { return x.Off > r.size || x.Len > r.size-x.Off }); i {
	case -1:
		return ranges, nil
	case 0:
		return nil, syscall.EFAULT
	default:
		return ranges[:i], nil
	}
}

// CheckQueues returns an error if queues is empty, or has a number that is not 1 to n-1, or a queue for which
// bound returns true. n is the number of the device's receive queues.
func CheckQueues(queues []int, n int, bound func(queue int) bool) error {
	if len(queues) == 0 {
		return fmt.Errorf("no queue: %w", syscall.EINVAL)
	}
	for _, q := range queues {
		switch {
		case q < 0 || q >= n:
			return fmt.Errorf("%s: %w", diagnosis.NoQueue(q, n), syscall.EINVAL)
		case q == 0:
			return fmt.Errorf("%s: %w", diagnosis.QueueZero(n), syscall.ERANGE)
		case bound(q):
			return fmt.Errorf("queue %d is bound: %w", q, syscall.EEXIST)
		}
	}
	return nil
}

// CheckFlow returns EINVAL if f's queue is not 0 to n-1, or f has no address, or addresses of two families, and
// EEXIST if one of the rules has f's Src and Dst. n is the number of the device's receive queues.
func CheckFlow(f devmem.Flow, n int, rules ...devmem.Flow) error {
	if f.Queue < 0 || f.Queue >= n {
		return fmt.Errorf("%s: %w", diagnosis.NoQueue(f.Queue, n), syscall.EINVAL)
	}
	src, dst := f.Src.Addr().Unmap(), f.Dst.Addr().Unmap()
	if !src.IsValid() && !dst.IsValid() || src.IsValid() && dst.IsValid() && src.Is4() != dst.Is4() {
		return fmt.Errorf("needs an address, of one family: %w", syscall.EINVAL)
	}
	for _, r := range rules {
		if r.Src == f.Src && r.Dst == f.Dst {
			return fmt.Errorf("there is a rule for that: %w", syscall.EEXIST)
		}
	}
	return nil
}
