package gpumem

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// AuditWindow is the smallest number of successive bytes of a stream that make a hit.
const AuditWindow = 64

// Stream is the first Bytes bytes of the pattern of Seed. Streams whose seeds differ by k*step, with k less
// than Bytes/8, have bytes in common: use random seeds.
type Stream struct {
	Seed  uint64
	Bytes uint64
}

// Hit is a piece of a stream that Audit found in memory, of at least AuditWindow bytes.
type Hit struct {
	Off       uint64 // in the memory
	Len       uint64
	Stream    int // index in the list of streams
	StreamOff uint64
}

// auditChunk is the number of bytes that a worker scans at a time.
const auditChunk = 1 << 20

// Audit finds the pieces of the streams in ram that have at least AuditWindow bytes, at any alignment in both,
// in the order of ram.
//
// Unrelated bytes make a false hit only if they equal a window by chance: for random bytes, all windows of 2^40
// bytes of stream and all offsets of 2^40 bytes of memory are 2^80 pairs, so the probability is 2^80/2^512.
//
// ram must not shrink during the call. For a guest's memory use AuditReader on its file, whose holes it does
// not fill.
func Audit(ram []byte, streams []Stream) []Hit {
	look := func(off, n uint64) ([]byte, error) { return ram[off : off+n], nil }
	hits, _ := audit(uint64(len(ram)), streams, func() view { return look }, nil) // look returns no errors
	return hits
}

// AuditReader is Audit for the size bytes of r, which up to two goroutines read at the same time. If r is an
// *os.File, AuditReader skips the file's holes (which moves the file offset).
func AuditReader(r io.ReaderAt, size int64, streams []Stream) ([]Hit, error) {
	open := func() view {
		buf := make([]byte, auditChunk+AuditWindow-1)
		return func(off, n uint64) ([]byte, error) {
			if got, err := r.ReadAt(buf[:n], int64(off)); got < int(n) {
				return nil, fmt.Errorf("audit: read at %#x: %w", off+uint64(got), err)
			}
			return buf[:n], nil
		}
	}
	var hole func(off, n uint64) bool
	if f, ok := r.(*os.File); ok {
		hole = holes(f)
	}
	return audit(uint64(size), streams, open, hole)
}

// holes returns a function that reports whether a range of a file consists only of holes.
func holes(f *os.File) func(off, n uint64) bool {
	var mu sync.Mutex
	return func(off, n uint64) bool {
		mu.Lock()
		defer mu.Unlock()
		data, err := f.Seek(int64(off), unix.SEEK_DATA)
		return err == nil && uint64(data) >= off+n || errors.Is(err, unix.ENXIO) // no data from off on
	}
}

// view returns [off, off+n) of the memory, valid until its next call.
type view func(off, n uint64) ([]byte, error)

// audit scans size bytes in chunks. A worker sees each chunk together with the next AuditWindow-1 bytes; join
// merges hits that are cut at the ends of views.
func audit(size uint64, streams []Stream, open func() view, hole func(off, n uint64) bool) ([]Hit, error) {
	var next atomic.Uint64
	var mu sync.Mutex
	var all []Hit
	work, ctx := errgroup.WithContext(context.Background())
	for range min(2, runtime.GOMAXPROCS(0)) {
		work.Go(func() error {
			s, look := newScanner(streams), open()
			for ctx.Err() == nil {
				off := next.Add(auditChunk) - auditChunk
				if off >= size {
					break
				}
				n := min(size-off, auditChunk+AuditWindow-1)
				if hole != nil && hole(off, n) {
					continue
				}
				b, err := look(off, n)
				if err != nil {
					return err
				}
				s.scan(b, off)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s.hits...)
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return nil, err
	}
	return join(all), nil
}

// join merges hits of the same stream, at the same distance between stream and memory, that overlap or are
// adjacent.
func join(hits []Hit) []Hit {
	slices.SortFunc(hits, func(a, b Hit) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.StreamOff-a.Off, b.StreamOff-b.Off),
			cmp.Compare(a.Off, b.Off))
	})
	var out []Hit
	for _, h := range hits {
		if n := len(out); n > 0 {
			o := &out[n-1]
			if o.Stream == h.Stream && o.StreamOff-o.Off == h.StreamOff-h.Off && h.Off <= o.Off+o.Len {
				o.Len = max(o.Len, h.Off+h.Len-o.Off)
				continue
			}
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b Hit) int {
		return cmp.Or(cmp.Compare(a.Off, b.Off), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.StreamOff, b.StreamOff))
	})
	return out
}

