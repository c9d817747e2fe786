package gpumem

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/elements"
	"vnic.dev/vnic/internal/lab/shape"
)

// Status is the state of a job.
type Status struct {
	ID    uint64
	Done  bool
	Errno syscall.Errno // valid when the job is done; 0: success
	Err   error         // the error behind Errno, for logs; nil: none so far
	Entry uint32        // number of table entries that are completely done; 0 for a job without a table
	Bytes uint64        // bytes copied, written, added or hashed; after a fault, more may be done
	Sum   [32]byte      // the hash, if a job of SHA256 has succeeded; else zero
}

// EngineOptions are options of NewEngine.
type EngineOptions struct {
	MaxJobs int // jobs at one time; 0 means 16
	Keep    int // ended jobs that Poll knows; 0 means 256
	// Done is called, if it is not nil, in a job's goroutine at its end. CancelAll and Reset wait
	// for this call: Done must not wait for a goroutine that calls one of them.
	Done func(Status)
	// ToGuest and FromGuest return the links between a GPU and guest memory of a NUMA node (-1: unknown); a job
	// that copies waits as long as its bytes need to cross them. A nil function or nil links mean no delay.
	ToGuest, FromGuest func(gpu, node int) *shape.Route
}

// maxInHand is how many pieces of an Engine's jobs and digests may be in progress at a time.
const maxInHand = 2

// Engine runs the jobs and digests of one port (a guest's NIC). Several goroutines may call its methods.
//
// A job works in pieces of at most 1 MiB, and enters the guest's address space and the registry anew for each
// one. The removal of a region or buffer waits for the pieces in progress; the job of a later piece that needs
// the removed memory fails with EFAULT.
type Engine struct {
	registry *Registry
	space    *dma.Space
	o        EngineOptions
	inHand   chan struct{} // has an element for each piece in progress

	mu    sync.Mutex
	last  uint64              // under mu: the last id of a job or digest; ids are not reused
	jobs  map[uint64]*running // under mu: jobs that have not ended
	alive map[*running]bool   // under mu: jobs that have not ended or are in their call of Done, and digests
	ended []Status            // under mu: the last Keep jobs that ended since Reset, oldest first

	count, failed, gathered, toGuest, fromGuest, filled, hashed, tables, reduced atomic.Uint64

	copies [dma.MaxGPUs]struct{ to, from byNode } // bytes copied to and from guest memory, by GPU
}

// running is a job until the end of its goroutine, or a digest. A digest uses id, cancelled, bytes and gone.
type running struct {
	id        uint64
	job       Job
	cancelled atomic.Bool
	done      atomic.Uint32 // number of entries done
	bytes     atomic.Uint64
	ended     chan struct{} // closed when status is final and no memory is accessed
	gone      chan struct{} // closed at the end of the job's goroutine, or of the digest
}

// EngineStats counts bytes, except Jobs and Failed; Hashed includes digests.
type EngineStats struct {
	Jobs, Failed                 uint64 // jobs that have ended, and how many of them failed or were cancelled
	Gathered, ToGuest, FromGuest uint64
	Filled, Hashed, TableBytes   uint64
}

// NewEngine returns an engine for the buffers of r and the guest memory of space.
func NewEngine(r *Registry, space *dma.Space, o EngineOptions) *Engine {
	o.MaxJobs, o.Keep = cmp.Or(o.MaxJobs, 16), cmp.Or(o.Keep, 256)
	return &Engine{
		registry: r, space: space, o: o, inHand: make(chan struct{}, maxInHand),
		jobs: make(map[uint64]*running), alive: make(map[*running]bool),
	}
}

// Submit starts a job and returns its id. Errors: EINVAL (no such operation or type of elements, too many
// entries), ENODEV (the port has no such GPU), EAGAIN (MaxJobs jobs have not ended).
func (e *Engine) Submit(j Job) (uint64, error) {
	g := e.registry.GPU(j.GPU)
	switch {
	case j.Op < Fill || j.Op > Reduce:
		return 0, fmt.Errorf("job: no operation %d: %w", j.Op, syscall.EINVAL)
	case j.Op == Reduce && (j.Seed > 255 || elements.Type(j.Seed).Size() == 0):
		return 0, fmt.Errorf("job: no elements of type %d: %w", j.Seed, syscall.EINVAL)
	case j.Entries > MaxEntries:
		return 0, fmt.Errorf("job: table of %d entries, more than %d: %w", j.Entries, MaxEntries, syscall.EINVAL)
	case g == nil:
		return 0, fmt.Errorf("job: the port has no GPU %d: %w", j.GPU, syscall.ENODEV)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.jobs) >= e.o.MaxJobs {
		return 0, fmt.Errorf("job: %d are under way: wait for one to end: %w", len(e.jobs), syscall.EAGAIN)
	}
	e.last++
	r := &running{id: e.last, job: j, ended: make(chan struct{}), gone: make(chan struct{})}
	e.jobs[r.id], e.alive[r] = r, true
	dma.Go(func() { e.do(r, g) })
	return r.id, nil
}

