package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/rdma"
	"vnic.dev/vnic/internal/undo"
)

// MemoryODP is memory on demand: a program's memory that is not pinned. A page is in RAM or, if the program has asked
// the GPU's driver to move it, in the GPU's memory. The NIC requests pages when it needs them.
const MemoryODP = "odp"

// Storm moves pages of an RDMA's MemoryODP memory between RAM and the GPU during transfers.
type Storm struct {
	Rate    float64 `json:"rate"` // pages a second; 0: as fast as possible
	Seed    uint64  `json:"seed"`
	Compact bool    `json:"compact,omitempty"` // make Linux also move pages within RAM (/proc/sys/vm/compact_memory)
}

// ODPStats are statistics of memory on demand.
type ODPStats struct {
	// Pages of all programs that use the GPU (gpudriver.Info).
	ToGPU   uint64 `json:"to_gpu"`  // moved to the GPU
	ToRAM   uint64 `json:"to_ram"`  // moved to RAM at a program's request
	Touched uint64 `json:"touched"` // moved to RAM because a CPU touched them, or for a page request of the NIC
	Private uint64 `json:"private"` // in the GPU now

	// Of the memory region, from the GPU's driver (gpudriver.RegionStats).
	Invalidations uint64   `json:"invalidations"` // reported to the NIC
	Untold        uint64   `json:"untold"`        // invalidations of pages that the NIC did not have
	Refused       uint64   `json:"refused"`       // invalidations that failed: the driver was not allowed to wait
	Timeouts      uint64   `json:"timeouts"`
	Quarantined   bool     `json:"quarantined"`
	Waits         []uint32 `json:"waits"`

	Left   uint64 `json:"left"`   // pages of the GPU that programs have freed, and the driver filled with a pattern
	Broken uint64 `json:"broken"` // pages that the driver found changed while they were free

	Compacted uint64 `json:"compacted"` // see the function compacted

	Key      uint32 `json:"key"`      // of the memory region
	Requests uint64 `json:"requests"` // page requests of the NIC that rdma.PageServer has queued
	Late     uint64 `json:"late"`     // part of Requests: the NIC no longer needed the answer
	Errno    uint16 `json:"errno"`    // the last error of the GPU's driver for a page request; 0: none
	Idle     uint64 `json:"idle_ns"`  // see idleWake
}

type onDemand struct {
	file   *gpudriver.File
	base   uint64 // where the driver's memory begins in the GPU's
	memory []byte // nil: the owner has the memory
	owner  *owner // nil: this program has the memory
	region *gpudriver.Region
	key    uint32
	server *rdma.PageServer
	idle   time.Duration
	undo   undo.Stack
	errno  atomic.Uint32 // ODPStats.Errno

	mu    sync.Mutex
	storm context.CancelFunc // under mu: ends the storm in this process; nil: none
	moved chan error         // the storm's result
}

// odpRegions makes memory on demand, of the size of the data, and a memory region for it. With r.Owner it adds a memory
// region of pinned GPU memory. It needs the driver vnicgpu.
func (n *Node) odpRegions(dev *rdma.Device, pd *rdma.PD, r *RDMA, access uint8) (all *regions, err error) {
	size := r.Data.Bytes
	if size == 0 || size%gpudriver.PageSize != 0 || size > 1<<30 {
		return nil, fmt.Errorf("memory on demand: %d bytes: whole pages of %d, up to 1 GiB: %w", size, gpudriver.PageSize,
			syscall.EINVAL)
	}
	o := &onDemand{idle: idleWake()}
	all = &regions{size: size, odp: o, release: o.close}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("memory on demand: %w", err), o.close())
		}
	}()
	ctx := context.Background()
	maps, err := n.port.control.GPUMaps(ctx)
	if err != nil {
		return nil, err
	}
	if o.file, o.base, err = kernelnic.OpenDriver(r.GPU, maps); err != nil {
		return nil, err
	}
	o.undo.Add(o.file.Close)
	off, _, err := o.file.Mailbox()
	if err != nil {
		return nil, err
	}
	if err := dev.SetMailbox(ctx, uint16(r.GPU), o.base+off); err != nil {
		return nil, err
	}
	if _, err := o.file.Poison(); err != nil {
		return nil, err
	}
	var pinned *rdma.MR
	if r.Owner {
		pinned, err = o.serve(ctx, n, pd, r, access)
	} else if o.memory, err = allocate(o.file, int(size)); err == nil {
		o.undo.Add(func() error { return unix.Munmap(o.memory) })
		o.region, err = o.file.OpenRegion(o.memory)
	}
	if err != nil {
		return nil, err
	}
	o.undo.Add(o.region.Close)
	if o.server, err = rdma.NewPageServer(dev, o.find, 0); err != nil {
		return nil, err
	}
	mr, err := o.server.Register(pd, rdma.OnDemand{Region: o.region.ID(), GPU: uint16(r.GPU), Len: size, Access: access})
	if err != nil {
		return nil, err
	}
	all.mrs, o.key = []*rdma.MR{mr}, mr.Key
	if pinned != nil {
		all.mrs, all.size = append(all.mrs, pinned), 2*size
	}
	serve, end := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- o.server.Serve(serve) }()
	o.undo.Add(func() error {
		end()
		if err := <-served; !errors.Is(err, rdma.ErrReset) {
			return ignoreClosed(err)
		}
		return nil
	})
	return all, nil
}

