package transfer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/block/nbd"
	"vnic.dev/vnic/block/nvmetcp"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/engine"
	"vnic.dev/vnic/internal/undo"
)

// Protocols of Storage.
const (
	NVMeTCP = "nvme-tcp"
	NBD     = "nbd"
)

// Storage is a remote block device, and the parts of a guest's GPU memory for it.
type Storage struct {
	Protocol  string         `json:"protocol"`
	Server    netip.AddrPort `json:"server"`
	Name      string         `json:"name"`                // NQN of the subsystem, or name of the export
	Namespace uint32         `json:"namespace,omitempty"` // of NVMe; 0: 1
	Local     netip.Addr     `json:"local"`
	GPU       int            `json:"gpu"`
	Data      Area           `json:"data"` // for the data of operations
	Pool      Area           `json:"pool"` // for received packets, unless Copy is set
	Queue     int            `json:"queue"`
	Depth     int            `json:"depth"`               // operations in progress, at most; NVMe: 0 for the default
	ReadOnly  bool           `json:"read_only,omitempty"` // NBD only
	Timeout   time.Duration  `json:"timeout"`             // nanoseconds; 0: the protocol's default
	Copy      bool           `json:"copy,omitempty"`
}

// IO reads or writes a range of the device in operations of one size.
type IO struct {
	Write  bool    `json:"write,omitempty"`
	Off    uint64  `json:"off"`              // on the device
	Len    uint64  `json:"len"`              // in bytes
	Size   uint64  `json:"size"`             // of an operation; the last may be shorter
	Depth  int     `json:"depth"`            // operations in progress, at most
	Mem    uint64  `json:"mem"`              // where the range begins in Storage.Data
	Random *uint64 `json:"random,omitempty"` // seed of a random order of the operations; nil: ascending
}

// IOResult is the result of DoIO.
type IOResult struct {
	Operations uint64      `json:"operations"` // completed, the failed ones included
	Bytes      uint64      `json:"bytes"`      // of successful operations
	Failed     uint64      `json:"failed"`
	Errors     []string    `json:"errors,omitempty"` // of the first failed operations
	P50        float64     `json:"p50_us"`           // microseconds, of successful operations; so P99 and Max
	P99        float64     `json:"p99_us"`
	Max        float64     `json:"max_us"`
	Stats      block.Stats `json:"stats"`
	Cost
}

type storage struct {
	block.Device
	undo undo.Stack
	size uint64     // of Storage.Data
	busy sync.Mutex // one IO at a time; CloseStorage waits for it
}

// maxOperations bounds the operations of an IO, and so its memory: eight bytes per operation, sixteen in random order.
const maxOperations = 1 << 24