// scanner searches for streams; one goroutine uses it.
type scanner struct {
	streams []Stream
	targets []target
	hits    []Hit
}

// target is a stream, prepared for the search.
type target struct {
	base  uint64 // for word number i of the stream unmix64(word)*stepInv - base == i
	words uint64 // complete words in the stream
	// of the last hit in this view, so that confirm compares a long hit only once
	end      uint64
	distance uint64
}

func newScanner(streams []Stream) *scanner {
	s := &scanner{streams: streams, targets: make([]target, len(streams))}
	for i, st := range streams {
		s.targets[i] = target{base: st.Seed*stepInv + 1, words: st.Bytes / 8}
	}
	return s
}

const auditBlock = 4096

// scan finds the pieces in b, which lies at off of the memory.
//
// It skips blocks of zeros, except the AuditWindow-1 bytes next to other blocks. No window consists only of
// zeros: it has at least seven words of the stream, which all differ, because mix64 is a bijection.
func (s *scanner) scan(b []byte, off uint64) {
	for i := range s.targets {
		s.targets[i].end = 0
	}
	const edge = AuditWindow - 1
	for pos := 0; pos < len(b); {
		for pos < len(b) && zero(b[pos:min(pos+auditBlock, len(b))]) {
			pos += auditBlock
		}
		from := pos
		for pos < len(b) && !zero(b[pos:min(pos+auditBlock, len(b))]) {
			pos += auditBlock
		}
		if from < len(b) {
			s.probe(b, off, max(from-edge, 0), min(pos+edge, len(b)))
		}
	}
}

// probe finds the pieces that have a window in b[from:to].
//
// A window contains at least seven complete words of its stream, at offsets that are eight bytes
// apart. Testing eight offsets after each multiple of 56 finds one of the seven: their offsets are
// the seven residues modulo 56 that are congruent modulo 8, and any eight successive residues
// include one of these.
func (s *scanner) probe(b []byte, off uint64, from, to int) {
	last := to - 8
	for group := from; group <= last; group += 56 {
		for pos := group; pos <= min(group+7, last); pos++ {
			t := unmix64(le.Uint64(b[pos:])) * stepInv
			for i := range s.targets {
				if t-s.targets[i].base < s.targets[i].words {
					s.confirm(b, off, pos, i, (t-s.targets[i].base)*8)
				}
			}
		}
	}
}

// confirm compares the bytes around b[pos], where a word of stream i was found, with the stream.
func (s *scanner) confirm(b []byte, off uint64, pos, i int, streamOff uint64) {
	t, st := &s.targets[i], &s.streams[i]
	if uint64(pos) < t.end && streamOff-uint64(pos) == t.distance {
		return
	}
	before := matchBefore(b[:pos], st.Seed, streamOff)
	rest := b[pos:]
	rest = rest[:min(uint64(len(rest)), st.Bytes-streamOff)]
	n := before + MatchAt(rest, st.Seed, streamOff)
	if n < AuditWindow {
		return
	}
	t.end, t.distance = uint64(pos-before+n), streamOff-uint64(pos)
	s.hits = append(s.hits, Hit{Off: off + uint64(pos-before), Len: uint64(n), Stream: i,
		StreamOff: streamOff - uint64(before)})
}

var zeros [auditBlock]byte

// zero reports whether b, at most a block, is all zeros.
func zero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }
