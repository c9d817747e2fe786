package gpumem

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// AuditWindow is how many successive bytes of a stream make a hit.
const AuditWindow = 64

// Stream is the first Bytes bytes of the pattern of Seed. Seeds that lie apart by a multiple of step less than that of
// Bytes/8 have bytes in common: use random ones.
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

// auditChunk is how much one worker looks at in one go.
const auditChunk = 1 << 20

// Audit finds every piece of the streams in ram, at any alignment of either, by place in ram.
//
// It is exact: a hit is AuditWindow bytes or more compared with the stream byte by byte, and no
// window is missed. Bytes that have nothing to do with the stream make a false hit if they are
// equal to one of its windows by chance: for random bytes, and all windows of 2^40 bytes of stream
// at all offsets of 2^40 bytes of memory, 2^80 pairs, that is 2^80/2^512. Memory with little
// variety (zeros, text, code, pointers) cannot be equal to a window at all unless it holds at least
// seven of the words that mix64 makes of seven successive states.
//
// ram must not shrink meanwhile. For the memory of a guest use AuditReader on its file: reading a
// hole of a mapped memfd would allocate it, and a file may be truncated.
func Audit(ram []byte, streams []Stream) []Hit {
	look := func(off, n uint64) ([]byte, error) { return ram[off : off+n], nil }
	hits, _ := audit(uint64(len(ram)), streams, func() view { return look }, nil) // look has no errors
	return hits
}

// AuditReader is Audit of the size bytes of r, which is read by two goroutines at once. If r is an *os.File, its holes
// are not read (which moves its file offset).
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

// holes returns a function that tells whether a range of a file is nothing but hole, for ranges in any order.
func holes(f *os.File) func(off, n uint64) bool {
	var mu sync.Mutex
	return func(off, n uint64) bool {
		mu.Lock()
		defer mu.Unlock()
		data, err := f.Seek(int64(off), unix.SEEK_DATA)
		return err == nil && uint64(data) >= off+n || errors.Is(err, unix.ENXIO) // ENXIO: none from off on
	}
}

// view gives [off, off+n) of the memory, good until it is called again.
type view func(off, n uint64) ([]byte, error)

// audit looks at all of size bytes in chunks. Each is seen together with the AuditWindow-1 bytes behind it, so that a
// window lies in the view of the chunk that it begins in; hits cut at the edges of views are joined afterwards.
func audit(size uint64, streams []Stream, open func() view, hole func(off, n uint64) bool) ([]Hit, error) {
	var (
		next   atomic.Uint64
		failed atomic.Bool
		mu     sync.Mutex
		all    []Hit
		first  error
		wait   sync.WaitGroup
	)
	for range min(2, runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			s, look := newScanner(streams), open()
			var err error
			for err == nil && !failed.Load() {
				off := next.Add(auditChunk) - auditChunk
				if off >= size {
					break
				}
				n := min(size-off, auditChunk+AuditWindow-1)
				if hole != nil && hole(off, n) {
					continue
				}
				var b []byte
				if b, err = look(off, n); err == nil {
					s.scan(b, off)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s.hits...)
			if err != nil {
				failed.Store(true)
				first = cmp.Or(first, err)
			}
		})
	}
	wait.Wait()
	if first != nil {
		return nil, first
	}
	return join(all), nil
}

// join makes one of hits that are parts of one piece: of one stream, with one distance between stream and memory,
// overlapping or next to each other.
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

// scanner looks for streams; it belongs to one goroutine.
type scanner struct {
	streams []Stream
	targets []target
	hits    []Hit
}

// target is a stream in the terms of the search.
type target struct {
	base  uint64 // a word that is number i of the stream has unmix64(word)*stepInv - base == i
	words uint64 // whole words in the stream
	// the last hit in this view, so that a long one is compared once
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
// Blocks of zeros are stepped over, but for the AuditWindow-1 bytes next to others. No window lies in zeros alone: it
// has at least seven words of the stream, all different, as mix64 is a bijection.
func (s *scanner) scan(b []byte, off uint64) {
	for i := range s.targets {
		s.targets[i].end = 0
	}
	const edge = AuditWindow - 1
	for at := 0; at < len(b); {
		for at < len(b) && zero(b[at:min(at+auditBlock, len(b))]) {
			at += auditBlock
		}
		from := at
		for at < len(b) && !zero(b[at:min(at+auditBlock, len(b))]) {
			at += auditBlock
		}
		if from < len(b) {
			s.probe(b, off, max(from-edge, 0), min(at+edge, len(b)))
		}
	}
}

// probe finds the pieces that have a window in b[from:to].
//
// A window holds at least seven whole words of its stream, which begin eight bytes apart. Trying the eight offsets
// at each multiple of 56 hits one of any such seven: their offsets have seven different residues modulo 56, which are
// all that are congruent to the first one modulo 8, and eight successive residues have one of these.
func (s *scanner) probe(b []byte, off uint64, from, to int) {
	at := from
	for ; at+16 <= to; at += 56 {
		lo, hi := le.Uint64(b[at:]), le.Uint64(b[at+8:])
		w := lo
		for k := 0; ; {
			t := unmix64(w) * stepInv
			for i := range s.targets {
				if t-s.targets[i].base < s.targets[i].words {
					s.confirm(b, off, at+k, i, (t-s.targets[i].base)*8)
				}
			}
			if k++; k == 8 {
				break
			}
			w = lo>>(8*k) | hi<<(64-8*k)
		}
	}
	for k := 0; k < 8 && at+k+8 <= to; k++ { // a group cut by the end
		t := unmix64(le.Uint64(b[at+k:])) * stepInv
		for i := range s.targets {
			if t-s.targets[i].base < s.targets[i].words {
				s.confirm(b, off, at+k, i, (t-s.targets[i].base)*8)
			}
		}
	}
}

// confirm compares what is around b[at], where a word of stream i is, with the stream.
func (s *scanner) confirm(b []byte, off uint64, at, i int, streamOff uint64) {
	t, st := &s.targets[i], &s.streams[i]
	if uint64(at) < t.end && streamOff-uint64(at) == t.distance {
		return
	}
	before := matchBefore(b[:at], st.Seed, streamOff)
	rest := b[at:]
	rest = rest[:min(uint64(len(rest)), st.Bytes-streamOff)]
	n := before + MatchAt(rest, st.Seed, streamOff)
	if n < AuditWindow {
		return
	}
	t.end, t.distance = uint64(at-before+n), streamOff-uint64(at)
	s.hits = append(s.hits, Hit{Off: off + uint64(at-before), Len: uint64(n), Stream: i,
		StreamOff: streamOff - uint64(before)})
}

// zero reports whether b is all zeros.
func zero(b []byte) bool {
	for len(b) >= 64 {
		if le.Uint64(b)|le.Uint64(b[8:])|le.Uint64(b[16:])|le.Uint64(b[24:])|
			le.Uint64(b[32:])|le.Uint64(b[40:])|le.Uint64(b[48:])|le.Uint64(b[56:]) != 0 {
			return false
		}
		b = b[64:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
