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
)

// MemoryODP is memory of the guest's program that is not pinned: its pages are in RAM or, private to a GPU, where the
// GPU's driver has moved them, and the NIC asks for each when it needs it.
const MemoryODP = "odp"

// Storm moves pages of an RDMA's memory of the kind MemoryODP between RAM and the GPU while it goes on.
type Storm struct {
	Rate    float64 `json:"rate"`              // pages a second; 0: as fast as it goes
	Seed    uint64  `json:"seed"`              // of which page is next
	Compact bool    `json:"compact,omitempty"` // Linux moves pages in RAM besides (/proc/sys/vm/compact_memory)
}

// ODPStats is what has become of memory on demand.
type ODPStats struct {
	ToGPU   uint64 `json:"to_gpu"`  // pages that were moved to the GPU
	ToRAM   uint64 `json:"to_ram"`  // and to RAM, as was asked for
	Touched uint64 `json:"touched"` // to RAM, as the program, or the NIC's request, has touched them
	Private uint64 `json:"private"` // that are in the GPU now

	Invalidations uint64   `json:"invalidations"` // that the NIC was told of
	Untold        uint64   `json:"untold"`        // of pages that it did not have
	Refused       uint64   `json:"refused"`       // Linux did not want to wait
	Timeouts      uint64   `json:"timeouts"`
	Quarantined   bool     `json:"quarantined"`
	Waits         []uint32 `json:"waits"` // gpudriver.RegionStats.Waits

	Left   uint64 `json:"left"`   // pages of the GPU that were left, and filled
	Broken uint64 `json:"broken"` // of these, written to after that: DMA after acknowledgement

	Compacted uint64 `json:"compacted"` // pages of any program's that Linux has moved in RAM

	Key      uint32 `json:"key"`      // of the memory region
	Requests uint64 `json:"requests"` // for pages, that the program has answered
	Late     uint64 `json:"late"`     // of these, too late
	Errno    uint16 `json:"errno"`    // the last one that the driver has said of a page
	Idle     uint64 `json:"idle_ns"`  // how much later than asked for it was woken, 99th percentile, while nothing went on
}

// onDemand is memory of this program's whose pages a NIC asks for.
type onDemand struct {
	file    *gpudriver.File
	at      uint64          // where in the GPU's memory the driver's begins
	memory  []byte          // of this program; nil: the owner has it
	owner   *owner          // nil: this program is
	buffer  uint32          // of the GPU's, pinned, beside memory of an owner's
	control *control.Client // has registered it; nil: there is none
	region  *gpudriver.Region
	key     uint32
	server  *rdma.PageServer
	idle    time.Duration

	end    context.CancelFunc
	served chan error
	errno  atomic.Uint32 // the last one that the driver has said of a page that the NIC then did not get

	mu    sync.Mutex
	storm context.CancelFunc // under mu; nil: none
	moved chan error
}

// odpRegions makes memory on demand, of the size of the data. Of the GPU it needs the driver, and no memory: pages go
// there one by one.
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
	if o.file, o.at, err = kernelnic.OpenDriver(r.GPU, maps); err != nil {
		return nil, err
	}
	off, _, err := o.file.Mailbox()
	if err != nil {
		return nil, err
	}
	if err := dev.SetMailbox(ctx, uint16(r.GPU), o.at+off); err != nil {
		return nil, err
	}
	if _, err := o.file.Poison(); err != nil {
		return nil, err
	}
	var pinned *rdma.MR
	if r.Owner {
		pinned, err = o.own(ctx, n, pd, r, access)
	} else if o.memory, err = allocate(o.file, int(size)); err == nil {
		o.region, err = o.file.OpenRegion(o.memory)
	}
	if err != nil {
		return nil, err
	}
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
	o.end, o.served = end, make(chan error, 1)
	go func() { o.served <- o.server.Serve(serve) }()
	return all, nil
}

// own has another process have the memory. What queue pairs use beside it, when that process is gone, is as much of the
// GPU's, pinned.
func (o *onDemand) own(ctx context.Context, n *Node, pd *rdma.PD, r *RDMA, access uint8) (*rdma.MR, error) {
	var id uint32
	var err error
	if o.owner, id, err = startOwner(o.file, r.Data.Bytes); err != nil {
		return nil, err
	}
	o.region = o.file.Region(id)
	off, err := o.file.Alloc(r.Data.Bytes, 0)
	if err != nil {
		return nil, err
	}
	if o.buffer, err = n.port.control.RegisterBuffer(ctx, uint16(r.GPU), o.at+off, r.Data.Bytes); err != nil {
		return nil, err
	}
	o.control = n.port.control
	return pd.RegisterBuffer(o.buffer, 0, r.Data.Bytes, access)
}

// find asks the driver for pages.
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
			p.Addr += o.at
		}
		if p.Err != 0 && p.Err != syscall.EAGAIN {
			o.errno.Store(uint32(p.Err))
		}
		a.Entries = append(a.Entries, p.Entry())
	}
	return a
}

// close ends the storm and the answers. The memory regions are closed before.
func (o *onDemand) close() error {
	err := o.calm()
	if o.end != nil {
		o.end()
		if e := <-o.served; !errors.Is(e, rdma.ErrReset) {
			err = errors.Join(err, ignoreClosed(e))
		}
	}
	if o.region != nil {
		err = errors.Join(err, o.region.Close())
	}
	if o.memory != nil {
		err = errors.Join(err, unix.Munmap(o.memory))
	}
	if o.owner != nil {
		err = errors.Join(err, o.owner.close())
	}
	if o.control != nil {
		err = errors.Join(err, o.control.UnregisterBuffer(context.Background(), o.buffer))
	}
	if o.file != nil {
		err = errors.Join(err, o.file.Close())
	}
	return err
}

// odp is the memory on demand that is open.
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

// StartStorm begins to move pages.
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

// EndStorm ends that.
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

// move moves pages until ctx ends: each time one, from wherever it is to the other place.
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
			at := rnd.IntN(pages) * gpudriver.PageSize
			page := o.memory[at : at+gpudriver.PageSize]
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
		select { // where there is no pause the loop above ends with ctx alone
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// ODP says what has become of the memory on demand.
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

// compacted is how many pages Linux has moved in RAM since it booted.
func compacted() (n uint64) {
	b, _ := os.ReadFile("/proc/vmstat")
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, "pgmigrate_success "); ok {
			n, _ = strconv.ParseUint(strings.TrimSpace(s), 10, 64)
		}
	}
	return n
}

// Digest is the SHA-256 of the memory as the program sees it, which brings all pages to RAM.
type Digest struct {
	SHA256 string `json:"sha256"`
}

// DigestODP hashes the memory on demand.
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

// idleWake measures how much later than it asked for a program is woken here, while nothing else goes on: its 99th
// percentile. What waits for a NIC's answer waits that long, too.
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