// serve starts the owner process, and makes a memory region of as much pinned GPU memory, which stays usable without
// that process.
func (o *onDemand) serve(ctx context.Context, n *Node, pd *rdma.PD, r *RDMA, access uint8) (*rdma.MR, error) {
	var id uint32
	var err error
	if o.owner, id, err = startOwner(o.file, r.Data.Bytes); err != nil {
		return nil, err
	}
	o.undo.Add(o.owner.close)
	o.region = o.file.Region(id)
	off, err := o.file.Alloc(r.Data.Bytes, 0)
	if err != nil {
		return nil, err
	}
	buffer, err := n.port.control.RegisterBuffer(ctx, uint16(r.GPU), o.base+off, r.Data.Bytes)
	if err != nil {
		return nil, err
	}
	o.undo.Add(func() error { return n.port.control.UnregisterBuffer(context.Background(), buffer) })
	return pd.RegisterBuffer(buffer, 0, r.Data.Bytes, access)
}

// find answers a page request of the NIC by asking the GPU's driver.
func (o *onDemand) find(_ context.Context, r control.PageRequest) (a control.PageAnswer) {
	pages, generation, err := o.region.Fault(r.First, int(r.Count), r.Write, r.InRAM)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		a.Errno = uint16(errno)
	} else if err != nil {
		a.Errno = uint16(syscall.EIO)
	}
	if a.Errno != 0 {
		o.errno.Store(uint32(a.Errno))
	}
	a.Generation = generation
	for _, p := range pages {
		if p.Kind == gpudriver.VRAM {
			p.Addr += o.base
		}
		if p.Err != 0 && p.Err != syscall.EAGAIN {
			o.errno.Store(uint32(p.Err))
		}
		a.Entries = append(a.Entries, p.Entry())
	}
	return a
}

// close ends a storm and frees the memory. The caller has closed the memory regions.
func (o *onDemand) close() error { return errors.Join(o.calm(), o.undo.All()) }

func (n *Node) odp(what string) (*onDemand, error) {
	e, err := n.rdmaOf(what)
	if err != nil {
		return nil, err
	}
	if e.memory.odp == nil {
		return nil, fmt.Errorf("%s: the memory is not on demand: %w", what, syscall.EINVAL)
	}
	return e.memory.odp, nil
}

// StartStorm starts to move pages of the memory on demand. Without an owner process they move until EndStorm, CloseRDMA
// or an error; else StartStorm sends s to that process, which moves pages until it exits.
func (n *Node) StartStorm(_ context.Context, s Storm) error {
	o, err := n.odp("move pages")
	if err != nil {
		return err
	}
	if o.owner != nil {
		return o.owner.storm(s)
	}
	return o.startStorm(s)
}

func (o *onDemand) startStorm(s Storm) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.storm != nil {
		return fmt.Errorf("move pages: %w", syscall.EALREADY)
	}
	ctx, end := context.WithCancel(context.Background())
	o.storm, o.moved = end, make(chan error, 1)
	go func() { o.moved <- o.move(ctx, s) }()
	return nil
}

