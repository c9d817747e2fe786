package gpumem

import "io"

// AuditWindow is how many successive bytes of a stream make a hit.
const AuditWindow = 64

// Stream is the first Bytes bytes of the pattern of Seed.
type Stream struct {
	Seed  uint64
	Bytes uint64
}

// Hit is a piece of a stream, as long as possible and at least AuditWindow bytes, found in memory.
type Hit struct {
	Off       uint64 // in the memory
	Len       uint64
	Stream    int // index
	StreamOff uint64
}

// Audit finds every piece of the streams in ram.
func Audit(ram []byte, streams []Stream) []Hit { return nil }

// AuditReader is Audit of the size bytes of r. If r is an *os.File, its holes are not read.
func AuditReader(r io.ReaderAt, size int64, streams []Stream) ([]Hit, error) { return nil, errNotYet }
