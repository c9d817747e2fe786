package control

import "syscall"

// JobOp is the operation of a job, numbered like gpumem.Op.
type JobOp uint8

// Operations of jobs. Each range of GPU offsets must be in one buffer that is registered with the port.
const (
	JobFill      JobOp = 1 // write the pattern stream of Seed, from its byte Stream on, to [Off, Off+Len)
	JobPoison    JobOp = 2 // write the byte Seed&0xff to [Off, Off+Len)
	JobGather    JobOp = 3 // copy the table's entries: Src and Dst are GPU offsets
	JobToGuest   JobOp = 4 // copy the table's entries (D2H): Src is a GPU offset, Dst an IOVA
	JobFromGuest JobOp = 5 // copy the table's entries (H2D): Src is an IOVA, Dst a GPU offset
	JobSHA256    JobOp = 6 // hash [Off, Off+Len)
	JobReduce    JobOp = 7 // table: add elements of type Seed at Src to the elements at Dst, both GPU offsets
)

// Job is work for the port's copy engine.
type Job struct {
	Op         JobOp  // offset 0
	TableInGPU bool   // 1: 0 or 1: Table is a GPU offset, not an IOVA
	GPU        uint16 // 2: the GPU in whose memory all GPU offsets of the job are
	Entries    uint32 // 4
	Off        uint64 // 8
	Len        uint64 // 16
	Seed       uint64 // 24
	Stream     uint64 // 32: byte position in the pattern's stream
	Table      uint64 // 40: address of Entries entries of JobEntryLen bytes
}

// JobEntryLen is the size of an entry of a job's table, in bytes.
const JobEntryLen = 24

// JobEntry is an entry of a job's table.
type JobEntry struct {
	Src uint64 // offset 0
	Dst uint64 // 8
	Len uint32 // 16; 20: four bytes, zero
}

// Encode writes the entry to its place in a table.
func (e *JobEntry) Encode(b *[JobEntryLen]byte) {
	le.PutUint64(b[0:], e.Src)
	le.PutUint64(b[8:], e.Dst)
	le.PutUint32(b[16:], e.Len)
	le.PutUint32(b[20:], 0)
}

// JobState is the state of a job.
type JobState uint8

// States of a job.
const (
	JobRunning JobState = 1
	JobDone    JobState = 2 // Errno is valid
)

// JobStatus is the status of a job.
type JobStatus struct {
	ID    uint64   // offset 0
	State JobState // 8
	_     uint8
	// 10: ECANCELED, EFAULT (memory that is not the port's, or was removed), EIO (a memory fault), ...; 0:
	// success
	Errno uint16
	Entry uint32   // 12: index of the first entry that is not completed
	Bytes uint64   // 16: number of bytes completed
	Sum   [32]byte // 24: SHA-256, after success of JobSHA256; else zeros
}

// Err returns the job's error; nil while the job runs and after success.
func (s *JobStatus) Err() error {
	if s.State != JobDone || s.Errno == 0 {
		return nil
	}
	return syscall.Errno(s.Errno)
}

func (s *JobStatus) decode(data []byte) (int, error) {
	n, err := decodeFixed(data, s)
	if err == nil && s.State != JobRunning && s.State != JobDone {
		err = badData("job status: state %d", s.State)
	}
	return n, err
}
