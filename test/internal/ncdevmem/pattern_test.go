package ncdevmem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"vnic.dev/vnic/gpumem"
)

const (
	pageSize = 4096
	// The pattern of ncdevmem's -v repeats the bytes 1 to period-1 and a newline.
	period = 7
)

func pattern(from, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if b[i] = byte((from+i)%period + 1); b[i] == period {
			b[i] = '\n'
		}
	}
	return b
}

// patternPages counts the pages of r that hold only the pattern, which may begin with any of its bytes.
func patternPages(r io.ReaderAt, size int64) (pages int, err error) {
	var whole [period][]byte
	for i := range whole {
		whole[i] = pattern(i, pageSize)
	}
	buf := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(buf)) {
		n, err := r.ReadAt(buf[:min(int64(len(buf)), size-off)], off)
		if err != nil && !errors.Is(err, io.EOF) {
			return pages, err
		}
		for b := buf[:n]; len(b) >= pageSize; b = b[pageSize:] {
			first := int(b[0])
			if first == '\n' {
				first = period
			}
			if first >= 1 && first <= period && bytes.Equal(b[:pageSize], whole[first-1]) {
				pages++
			}
		}
	}
	return pages, nil
}

// lineLengths are the lengths of makeLines' lines, with the newline: shorter and longer than a segment, a page and a
// GSO packet.
var lineLengths = []int{1, 2, 1447, 1448, 1449, 4095, 4097, 40_000, 65_536, 200_001, 300_000}

func makeLines(seed uint64, n int) []byte {
	b := make([]byte, n)
	gpumem.FillAt(b, seed, 0)
	for i := range b {
		if b[i] == '\n' {
			b[i] = 0
		}
	}
	for i, off := 0, 0; off < n; i++ {
		off = min(n, off+lineLengths[i%len(lineLengths)])
		b[off-1] = '\n'
	}
	return b
}

func countLines(n int) (lines int) {
	for off := 0; off < n; lines++ {
		off += lineLengths[lines%len(lineLengths)]
	}
	return lines
}

// seen has the numbers of pages that hold only the pattern, in GPU memory and in guest RAM.
type seen struct{ gpu, ram int }

func (l *bench) look() (s seen, err error) {
	if s.gpu, err = patternPages(l.gpu.File, int64(l.gpu.Size())); err != nil {
		return s, fmt.Errorf("GPU memory: %w", err)
	}
	if s.ram, err = patternPages(l.machine.Physical()[0].File, guestRAM); err != nil {
		return s, fmt.Errorf("guest RAM: %w", err)
	}
	return s, nil
}

// few is the most pages of the pattern that patternAfter accepts in guest RAM: ncdevmem copies frags there to check
// them.
const few = 64

// many is the least number of pages of the pattern that must be left after a reception: half as many as the entries of
// a receive queue (1024).
const many = 512

func (l *bench) patternBefore(_ context.Context, j *judge) error {
	j.begin("pages full of the pattern, as the host sees them, before")
	s, err := l.look()
	j.check(s == seen{}, "%d in GPU memory, %d in guest RAM: none", s.gpu, s.ram)
	return err
}

func (l *bench) patternAfter(_ context.Context, j *judge) error {
	j.begin("pages full of the pattern, after 128 MiB of it came")
	s, err := l.look()
	j.check(s.gpu >= many, "%d in GPU memory, which are left: %d and more", s.gpu, many)
	j.check(s.ram <= few, "%d in guest RAM, ncdevmem's own copies: at most %d", s.ram, few)
	return err
}

func (l *bench) patternControl(_ context.Context, j *judge) error {
	j.begin("negative control: the same look finds the pattern where it is in RAM")
	s, err := l.look()
	j.check(s.ram >= many, "%d in guest RAM: %d and more", s.ram, many)
	return err
}

func (l *bench) audit(seed, size uint64) (bytes uint64, err error) {
	hits, err := gpumem.AuditReader(l.gpu.File, int64(l.gpu.Size()), []gpumem.Stream{{Seed: seed, Bytes: size}})
	for _, h := range hits {
		bytes += h.Len
	}
	return bytes, err
}
