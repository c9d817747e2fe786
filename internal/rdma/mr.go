package rdma

import (
	"context"
	"fmt"
	"math"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// PD is a protection domain: its queue pairs, and their peers, can use only its memory regions.
type PD struct {
	d  *Device
	id uint32
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	return create(d, d.client.AddPD, d.client.DelPD, func(id uint32) *PD { return &PD{d, id} })
}

// Close destroys the PD. EBUSY: it has MRs or queue pairs.
func (p *PD) Close() error {
	return p.d.end(p, func(ctx context.Context) error { return p.d.client.DelPD(ctx, p.id) })
}

func (p *PD) rank() int { return 3 }

// MR is a memory region with the addresses [VA, VA+Len).
type MR struct {
	Key uint32 // local and remote
	VA  uint64
	Len uint64 // bytes
	pd  *PD

	ended func()
}

// RegisterBuffer makes an MR of length bytes at off of a GPU's registered buffer, whose id is buffer. The MR's
// addresses are offsets in the buffer. ENOENT: there is no such buffer; EINVAL: it is shorter.
func (p *PD) RegisterBuffer(buffer uint32, off, length uint64, access uint8) (*MR, error) {
	return p.register(control.MR{Kind: control.MRBuffer, Access: access, Buffer: buffer, VA: off, Len: length, Off: off})
}

// RegisterGuest makes an MR of guest memory: the ranges, one after the other, get the addresses from va on. The
// memory must not move, and must belong to the guest, until the MR is closed.
func (p *PD) RegisterGuest(ranges []Range, va uint64, access uint8) (*MR, error) {
	m := control.MR{Kind: control.MRGuest, Access: access, VA: va}
	for _, r := range ranges {
		if r.Len == 0 || r.Len > math.MaxUint64-m.Len {
			return nil, fmt.Errorf("mr of guest memory: a range of %d bytes at %#x: %w", r.Len, r.IOVA, syscall.EINVAL)
		}
		m.Len += r.Len
	}
	n := min(len(ranges), control.MaxMRRanges)
	m.Ranges = ranges[:n]
	mr, err := p.register(m)
	if err != nil {
		return nil, err
	}
	for rest := ranges[n:]; len(rest) > 0; rest = rest[n:] {
		n = min(len(rest), control.MaxMRRanges)
		err := p.d.ask(context.Background(), func(ctx context.Context) error {
			return p.d.client.MoreMR(ctx, control.MRMore{Key: mr.Key, Ranges: rest[:n]})
		})
		if err != nil {
			if closeErr := mr.Close(); closeErr != nil {
				err = fmt.Errorf("%w; and the MR stays: %w", err, closeErr)
			}
			return nil, fmt.Errorf("mr of %d ranges of guest memory: %w", len(ranges), err)
		}
	}
	return mr, nil
}

func (p *PD) register(m control.MR) (*MR, error) {
	m.PD = p.id
	return create(p.d, func(ctx context.Context) (uint32, error) { return p.d.client.AddMR(ctx, m) }, p.d.client.DelMR,
		func(key uint32) *MR { return &MR{Key: key, VA: m.VA, Len: m.Len, pd: p} })
}

// Close destroys the MR: after success the NIC does not use its memory.
func (m *MR) Close() error {
	err := m.pd.d.end(m, func(ctx context.Context) error { return m.pd.d.client.DelMR(ctx, m.Key) })
	if err == nil && m.ended != nil {
		m.ended()
	}
	return err
}

func (m *MR) rank() int { return 2 }

// Remote returns the values that a peer needs to use the MR.
func (m *MR) Remote() Remote { return Remote{Key: m.Key, VA: m.VA, Len: m.Len} }

// Part returns the part of n bytes at off. It does not check that the MR contains them.
func (m *MR) Part(off, n uint64) Local { return Local{MR: m, Off: off, Len: n} }

// Local is a part of a local MR.
type Local struct {
	MR       *MR
	Off, Len uint64
}

func (l Local) check() error {
	if l.MR == nil {
		return fmt.Errorf("local memory without an MR: %w", syscall.EINVAL)
	}
	if l.Off > l.MR.Len || l.Len > l.MR.Len-l.Off {
		return fmt.Errorf("%d bytes at %d of an MR of %d: %w", l.Len, l.Off, l.MR.Len, syscall.EINVAL)
	}
	return nil
}

// SGE returns the part for a work request. EINVAL: it has no MR, is outside of its MR, or has 4 GiB or more.
func (l Local) SGE() (SGE, error) {
	if err := l.check(); err != nil {
		return SGE{}, err
	}
	if l.Len > math.MaxUint32 {
		return SGE{}, fmt.Errorf("%d bytes in one work request: %w", l.Len, syscall.EINVAL)
	}
	return SGE{VA: l.MR.VA + l.Off, Len: uint32(l.Len), Key: l.MR.Key}, nil
}

// Remote is a peer's memory. The zero Remote is no memory.
type Remote struct {
	Key uint32 `json:"key"`
	VA  uint64 `json:"va"`
	Len uint64 `json:"len"`
}

// Part returns n bytes at off. EINVAL: they are not inside of r.
func (r Remote) Part(off, n uint64) (Remote, error) {
	if off > r.Len || n > r.Len-off {
		return Remote{}, fmt.Errorf("%d bytes at %d of the peer's %d: %w", n, off, r.Len, syscall.EINVAL)
	}
	return Remote{Key: r.Key, VA: r.VA + off, Len: n}, nil
}
