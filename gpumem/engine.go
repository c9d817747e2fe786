package gpumem

import (
	"syscall"

	"vnic.dev/vnic/dma"
)

// Op is what a job does. The numbers are those of the control protocol.
type Op uint8

// Operations of jobs.
const (
	Fill          Op = 1 // write the pattern of Seed from stream position Stream to [Off, Off+Len)
	Poison        Op = 2 // write the byte Seed&0xff to [Off, Off+Len)
	Gather        Op = 3 // table: Src and Dst are GPU offsets
	CopyToGuest   Op = 4 // D2H. Table: Src is a GPU offset, Dst an IOVA
	CopyFromGuest Op = 5 // H2D. Table: Src is an IOVA, Dst a GPU offset
	SHA256        Op = 6 // hash [Off, Off+Len)
)

// Job is work for an engine.
type Job struct {
	Op         Op
	GPU        int
	Off, Len   uint64
	Seed       uint64
	Stream     uint64 // byte position in the pattern's stream
	Table      uint64 // address of the entries: 24 bytes each, {src u64, dst u64, len u32, zero u32}, little endian
	TableInGPU bool   // Table is a GPU offset in a registered buffer, not an IOVA
	Entries    uint32
}

// Status is how far a job is.
type Status struct {
	ID    uint64
	Done  bool
	Errno syscall.Errno // once done; 0 is success
	Err   error         // the error behind Errno, for logs
	Entry uint32        // first entry that was not done in full
	Bytes uint64        // done
	Sum   [32]byte      // of SHA256
}

// EngineOptions configure an Engine.
type EngineOptions struct {
	MaxJobs int          // under way at one time; 16 if 0
	Keep    int          // ended jobs whose status is kept for Poll; 256 if 0
	Done    func(Status) // called from the job's goroutine when it has ended, not after CancelAll returned
}

// Engine runs jobs of one port.
type Engine struct{}

// NewEngine returns an engine that reaches the buffers of r and the guest memory of space.
func NewEngine(r *Registry, space *dma.Space, o EngineOptions) *Engine { return &Engine{} }

// Submit starts a job and returns its id.
func (e *Engine) Submit(j Job) (uint64, error) { return 0, errNotYet }

// Poll returns a job's status: ENOENT if it is not known (any more).
func (e *Engine) Poll(id uint64) (Status, error) { return Status{}, errNotYet }

// Cancel stops a job and returns its status when nothing of it runs.
func (e *Engine) Cancel(id uint64) (Status, error) { return Status{}, errNotYet }

// CancelAll stops all jobs and returns when nothing of them runs. Done must not wait for its caller.
func (e *Engine) CancelAll() {}

// Reset is CancelAll, and forgets how jobs ended.
func (e *Engine) Reset() {}

// EngineStats counts what jobs did, in bytes unless said otherwise.
type EngineStats struct {
	Jobs, Failed                 uint64 // jobs ended, and of these, with an error
	Gathered, ToGuest, FromGuest uint64
	Filled, Hashed, TableBytes   uint64
}

// Stats returns the counters.
func (e *Engine) Stats() EngineStats { return EngineStats{} }
