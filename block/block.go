// Package block is what clients of remote block devices have in common whose data lies in device memory: blocks are
// read from the network into GPU memory, and written from there. nvmetcp and nbd are such clients, each written
// against package devmem alone.
//
// The package is API (README, Stability).
package block

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Op is an operation on a device: Len bytes from Off on, to or from a buffer in device memory from Mem on.
type Op struct {
	Write bool
	Off   uint64 // on the device, in bytes: whole blocks
	Len   uint64 // in bytes: whole blocks, 1 to Info.MaxTransfer
	Mem   uint64 // in the buffer, at any alignment
}

func (o Op) String() string {
	what := "read"
	if o.Write {
		what = "write"
	}
	return fmt.Sprintf("%s of %d bytes at %d", what, o.Len, o.Off)
}

// Info says what a device is.
type Info struct {
	Size        uint64 // in bytes
	BlockSize   uint64 // in bytes: what Off and Len are multiples of
	MaxTransfer uint64 // in bytes, of an operation
	MaxDepth    int    // operations at a time
	ReadOnly    bool
	Name        string // for people: what the server says that it is
}

// Check says what is wrong with an operation on a device and a buffer of size bytes: EINVAL (no whole blocks, none at
// all, too many), ENOSPC (a write beyond the device's end), EIO (a read beyond it), EROFS, EFAULT (outside of the
// buffer).
func (i *Info) Check(o Op, size uint64) error {
	fail := func(why string, errno syscall.Errno) error { return fmt.Errorf("%v: %s: %w", o, why, errno) }
	switch {
	case o.Len == 0 || o.Len > i.MaxTransfer:
		return fail(fmt.Sprintf("1 to %d bytes", i.MaxTransfer), syscall.EINVAL)
	case i.BlockSize > 1 && (o.Off%i.BlockSize != 0 || o.Len%i.BlockSize != 0):
		return fail(fmt.Sprintf("blocks have %d bytes", i.BlockSize), syscall.EINVAL)
	case o.Off > i.Size || o.Len > i.Size-o.Off:
		errno := syscall.EIO
		if o.Write {
			errno = syscall.ENOSPC
		}
		return fail(fmt.Sprintf("beyond the device's %d bytes", i.Size), errno)
	case o.Mem > size || o.Len > size-o.Mem:
		return fail(fmt.Sprintf("memory from %#x on, of a buffer of %#x bytes", o.Mem, size), syscall.EFAULT)
	case o.Write && i.ReadOnly:
		return fail("the device is read-only", syscall.EROFS)
	}
	return nil
}

// Device is a connection, or several, to a remote device. One goroutine uses it; Close may come from any, and ends what
// is under way.
type Device interface {
	Info() Info

	// Do does the operations that next gives, depth of them at a time at most, until it gives no more; it may complete
	// them in any order. done is called once for each that was begun, when its memory is not in use any more and, of a
	// read, has the data, from the goroutine that called Do, and with an error, if only this one failed: *OpError for
	// what the server said, or that of Info.Check, for which nothing was sent. Do returns another error when the
	// connection is of no use any more, or ctx has ended; then done has been called with it for each that was under way.
	Do(ctx context.Context, depth int, next func() (Op, bool), done func(Done)) error

	Stats() Stats
	Close() error
}

// Done is an operation that has ended.
type Done struct {
	Op
	Took time.Duration // from when its command was sent
	Err  error
}

// Stats counts bytes and messages since the Device was made.
type Stats struct {
	Read, Written uint64 // payload of operations that went well
	HostBytes     uint64 // of what was read: came in host memory
	Looked        uint64 // bytes of heads that were looked at in device memory
	Looks         uint64 // calls in which that was done
	Messages      uint64 // heads that were received: NVMe/TCP's PDUs, NBD's replies
}

// ErrProtocol is a server that breaks its protocol: the connection is closed, and nothing outside of the buffers of the
// operations that were under way was touched.
var ErrProtocol = errors.New("the server breaks the protocol")

// OpError is an operation that the server did not do.
type OpError struct {
	Op     Op
	Status string        // in the protocol's words, with its number
	Errno  syscall.Errno // what comes closest
}

func (e *OpError) Error() string { return fmt.Sprintf("%v: %s", e.Op, e.Status) }

// Unwrap is the errno.
func (e *OpError) Unwrap() error { return e.Errno }
