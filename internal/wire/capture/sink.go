package capture

import (
	"bufio"
	"io"
)

// sink is the output behind a buffer, and tracks which packets have been written completely.
type sink struct {
	out     io.Writer
	taken   uint64 // bytes that out has accepted
	buf     *bufio.Writer
	waiting []waiting // packets that are not written completely, oldest first
	settled uint64    // value of taken at the last call of settle
}

type waiting struct {
	end   uint64 // offset in the file of the packet's end
	iface *iface
}

func newSink(out io.Writer) *sink {
	s := &sink{out: out}
	s.buf = bufio.NewWriterSize(s, 1<<16)
	return s
}

func (s *sink) Write(b []byte) (int, error) {
	n, err := s.out.Write(b)
	s.taken += uint64(max(n, 0))
	return n, err
}

func (s *sink) put(i *iface) {
	s.waiting = append(s.waiting, waiting{s.taken + uint64(s.buf.Buffered()), i})
}

// settle returns how many packets have been written completely since the last call.
func (s *sink) settle() (n uint64) {
	if s.taken == s.settled {
		return 0
	}
	s.settled = s.taken
	for n < uint64(len(s.waiting)) && s.waiting[n].end <= s.taken {
		n++
	}
	s.waiting = append(s.waiting[:0], s.waiting[n:]...)
	return n
}

// lose counts the waiting packets as missed: they will not be written.
func (s *sink) lose() {
	for _, w := range s.waiting {
		w.iface.missed.Add(1)
	}
	s.waiting = nil
}
