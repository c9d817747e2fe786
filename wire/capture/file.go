package capture

import (
	"bufio"
	"io"
)

// file is what is written to, behind a buffer. It knows which packets have come out of it.
type file struct {
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

func newFile(out io.Writer) *file {
	f := &file{out: out}
	f.buf = bufio.NewWriterSize(f, 1<<16)
	return f
}

// Write implements io.Writer, for the buffer.
func (f *file) Write(b []byte) (int, error) {
	n, err := f.out.Write(b)
	f.taken += uint64(max(n, 0))
	return n, err
}

// put notes that a packet has gone into the buffer.
func (f *file) put(i *iface) {
	f.waiting = append(f.waiting, waiting{f.taken + uint64(f.buf.Buffered()), i})
}

// settle says how many packets have come out whole since it was last asked.
func (f *file) settle() (n uint64) {
	if f.taken == f.settled {
		return 0
	}
	f.settled = f.taken
	for n < uint64(len(f.waiting)) && f.waiting[n].end <= f.taken {
		n++
	}
	f.waiting = append(f.waiting[:0], f.waiting[n:]...)
	return n
}

// lose counts as missed what will not come out any more.
func (f *file) lose() {
	for _, w := range f.waiting {
		w.iface.missed.Add(1)
	}
	f.waiting = nil
}
