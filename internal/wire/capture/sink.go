package capture

import (
	"bufio"
	"io"
)

// sink is what is written to, behind a buffer. It knows which packets have come out of it.
type sink struct {
	out     io.Writer
	taken   uint64 // bytes that out has taken
	buf     *bufio.Writer
	waiting []waiting // packets that out has not taken to the end, oldest first
	settled uint64    // of taken, looked at
}

// waiting is a packet on its way.
type waiting struct {
	end   uint64 // of the file with it
	iface *iface
}

func newSink(out io.Writer) *sink {
	s := &sink{out: out}
	s.buf = bufio.NewWriterSize(s, 1<<16)
	return s
}

// Write implements io.Writer, for the buffer.
func (s *sink) Write(b []byte) (int, error) {
	n, err := s.out.Write(b)
	s.taken += uint64(max(n, 0))
	return n, err
}

// put notes that a packet has gone into the buffer.
func (s *sink) put(i *iface) {
	s.waiting = append(s.waiting, waiting{s.taken + uint64(s.buf.Buffered()), i})
}

// settle says how many packets have come out whole since it was last asked.
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

// lose counts as missed what will not come out any more.
func (s *sink) lose() {
	for _, w := range s.waiting {
		w.iface.missed.Add(1)
	}
	s.waiting = nil
}
