package transfer

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/rdma"
)

// Kinds of memory that an RDMA's memory regions are of. Another kind is another case of Node.regions.
const (
	MemoryGPU = "gpu" // buffers of a GPU that are registered: pinned
	MemoryRAM = "ram" // guest RAM, as a baseline: engines copy from the GPU to it, and from it to the GPU
)

// regions is memory that an RDMA moves from or to.
type regions struct {
	mrs     []*rdma.MR // which follow one another; the Device closes them
	size    uint64     // bytes of all
	stage   func(ctx context.Context, s RDMAStage) error
	release func() error // once the memory regions are closed
	odp     *onDemand    // of MemoryODP
}

// at finds the memory region that has off, where in it, and how many bytes it has from there on; 0: none has.
func (r *regions) at(off uint64) (mr *rdma.MR, at, n uint64) {
	for _, mr := range r.mrs {
		if off < mr.Len {
			return mr, off, mr.Len - off
		}
		off -= mr.Len
	}
	return nil, 0, 0
}

func (r *regions) close() error {
	if r.release == nil {
		return nil
	}
	return r.release()
}

// regions makes memory regions. After an error the Device has what was made of them, and nothing else is left.
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

// gpuRegions registers the data with the NIC: a buffer and a memory region for each piece that is contiguous.
func (n *Node) gpuRegions(pd *rdma.PD, r *RDMA, access uint8) (*regions, error) {
	list, release, err := n.port.register(r.GPU, r.Data.Off, r.Data.Bytes)
	if err != nil {
		return nil, fmt.Errorf("data [%#x, +%#x) of GPU %d: %w", r.Data.Off, r.Data.Bytes, r.GPU, err)
	}
	all := &regions{release: release}
	for _, b := range list {
		mr, err := pd.RegisterBuffer(b.Buffer, 0, b.Size, access)
		if err != nil {
			for _, mr := range all.mrs { // or the buffers are in use
				err = errors.Join(err, mr.Close())
			}
			return nil, errors.Join(err, release())
		}
		all.mrs = append(all.mrs, mr)
		all.size += b.Size
	}
	return all, nil
}

// Of memory regions of RAM.
const (
	ramPieces = 4
	ramPiece  = 2 << 20 // no more is contiguous (Memory)
)

// pinned is RAM that the NIC and the engines reach, for the life of the Node, as DMA memory is not given back.
type pinned struct {
	iova [ramPieces]uint64
	slot slot // for the tables of jobs
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

// ramRegions makes a memory region of RAM, through which the data goes in steps.
func (n *Node) ramRegions(pd *rdma.PD, r *RDMA, access uint8) (*regions, error) {
	p, err := n.pin()
	if err != nil {
		return nil, err
	}
	ranges := make([]rdma.Range, len(p.iova))
	for i, iova := range p.iova {
		ranges[i] = rdma.Range{IOVA: iova, Len: ramPiece}
	}
	_, release, err := n.port.register(r.GPU, r.Data.Off, r.Data.Bytes) // or engines refuse it
	if err != nil {
		return nil, fmt.Errorf("data [%#x, +%#x) of GPU %d: %w", r.Data.Off, r.Data.Bytes, r.GPU, err)
	}
	mr, err := pd.RegisterGuest(ranges, 0, access)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	all := &regions{mrs: []*rdma.MR{mr}, size: p.size, release: release}
	all.stage = func(ctx context.Context, s RDMAStage) error {
		at := s.Off % p.size
		if s.Off > r.Data.Bytes || s.Len > r.Data.Bytes-s.Off || s.Len > p.size-at {
			return fmt.Errorf("data of %#x bytes, of which %#x fit: %w", r.Data.Bytes, p.size, syscall.EFAULT)
		}
		job := control.Job{Op: control.JobToGuest, GPU: uint16(r.GPU), Table: p.slot.tableIOVA}
		if s.Back {
			job.Op = control.JobFromGuest
		}
		p.slot.reset()
		for off, left := r.Data.Off+s.Off, s.Len; left > 0; {
			k := min(left, ramPiece-at%ramPiece)
			src, dst := off, p.iova[at/ramPiece]+at%ramPiece
			if s.Back {
				src, dst = dst, src
			}
			p.slot.add(src, dst, uint32(k))
			off, at, left = off+k, at+k, left-k
		}
		job.Entries = uint32(p.slot.entries)
		_, err := n.engine.RunJob(ctx, job)
		return err
	}
	return all, nil
}
