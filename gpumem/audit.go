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

// AuditWindow is the least length of a hit, in bytes. A window is a piece of a stream of this length.
const AuditWindow = 64

// Stream is the first Bytes bytes of the pattern of Seed (FillPattern). The streams of two seeds that differ by k*step,
// with k below Bytes/8, have bytes in common: use random seeds.
type Stream struct {
	Seed  uint64
	Bytes uint64
}

// Hit is a piece of a stream that Audit or AuditReader has found in memory.
type Hit struct {
	Off       uint64 // where it begins in the memory
	Len       uint64
	Stream    int // index in the list of streams
	StreamOff uint64
}

// auditChunk is the length of a chunk in bytes: see audit.
const auditChunk = 1 << 20

// Audit returns the pieces of streams, of at least AuditWindow bytes, that it finds in ram, at any alignment.
//
// Among 2^40 random bytes of memory and 2^40 of streams the probability of a false hit is at most
// 2^80/2^512.
//
// If ram is a mapped file, the file must not be truncated during the call, and Audit may fill holes of the file:
// AuditReader does not.
func Audit(ram []byte, streams []Stream) []Hit {
	look := func(off, n uint64) ([]byte, error) { return ram[off : off+n], nil }
	hits, _ := audit(uint64(len(ram)), streams, func() view { return look }, nil) // look returns no errors
	return hits
}

// AuditReader is Audit for the first size bytes of r, with up to two calls of r.ReadAt at the same time. If r is an
// *os.File, AuditReader skips chunks without data (holes, or beyond the file's end), and moves the file's offset.
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

// holes returns a function that reports whether a range of a file has no data: it is a hole, or beyond the end.
func holes(f *os.File) func(off, n uint64) bool {
	var mu sync.Mutex
	return func(off, n uint64) bool {
		mu.Lock()
		defer mu.Unlock()
		data, err := f.Seek(int64(off), unix.SEEK_DATA)
		return err == nil && uint64(data) >= off+n || errors.Is(err, unix.ENXIO) // there is no data from off on
	}
}

// view returns [off, off+n) of the memory, valid until the next call.
type view func(off, n uint64) ([]byte, error)

// audit lets workers scan the memory in chunks of auditChunk bytes, each with the next AuditWindow-1 bytes, if
// there are so many; join merges the hits that a chunk's end has cut. Ranges for which hole (if not nil) is
// true are skipped.
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

// join sorts the hits, and merges the ones that overlap or adjoin in the memory and in the stream.
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

// scanner scans memory for the streams; one goroutine uses it.
type scanner struct {
	streams []Stream
	targets []target
	hits    []Hit
}

type target struct {
	base  uint64 // word number i has unmix64(word)*stepInv - base == i
	words uint64 // number of complete words in the stream
	// The last hit in the memory that scan was called with, b; confirm skips places in it. end is the hit's end in b,
	// distance its offset in the stream minus its offset in b.
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
// It skips blocks of zeros (auditBlock bytes each), but for AuditWindow-1 bytes next to other blocks. A window contains
// seven complete words of the stream. They differ, as mix64 is a bijection, so at most one is zero: a window does not
// lie in blocks of zeros alone.
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
// A window contains at least seven complete words of its stream, eight bytes apart. For each k, probe tests the
// eight places from b[from+56*k] on. One of the words is at such a place: counted from b[from], the places of
// seven successive words have, modulo 56, the seven residues that are congruent modulo 8, and one of these is
// below 8.
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

// confirm compares the bytes around b[pos] with stream i around streamOff, and records a hit if at least AuditWindow
// bytes match. It skips a place that belongs to the last hit.
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

func zero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }
