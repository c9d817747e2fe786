package kernel

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
)

// native is the machine's byte order, in which the kernel reads and writes control messages, netlink attributes and
// ioctls.
var native = binary.NativeEndian

const (
	cmsgHdrLen   = 16 // struct cmsghdr: u64 len, int level, int type
	fragLen      = 24 // struct dmabuf_cmsg (include/uapi/linux/uio.h)
	fragSpace    = cmsgHdrLen + fragLen
	tokenLen     = 8 // struct dmabuf_token
	txSpace      = cmsgHdrLen + 8
	extendedErr  = 16  // struct sock_extended_err (include/uapi/linux/errqueue.h)
	completeRoom = 256 // bytes for the control messages of a completion
)

// nextCmsg splits the first control message off b. Messages begin at multiples of 8.
func nextCmsg(b []byte) (level, kind int32, data, rest []byte, err error) {
	if len(b) < cmsgHdrLen {
		return 0, 0, nil, nil, fmt.Errorf("control message: %d bytes: %w", len(b), syscall.EPROTO)
	}
	n := native.Uint64(b)
	if n < cmsgHdrLen || n > uint64(len(b)) {
		return 0, 0, nil, nil, fmt.Errorf("control message of %d bytes in %d: %w", n, len(b), syscall.EPROTO)
	}
	level, kind = int32(native.Uint32(b[8:])), int32(native.Uint32(b[12:]))
	return level, kind, b[cmsgHdrLen:n], b[min((n+7)&^7, uint64(len(b))):], nil
}

// parseFrags writes the frags that control messages describe to frags. n is the number of frags, linear the number of
// bytes in Linear frags. EPROTO: frags has no room, or a message is malformed.
func parseFrags(control []byte, frags []devmem.Frag) (n, linear int, err error) {
	for len(control) > 0 {
		var level, kind int32
		var data []byte
		if level, kind, data, control, err = nextCmsg(control); err != nil {
			return n, linear, err
		}
		if level != unix.SOL_SOCKET || kind != scmDevmemDmabuf && kind != scmDevmemLinear {
			continue // another option of the socket caused this message
		}
		if len(data) < fragLen || n == len(frags) {
			return n, linear, fmt.Errorf("control message %d: %d bytes, room for %d frags: %w", kind, len(data), len(frags),
				syscall.EPROTO)
		}
		f := devmem.Frag{Size: native.Uint32(data[8:]), Kind: devmem.Linear}
		if kind == scmDevmemDmabuf {
			f = devmem.Frag{
				Off: native.Uint64(data[0:]), Size: f.Size, Token: native.Uint32(data[12:]), Binding: native.Uint32(data[16:]),
				Kind: devmem.Dmabuf,
			}
		} else {
			linear += int(f.Size)
		}
		frags[n] = f
		n++
	}
	return n, linear, nil
}

// encodeTokens writes the argument of SO_DEVMEM_DONTNEED to b, and returns its length in bytes.
func encodeTokens(b *[devmem.MaxTokenRanges * tokenLen]byte, ranges []devmem.TokenRange) int {
	for i, r := range ranges {
		native.PutUint32(b[i*tokenLen:], r.Start)
		native.PutUint32(b[i*tokenLen+4:], r.Count)
	}
	return len(ranges) * tokenLen
}

// txCmsg writes to b, and returns, the control message that names a transmit binding.
func txCmsg(b *[txSpace]byte, id uint32) []byte {
	native.PutUint64(b[0:], cmsgHdrLen+4)
	native.PutUint32(b[8:], unix.SOL_SOCKET)
	native.PutUint32(b[12:], scmDevmemDmabuf)
	native.PutUint32(b[16:], id)
	native.PutUint32(b[20:], 0)
	return b[:]
}

// seqRange is a range of sends' numbers: lo to hi, both included. Numbers wrap around, so hi may be less than lo.
type seqRange struct{ lo, hi uint32 }

// parseCompletion returns the numbers of zerocopy sends that the control messages of an error queue's entry report as
// complete (Documentation/networking/msg_zerocopy.rst). ok is false for other entries, and after an error.
func parseCompletion(control []byte) (r seqRange, ok bool, err error) {
	for len(control) > 0 {
		var level, kind int32
		var data []byte
		if level, kind, data, control, err = nextCmsg(control); err != nil {
			return r, false, err
		}
		if (level != unix.SOL_IP || kind != unix.IP_RECVERR) && (level != unix.SOL_IPV6 || kind != unix.IPV6_RECVERR) {
			continue
		}
		if len(data) < extendedErr {
			return r, false, fmt.Errorf("sock_extended_err of %d bytes: %w", len(data), syscall.EPROTO)
		}
		if native.Uint32(data) != 0 || data[4] != unix.SO_EE_ORIGIN_ZEROCOPY {
			continue
		}
		return seqRange{lo: native.Uint32(data[8:]), hi: native.Uint32(data[12:])}, true, nil
	}
	return r, false, nil
}
