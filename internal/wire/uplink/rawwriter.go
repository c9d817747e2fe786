package uplink

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// rawWriter writes several pieces with one system call. It calls the function wait before it waits for the descriptor.
// Only one goroutine may use it at a time.
type rawWriter struct {
	conn   syscall.RawConn
	wait   func()
	pieces [][]byte
	n      int
	err    error
	try    func(fd uintptr) (done bool)
}

func newRawWriter(c syscall.Conn) (*rawWriter, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &rawWriter{conn: raw}
	w.try = func(fd uintptr) bool {
		for {
			if len(w.pieces) == 1 {
				w.n, w.err = unix.Write(int(fd), w.pieces[0])
			} else {
				w.n, w.err = unix.Writev(int(fd), w.pieces)
			}
			if w.err == unix.EAGAIN {
				w.wait()
				return false
			}
			if w.err != unix.EINTR {
				return true
			}
		}
	}
	return w, nil
}

// write repeats the system call until it succeeds, or fails with an error other than EAGAIN and EINTR, or the
// descriptor is closed. Without an error it returns how many bytes of pieces it wrote, perhaps not all.
func (w *rawWriter) write(pieces [][]byte, wait func()) (n int, err error) {
	w.pieces, w.wait, w.n, w.err = pieces, wait, 0, nil
	if err := w.conn.Write(w.try); err != nil {
		return 0, err // the descriptor is closed
	}
	return w.n, w.err
}
