package control

import "syscall"

// JobOp is what a job does. The numbers are those of gpumem.Op.
type JobOp uint8

// Operations of jobs. GPU offsets lie in buffers that the port registered.
const (
	JobFill      JobOp = 1 // write the pattern of Seed from stream position Stream to [Off, Off+Len)
	JobPoison    JobOp = 2 // write the byte Seed&0xff to [Off, Off+Len)
	JobGather    JobOp = 3 // table: Src and Dst are GPU offsets
	JobToGuest   JobOp = 4 // D2H. Table: Src is a GPU offset, Dst an IOVA
	JobFromGuest JobOp = 5 // H2D. Table: Src is an IOVA, Dst a GPU offset
	JobSHA256    JobOp = 6 // hash [Off, Off+Len)
)

// Job is work for an engine.
type Job struct {
	Op         JobOp  // offset 0
	TableInGPU bool   // 1: 0 or 1: Table is a GPU offset, not an IOVA
	GPU        uint16 // 2: whose memory all GPU offsets of the job are in
	Entries    uint32 // 4
	Off        uint64 // 8
	Len        uint64 // 16
	Seed       uint64 // 24
	Stream     uint64 // 32: byte position in the pattern's stream
	Table      uint64 // 40: of Entries entries of JobEntryLen bytes
}

const jobLen = 48

func (j *Job) encode(b *[jobLen]byte) {
	b[0], b[1] = byte(j.Op), flag(j.TableInGPU)
	le.PutUint16(b[2:], j.GPU)
	le.PutUint32(b[4:], j.Entries)
	le.PutUint64(b[8:], j.Off)
	le.PutUint64(b[16:], j.Len)
	le.PutUint64(b[24:], j.Seed)
	le.PutUint64(b[32:], j.Stream)
	le.PutUint64(b[40:], j.Table)
}

func (j *Job) decode(b *[jobLen]byte) error {
	if b[1] > 1 {
		return badData("job: table in GPU %d", b[1])
	}
	*j = Job{
		Op: JobOp(b[0]), TableInGPU: b[1] == 1, GPU: le.Uint16(b[2:]), Entries: le.Uint32(b[4:]), Off: le.Uint64(b[8:]),
		Len: le.Uint64(b[16:]), Seed: le.Uint64(b[24:]), Stream: le.Uint64(b[32:]), Table: le.Uint64(b[40:]),
	}
	return nil
}

// JobEntryLen is the size of an entry of a job's table, in bytes.
const JobEntryLen = 24

// JobEntry is one entry of a job's table.
type JobEntry struct {
	Src uint64 // offset 0
	Dst uint64 // 8
	Len uint32 // 16; 20: four bytes, zero
}

// Encode writes the entry to a table.
func (e *JobEntry) Encode(b *[JobEntryLen]byte) {
	le.PutUint64(b[0:], e.Src)
	le.PutUint64(b[8:], e.Dst)
	le.PutUint32(b[16:], e.Len)
	le.PutUint32(b[20:], 0)
}

// JobState tells how far a job is.
type JobState uint8

// States of a job.
const (
	JobRunning JobState = 1
	JobDone    JobState = 2 // Errno tells how it ended
)

// JobStatus is what is known of a job.
type JobStatus struct {
	ID    uint64        // offset 0
	State JobState      // 8
	Errno syscall.Errno // 10, u16: ECANCELED, EFAULT (outside of the port's memory), EIO (memory is gone), ...; 0 is success
	Entry uint32        // 12: first entry that was not done in full
	Bytes uint64        // 16: done
	Sum   [32]byte      // 24: of JobSHA256
}

// Err returns the job's error, nil while it runs and when it succeeded.
func (s *JobStatus) Err() error {
	if s.State != JobDone || s.Errno == 0 {
		return nil
	}
	return s.Errno
}

const statusLen = 56 // 9: a byte, zero

func (s *JobStatus) encode(b *[statusLen]byte) {
	le.PutUint64(b[0:], s.ID)
	b[8], b[9] = byte(s.State), 0
	le.PutUint16(b[10:], uint16(s.Errno))
	le.PutUint32(b[12:], s.Entry)
	le.PutUint64(b[16:], s.Bytes)
	copy(b[24:], s.Sum[:])
}

func (s *JobStatus) decode(b *[statusLen]byte) error {
	if (b[8] != byte(JobRunning) && b[8] != byte(JobDone)) || b[9] != 0 {
		return badData("job status: state %d, reserved %d", b[8], b[9])
	}
	*s = JobStatus{
		ID: le.Uint64(b[0:]), State: JobState(b[8]), Errno: syscall.Errno(le.Uint16(b[10:])), Entry: le.Uint32(b[12:]),
		Bytes: le.Uint64(b[16:]), Sum: [32]byte(b[24:]),
	}
	return nil
}