// areas registers areas of a GPU's memory, and adds their closing to steps, which the caller runs, also after
// an error.
func (n *Node) areas(steps *undo.Stack, gpu int, list ...namedArea) (buffers []devmem.Buffer, err error) {
	for _, a := range list {
		b, err := n.dev.Register(gpu, a.Off, a.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s [%#x, +%#x) of GPU %d: %w", a.name, a.Off, a.Bytes, gpu, err)
		}
		steps.Add(b.Close)
		buffers = append(buffers, b)
	}
	return buffers, nil
}

type namedArea struct {
	name string
	Area
}

func since[S any](now, before S) S {
	n, b := reflect.ValueOf(&now).Elem(), reflect.ValueOf(before)
	for i := range n.NumField() {
		n.Field(i).SetUint(n.Field(i).Uint() - b.Field(i).Uint())
	}
	return now
}

// gpuMemory returns the Node's devmem.Memory. It makes only one, because DMA memory cannot be freed before the NIC is
// closed.
func (n *Node) gpuMemory() devmem.Memory {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.memory == nil {
		n.memory = engine.New(n.engine, n.mem)
	}
	return n.memory
}

// OpenStorage connects to a device. After an error it has closed what it opened. EALREADY: a device is open.
func (n *Node) OpenStorage(ctx context.Context, s Storage) (info block.Info, err error) {
	n.opening.Lock()
	defer n.opening.Unlock()
	if n.storage != nil {
		return info, fmt.Errorf("open storage: there is one already: %w", syscall.EALREADY)
	}
	x := &storage{size: s.Data.Bytes}
	buffers, err := n.areas(&x.undo, s.GPU, namedArea{"data", s.Data}, namedArea{"pool", s.Pool})
	if err != nil {
		return info, errors.Join(fmt.Errorf("open storage: %w", err), x.undo.All())
	}
	if x.Device, err = n.connect(ctx, &s, buffers[0], buffers[1]); err != nil {
		return info, errors.Join(err, x.undo.All())
	}
	n.storage = x
	return x.Info(), nil
}

func (n *Node) connect(ctx context.Context, s *Storage, data, pool devmem.Buffer) (block.Device, error) {
	switch s.Protocol {
	case NVMeTCP:
		return nvmetcp.Open(ctx, nvmetcp.Config{Device: n.dev, Memory: n.gpuMemory(), Target: s.Server, NQN: s.Name,
			Namespace: s.Namespace, Local: s.Local, Queue: s.Queue, Pool: pool, Data: data, Depth: s.Depth,
			Timeout: s.Timeout, Copy: s.Copy})
	case NBD:
		return nbd.Open(ctx, nbd.Config{Device: n.dev, Memory: n.gpuMemory(), Server: s.Server, Export: s.Name,
			Local: s.Local, Queue: s.Queue, Pool: pool, Data: data, Depth: s.Depth, ReadOnly: s.ReadOnly,
			Timeout: s.Timeout, Copy: s.Copy})
	}
	return nil, fmt.Errorf("storage by %q: %s or %s: %w", s.Protocol, NVMeTCP, NBD, syscall.EINVAL)
}

// DoIO reads or writes a range of the device. It counts operations that fail. An error of the device as a whole, the
// end of ctx or a call of CloseStorage ends it early.
func (n *Node) DoIO(ctx context.Context, x IO) (r IOResult, err error) {
	n.opening.Lock()
	s := n.storage
	n.opening.Unlock()
	if s == nil {
		return r, fmt.Errorf("I/O: no storage is open: %w", syscall.EINVAL)
	}
	s.busy.Lock()
	defer s.busy.Unlock()
	next, took, err := x.operations(s.size)
	if err != nil {
		return r, fmt.Errorf("I/O: %w", err)
	}
	before := s.Stats()
	err = n.measure(&r.Cost, func() error {
		return s.Do(ctx, x.Depth, next, func(d block.Done) { r.add(d, &took) })
	})
	r.Stats = since(s.Stats(), before)
	r.percentiles(took)
	return r, err
}

func (x *IO) operations(data uint64) (next func() (block.Op, bool), took []time.Duration, err error) {
	switch {
	case x.Len == 0 || x.Size == 0 || x.Depth < 1:
		return nil, nil, fmt.Errorf("%d bytes in operations of %d, %d at a time: %w", x.Len, x.Size, x.Depth, syscall.EINVAL)
	case x.Mem > data || x.Len > data-x.Mem:
		return nil, nil, fmt.Errorf("[%#x, +%#x) in data of %#x bytes: %w", x.Mem, x.Len, data, syscall.EFAULT)
	case (x.Len-1)/x.Size >= maxOperations:
		return nil, nil, fmt.Errorf("%d bytes in operations of %d: %d operations at most: %w", x.Len, x.Size, maxOperations,
			syscall.EINVAL)
	}
	count := int((x.Len-1)/x.Size + 1)
	var order []int
	if x.Random != nil {
		order = rand.New(rand.NewPCG(*x.Random, 0)).Perm(count)
	}
	i := 0
	return func() (block.Op, bool) {
		if i == count {
			return block.Op{}, false
		}
		k := i
		if order != nil {
			k = order[i]
		}
		i++
		off := uint64(k) * x.Size
		return block.Op{Write: x.Write, Off: x.Off + off, Len: min(x.Size, x.Len-off), Mem: x.Mem + off}, true
	}, make([]time.Duration, 0, count), nil
}

const maxErrors = 4

func (r *IOResult) add(d block.Done, took *[]time.Duration) {
	r.Operations++
	if d.Err == nil {
		r.Bytes += d.Len
		*took = append(*took, d.Took)
		return
	}
	if r.Failed++; len(r.Errors) < maxErrors {
		r.Errors = append(r.Errors, d.Err.Error())
	}
}

func (r *IOResult) percentiles(took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	us := func(part float64) float64 {
		return float64(took[min(len(took)-1, int(part*float64(len(took))))].Nanoseconds()) / 1e3
	}
	r.P50, r.P99, r.Max = us(0.5), us(0.99), us(1)
}

// CloseStorage ends running operations, and closes the device, if any.
func (n *Node) CloseStorage(context.Context) error {
	n.opening.Lock()
	defer n.opening.Unlock()
	s := n.storage
	if s == nil {
		return nil
	}
	err := s.Close()
	s.busy.Lock()
	defer s.busy.Unlock()
	n.storage = nil
	return errors.Join(err, s.undo.All())
}
