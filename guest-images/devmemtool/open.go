package devmemtool

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/driver"
	"vnic.dev/vnic/guest-images/kernelnic"
	"vnic.dev/vnic/stack"
)

// Open opens a virtio network device of ours on the PCI bus, with our driver and stack; or, by its
// name, a network interface of the kernel's whose NIC is ours.
func Open(ctx context.Context, r Request) (*Device, error) {
	if r.Interface != "virtio" && !strings.Contains(r.Interface, ":") {
		return openKernel(ctx, r)
	}
	o := driver.PCIOptions{Options: driver.Options{HostQueues: 1}}
	if r.Interface != "virtio" {
		o.Address = r.Interface
	}
	n, err := driver.OpenPCI(o)
	if err != nil {
		return nil, err
	}
	if err := n.IdentifyGPUs(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return attach(n, r.Interface, r.Address)
}

// openKernel opens a network interface of the kernel's, with as much GPU memory as the tool uses.
func openKernel(ctx context.Context, r Request) (*Device, error) {
	n, err := kernelnic.Open(ctx, kernelnic.Options{Interface: r.Interface, Addrs: []netip.Prefix{r.Address},
		Window: numPages * devmem.PageSize, Guard: !r.Unguarded})
	if err != nil {
		return nil, err
	}
	w := n.Window()
	return &Device{Device: n.Device(), Name: r.Interface, Queues: n.Queues(), Shared: true,
		GPUs:   []GPU{{ID: int(n.GPU().ID), Size: w.Size()}},
		Memory: windowMemory{w}}, nil
}

// windowMemory reaches GPU memory by CPU.
type windowMemory struct{ w *kernelnic.Window }

// WriteGPU implements Memory.
func (m windowMemory) WriteGPU(_ context.Context, _ int, off uint64, b []byte) error {
	_, err := m.w.WriteAt(b, int64(off))
	return err
}

// ReadGPU implements Memory.
func (m windowMemory) ReadGPU(_ context.Context, _ int, pieces []devmem.Range, b []byte) error {
	for _, p := range pieces {
		if p.Len > uint64(len(b)) {
			return fmt.Errorf("piece of %d bytes, room for %d: %w", p.Len, len(b), syscall.EINVAL)
		}
		if _, err := m.w.ReadAt(b[:p.Len], int64(p.Off)); err != nil {
			return err
		}
		b = b[p.Len:]
	}
	return nil
}

// attach starts a stack on a NIC, which the Device owns, also after an error.
func attach(n *driver.NIC, name string, addr netip.Prefix) (*Device, error) {
	s, err := stack.New(n, n.Control(), stack.Options{Addresses: []netip.Prefix{addr}})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	m := &engineMemory{ctl: n.Control()}
	if m.table, m.tableIOVA, err = n.AllocDMA(tableEntries * control.JobEntryLen); err == nil {
		m.data, m.dataIOVA, err = n.AllocDMA(stageSize)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	d := &Device{Device: s, Name: name, Queues: n.QueuePairs(), Memory: m}
	for _, g := range n.GPUs() {
		d.GPUs = append(d.GPUs, GPU{ID: g.ID, Size: g.Size})
	}
	return d, nil
}

const (
	tableEntries = 1024
	stageSize    = 1 << 20
)

// engineMemory reaches GPU memory by copy engines, as a program does that owns no mapping of it.
type engineMemory struct {
	ctl       *control.Client
	table     []byte
	tableIOVA uint64
	data      []byte
	dataIOVA  uint64
}

func (m *engineMemory) entry(i int, e control.JobEntry) {
	e.Encode((*[control.JobEntryLen]byte)(m.table[i*control.JobEntryLen:]))
}

func (m *engineMemory) run(ctx context.Context, op control.JobOp, gpu, entries int) error {
	_, err := m.ctl.RunJob(ctx, control.Job{Op: op, GPU: uint16(gpu), Table: m.tableIOVA, Entries: uint32(entries)})
	return err
}

// WriteGPU implements Memory.
func (m *engineMemory) WriteGPU(ctx context.Context, gpu int, off uint64, b []byte) error {
	for len(b) > 0 {
		n := copy(m.data, b)
		m.entry(0, control.JobEntry{Src: m.dataIOVA, Dst: off, Len: uint32(n)})
		if err := m.run(ctx, control.JobFromGuest, gpu, 1); err != nil {
			return err
		}
		off, b = off+uint64(n), b[n:]
	}
	return nil
}

// ReadGPU implements Memory.
func (m *engineMemory) ReadGPU(ctx context.Context, gpu int, pieces []devmem.Range, b []byte) error {
	for len(pieces) > 0 {
		n, k := 0, 0
		for k < len(pieces) && k < tableEntries && pieces[k].Len <= uint64(len(m.data)-n) {
			m.entry(k, control.JobEntry{Src: pieces[k].Off, Dst: m.dataIOVA + uint64(n), Len: uint32(pieces[k].Len)})
			n += int(pieces[k].Len)
			k++
		}
		if k == 0 || n > len(b) {
			return fmt.Errorf("piece of %d bytes, room for %d: %w", pieces[0].Len, len(b), syscall.EINVAL)
		}
		if err := m.run(ctx, control.JobToGuest, gpu, k); err != nil {
			return err
		}
		copy(b, m.data[:n])
		pieces, b = pieces[k:], b[n:]
	}
	return nil
}
