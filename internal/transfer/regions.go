package transfer

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/rdma"
)

// Kinds of memory of an RDMA's memory regions, besides MemoryODP.
const (
	MemoryGPU = "gpu" // registered buffers of a GPU: pinned
	MemoryRAM = "ram" // guest RAM: engines copy between it and the GPU
)

type regions struct {
	mrs     []*rdma.MR // in the order of the data, without gaps; rdma.Device.Close closes them
	size    uint64
	stage   func(ctx context.Context, s RDMAStage) error // nil: not MemoryRAM
	release func() error                                 // to be called after the memory regions are closed
	odp     *onDemand                                    // nil: not MemoryODP
}

// locate takes a list of memory regions as one range of bytes. It returns the region with byte off of the range, the
// byte's offset addr in the region, and the number n of bytes from there to the region's end. n is 0 if off is past the
// range.
func locate[R any](list []R, size func(r R) uint64, off uint64) (r R, addr, n uint64) {
	for _, r := range list {
		if off < size(r) {
			return r, off, size(r) - off
		}
		off -= size(r)
	}
	return r, 0, 0
}

// regions makes the memory regions of r. After an error some may be left, until dev.Close.
func (n *Node) regions(dev *rdma.Device, pd *rdma.PD, r *RDMA) (*regions, error) {
	access := uint8(0)
	switch {
	case r.Offer && r.Both:
		access = rdma.RemoteRead | rdma.RemoteWrite | rdma.LocalWrite
	case r.Offer && r.Read:
		access = rdma.RemoteRead
	case r.Offer:
		access = rdma.RemoteWrite | rdma.LocalWrite
	case r.Read || r.Both:
		access = rdma.LocalWrite
	}
	switch r.Memory {
	case MemoryGPU:
		return n.gpuRegions(pd, r, access)
	case MemoryRAM:
		return n.ramRegions(pd, r, access)
	case MemoryODP:
		return n.odpRegions(dev, pd, r, access)
	}
	return nil, fmt.Errorf("memory regions of %q: %s, %s or %s: %w", r.Memory, MemoryGPU, MemoryRAM, MemoryODP,
		syscall.EINVAL)
}

// gpuRegions makes a buffer and a memory region for each part of the data that is contiguous in the GPU's memory.
func (n *Node) gpuRegions(pd *rdma.PD, r *RDMA, access uint8) (*regions, error) {
	list, release, err := n.port.register(r.GPU, r.Data.Off, r.Data.Bytes)
	if err != nil {
		return nil, fmt.Errorf("data [%#x, +%#x) of GPU %d: %w", r.Data.Off, r.Data.Bytes, r.GPU, err)
	}
	all := &regions{release: release}
	for _, b := range list {
		mr, err := pd.RegisterBuffer(b.Buffer, 0, b.Size, access)
		if err != nil {
			for _, mr := range all.mrs { // release fails while a memory region uses a buffer
				err = errors.Join(err, mr.Close())
			}
			return nil, errors.Join(err, release())
		}
		all.mrs = append(all.mrs, mr)
		all.size += b.Size
	}
	return all, nil
}

// A memory region of RAM consists of ramPieces allocations of ramPiece bytes.
const (
	ramPieces = 4
	ramPiece  = 2 << 20 // the largest allocation of Node.mem in a guest
)

// pinned is RAM for the NIC and the engines, kept because DMA memory cannot be freed before the NIC is closed.
type pinned struct {
	iova [ramPieces]uint64
	slot slot
	size uint64
}

func (n *Node) pin() (*pinned, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pinned != nil {
		return n.pinned, nil
	}
	p := &pinned{size: ramPieces * ramPiece}
	for i := range p.iova {
		var err error
		if _, p.iova[i], err = n.mem.AllocDMA(ramPiece); err != nil {
			return nil, fmt.Errorf("memory for %d bytes of RAM: %w", p.size, err)
		}
	}
	if err := p.slot.make(n.mem, false); err != nil {
		return nil, err
	}
	n.pinned = p
	return p, nil
}

// ramRegions makes a memory region of RAM. The result's stage makes an engine copy data between the GPU and the RAM.
func (n *Node) ramRegions(pd *rdma.PD, r *RDMA, access uint8) (*regions, error) {
	p, err := n.pin()
	if err != nil {
		return nil, err
	}
	ranges := make([]rdma.Range, len(p.iova))
	for i, iova := range p.iova {
		ranges[i] = rdma.Range{IOVA: iova, Len: ramPiece}
	}
	_, release, err := n.port.register(r.GPU, r.Data.Off, r.Data.Bytes) // engines access only registered GPU memory
	if err != nil {
		return nil, fmt.Errorf("data [%#x, +%#x) of GPU %d: %w", r.Data.Off, r.Data.Bytes, r.GPU, err)
	}
	mr, err := pd.RegisterGuest(ranges, 0, access)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	all := &regions{mrs: []*rdma.MR{mr}, size: p.size, release: release}
	all.stage = func(ctx context.Context, s RDMAStage) error {
		pos := s.Off % p.size
		if s.Off > r.Data.Bytes || s.Len > r.Data.Bytes-s.Off || s.Len > p.size-pos {
			return fmt.Errorf("data of %#x bytes, of which %#x fit: %w", r.Data.Bytes, p.size, syscall.EFAULT)
		}
		job := control.Job{Op: control.JobToGuest, GPU: uint16(r.GPU), Table: p.slot.tableIOVA}
		if s.Back {
			job.Op = control.JobFromGuest
		}
		p.slot.reset()
		for off, left := r.Data.Off+s.Off, s.Len; left > 0; {
			k := min(left, ramPiece-pos%ramPiece)
			src, dst := off, p.iova[pos/ramPiece]+pos%ramPiece
			if s.Back {
				src, dst = dst, src
			}
			p.slot.add(src, dst, uint32(k))
			off, pos, left = off+k, pos+k, left-k
		}
		job.Entries = uint32(p.slot.entries)
		_, err := n.engine.RunJob(ctx, job)
		return err
	}
	return all, nil
}