// EndStorm ends a storm in this process, if any, and returns its error. It does not end one in an owner process.
func (n *Node) EndStorm(context.Context) error {
	o, err := n.odp("move pages")
	if err != nil {
		return err
	}
	return o.calm()
}

func (o *onDemand) calm() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.storm == nil {
		return nil
	}
	o.storm()
	o.storm = nil
	return <-o.moved
}

func (o *onDemand) move(ctx context.Context, s Storm) error {
	rnd := rand.New(rand.NewPCG(s.Seed, 1))
	pages := len(o.memory) / gpudriver.PageSize
	begin, compacted := time.Now(), time.Now()
	var pause *time.Ticker
	if s.Rate > 0 {
		pause = time.NewTicker(max(time.Millisecond, time.Duration(float64(time.Second)/s.Rate)))
		defer pause.Stop()
	}
	for done := 0.0; ; {
		for s.Rate == 0 || done < time.Since(begin).Seconds()*s.Rate {
			if ctx.Err() != nil {
				return nil
			}
			off := rnd.IntN(pages) * gpudriver.PageSize
			page := o.memory[off : off+gpudriver.PageSize]
			n, err := o.file.ToGPU(page)
			if err == nil && n == 0 {
				_, err = o.file.ToRAM(page)
			}
			if err != nil && !errors.Is(err, syscall.ENOMEM) {
				return fmt.Errorf("move a page: %w", err)
			}
			done++
			if s.Compact && time.Since(compacted) > time.Second/4 {
				compacted = time.Now()
				if err := os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0); err != nil {
					return err
				}
			}
		}
		select { // not reached if Rate is 0
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// ODP returns statistics of the memory on demand.
func (n *Node) ODP(context.Context) (s ODPStats, err error) {
	o, err := n.odp("look at memory on demand")
	if err != nil {
		return s, err
	}
	info, err := o.file.Info()
	if err != nil {
		return s, err
	}
	r, err := o.region.Stats()
	if err != nil {
		return s, err
	}
	p, err := o.file.Poison()
	if err != nil {
		return s, err
	}
	served := o.server.Stats()
	return ODPStats{ToGPU: info.ToGPU, ToRAM: info.ToRAM, Touched: info.Faulted, Private: info.Private,
		Invalidations: r.Invalidations, Untold: r.Untold, Refused: r.Refused, Timeouts: r.Timeouts,
		Quarantined: r.Quarantined, Waits: r.Waits[:], Left: p.Left, Broken: p.Broken, Compacted: compacted(),
		Key: o.key, Requests: served.Requests, Late: served.Late, Errno: uint16(o.errno.Load()),
		Idle: uint64(o.idle)}, nil
}

// compacted returns how many pages Linux has moved within RAM since boot, of all programs (/proc/vmstat,
// pgmigrate_success); 0: unknown.
func compacted() (n uint64) {
	b, _ := os.ReadFile("/proc/vmstat")
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, "pgmigrate_success "); ok {
			n, _ = strconv.ParseUint(strings.TrimSpace(s), 10, 64)
		}
	}
	return n
}

// Digest is the SHA-256 of memory on demand.
type Digest struct {
	SHA256 string `json:"sha256"`
}

// DigestODP hashes the memory on demand, which moves its pages to RAM. EINVAL: an owner process has the memory.
func (n *Node) DigestODP(context.Context) (d Digest, err error) {
	o, err := n.odp("hash memory on demand")
	if err != nil {
		return d, err
	}
	if o.owner != nil {
		return d, fmt.Errorf("hash memory on demand: another program has it: %w", syscall.EINVAL)
	}
	sum := sha256.Sum256(o.memory)
	return Digest{hex.EncodeToString(sum[:])}, nil
}

// idleWake measures the 99th percentile of the delay with which this program wakes from a sleep of 200 us. It is
// meant for an idle machine.
func idleWake() time.Duration {
	const sleeps, asked = 200, 200 * time.Microsecond
	late := make([]time.Duration, sleeps)
	for i := range late {
		begin := time.Now()
		time.Sleep(asked)
		late[i] = max(0, time.Since(begin)-asked)
	}
	slices.Sort(late)
	return late[sleeps*99/100]
}
