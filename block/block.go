// Package block has the types that clients of remote block devices share.
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

// Op is an operation on a block device: it reads or writes Len bytes of the device from Off on. A read stores
// the data at offset Mem of a buffer in GPU memory; a write takes the data from there.
type Op struct {
	Write bool
	Off   uint64 // on the device, a multiple of Info.BlockSize
	Len   uint64 // a multiple of Info.BlockSize, 1 to Info.MaxTransfer
	Mem   uint64 // in the buffer, of any alignment
}

func (o Op) String() string {
	what := "read"
	if o.Write {
		what = "write"
	}
	return fmt.Sprintf("%s of %d bytes at %d", what, o.Len, o.Off)
}

// Info describes a device.
type Info struct {
	Size        uint64
	BlockSize   uint64
	MaxTransfer uint64 // the most bytes of an operation
	MaxDepth    int    // the most operations in progress
	ReadOnly    bool
	Name        string // a description for people
}

// Check returns an error for an operation that is invalid on the device or on a buffer of size bytes.
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

// Device is one or several connections to a remote device. Only one goroutine at a time may call its methods,
// except Close.
type Device interface {
	Info() Info

	// Do performs the operations that next returns, at most depth at a time, until next returns false or Do fails;
	// they may complete in any order. Do calls done, in the goroutine that called Do, once for each of them, when the
	// operation's memory is no longer in use (unless Done.Err says that it may be) and, for a successful read, has
	// the data. A failed operation has in Done.Err an *OpError if the server reported it, the error of Info.Check,
	// or Do's own error. Among the reasons for which Do itself returns an error are that the connections cannot be
	// used any more, and that ctx has ended.
	Do(ctx context.Context, depth int, next func() (Op, bool), done func(Done)) error

	Stats() Stats
	Close() error
}

// Done is a completed operation.
type Done struct {
	Op
	Took time.Duration // since its command was queued (nvmetcp) or its sending began (nbd); 0: that has not happened
	Err  error
}

// Stats counts bytes and messages.
type Stats struct {
	Read, Written uint64 // payload of successful operations
	HostBytes     uint64 // received in host memory, on the I/O queue (nvmetcp) or for reads (nbd)
	Looked        uint64 // bytes read as headers, if payload is received in device memory
	Looks         uint64 // how often such bytes were read
	Messages      uint64 // received headers: PDUs of the NVMe/TCP I/O queue, NBD replies
}

// ErrProtocol means that a server broke the protocol. The client has closed its connections.
var ErrProtocol = errors.New("the server breaks the protocol")

// OpError means that the server reports the failure of an operation.
type OpError struct {
	Op     Op
	Status string // the server's status, as text
	Errno  syscall.Errno
}

func (e *OpError) Error() string { return fmt.Sprintf("%v: %s", e.Op, e.Status) }

// Unwrap returns Errno.
func (e *OpError) Unwrap() error { return e.Errno }