func (e *Engine) do(r *running, g *GPU) {
	defer e.leave(r)
	w := &work{running: r, e: e, gpu: g, copier: dma.NewCopier()}
	err := w.run()
	s := r.status()
	s.Done, s.Err, s.Errno = true, err, errnoOf(err)
	if err == nil && w.hash != nil {
		w.hash.Sum(s.Sum[:0])
	}
	e.count.Add(1)
	if err != nil {
		e.failed.Add(1)
	}
	e.mu.Lock()
	delete(e.jobs, r.id)
	if e.ended = append(e.ended, s); len(e.ended) > e.o.Keep {
		e.ended = slices.Delete(e.ended, 0, 1)
	}
	e.mu.Unlock()
	close(r.ended)
	if e.o.Done != nil {
		e.o.Done(s)
	}
}

func (e *Engine) leave(r *running) {
	e.mu.Lock()
	delete(e.alive, r)
	e.mu.Unlock()
	close(r.gone)
}

func errnoOf(err error) syscall.Errno {
	var no syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &no):
		return no
	}
	return syscall.EIO // another error, such as a memory fault
}

func (r *running) status() Status {
	return Status{ID: r.id, Entry: r.done.Load(), Bytes: r.bytes.Load()}
}

func (e *Engine) release() { <-e.inHand }

// Poll returns a job's status. ENOENT: there was no such job, or its status is forgotten (EngineOptions.Keep, Reset).
func (e *Engine) Poll(id uint64) (Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.jobs[id]; r != nil {
		return r.status(), nil
	}
	if i := slices.IndexFunc(e.ended, func(s Status) bool { return s.ID == id }); i >= 0 {
		return e.ended[i], nil
	}
	return Status{}, fmt.Errorf("no job %d, or it ended too long ago: %w", id, syscall.ENOENT)
}

// Cancel stops a job if it has not ended, waits until it accesses no memory any more, and returns what Poll returns.
// The job's call of Done may come later.
func (e *Engine) Cancel(id uint64) (Status, error) {
	e.mu.Lock()
	r := e.jobs[id]
	e.mu.Unlock()
	if r != nil {
		r.cancelled.Store(true)
		<-r.ended
	}
	return e.Poll(id)
}

// CancelAll stops the jobs and digests that have begun before it, and waits for their end, calls of Done included.
func (e *Engine) CancelAll() {
	e.mu.Lock()
	var all []*running
	for r := range e.alive {
		r.cancelled.Store(true)
		all = append(all, r)
	}
	e.mu.Unlock()
	for _, r := range all {
		<-r.gone
	}
}

// Reset is CancelAll, and also forgets the status of ended jobs.
func (e *Engine) Reset() {
	e.CancelAll()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = nil
}

// byNode counts bytes by NUMA node: the index is 1 + the node, or 0 if it is unknown.
type byNode [dma.MaxNodes + 1]atomic.Uint64

// Copied returns how many bytes jobs have copied from a GPU to a NUMA node's memory, and from that memory to the GPU;
// node is -1 for memory whose node is unknown.
func (e *Engine) Copied(gpu, node int) (toGuest, fromGuest uint64) {
	c := &e.copies[gpu]
	return c.to[node+1].Load(), c.from[node+1].Load()
}

// Reduced returns how many bytes Reduce jobs have added.
func (e *Engine) Reduced() uint64 { return e.reduced.Load() }

// Stats returns the counters.
func (e *Engine) Stats() EngineStats {
	return EngineStats{
		Jobs: e.count.Load(), Failed: e.failed.Load(), Gathered: e.gathered.Load(), ToGuest: e.toGuest.Load(),
		FromGuest: e.fromGuest.Load(), Filled: e.filled.Load(), Hashed: e.hashed.Load(), TableBytes: e.tables.Load(),
	}
}
