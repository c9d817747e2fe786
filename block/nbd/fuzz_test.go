package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"vnic.dev/vnic/block"
)

// fuzzed are the operations that FuzzReplies performs; fuzzed[i] uses slot i, and has number i+1 in its cookie.
var fuzzed = []block.Op{
	{Off: 0, Len: 16, Mem: 1}, {Off: 32, Len: 16, Mem: 100}, {Off: 99, Len: 1, Mem: 200},
	{Off: 512, Len: 5000, Mem: 4000},
	{Write: true, Off: 0, Len: 512, Mem: 10000}, {Write: true, Off: 4096, Len: 1, Mem: 11000},
}

const fuzzedReads = 4

// replyTo returns a reply to fuzzed[i], with value as its error value, and with data.
func replyTo(i int, value uint32, data []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, 0x67446698)
	b = binary.BigEndian.AppendUint32(b, value)
	b = binary.BigEndian.AppendUint64(b, uint64(i+1)<<16|uint64(i))
	return append(b, data...)
}

type outcome struct {
	answered bool
	value    uint32
	data     []byte
}

// judge returns, by index in fuzzed, the outcomes of fuzzed[first:first+n] for the stream b of replies, up to the first
// reply that is wrong or incomplete.
func judge(b []byte, first, n int) (list [6]outcome) {
	for len(b) >= 16 {
		i := int(b[15])
		if string(b[:4]) != "\x67\x44\x66\x98" || i < first || i >= first+n || list[i].answered ||
			!bytes.Equal(b[8:16], replyTo(i, 0, nil)[8:]) {
			return list
		}
		o := outcome{answered: true, value: binary.BigEndian.Uint32(b[4:])}
		b = b[16:]
		if k := int(fuzzed[i].Len); !fuzzed[i].Write && o.value == 0 {
			if len(b) < k {
				return list
			}
			o.data, b = b[:k], b[k:]
		}
		list[i] = o
	}
	return list
}

// Invariant: nbd: Whatever a server replies, only bytes in the buffers of reads change, and each
// completed operation was answered.
func FuzzReplies(f *testing.F) {
	data := pattern(6000)
	good := bytes.Join([][]byte{replyTo(0, 0, data[:16]), replyTo(1, 0, data[:16]), replyTo(2, 0, data[:1]),
		replyTo(3, 0, data[:5000])}, nil)
	f.Add(good, append(replyTo(5, 0, nil), replyTo(4, 0, nil)...))
	f.Add(bytes.Join([][]byte{replyTo(3, 0, data[:5000]), replyTo(1, 5, nil), replyTo(0, 0, data[:16]),
		replyTo(2, 108, nil)}, nil), append(replyTo(4, 28, nil), replyTo(5, 0, nil)...))
	f.Add(good[:5000], replyTo(4, 0, nil)[:9])
	f.Add(append(good[:len(good):len(good)], good...), replyTo(0, 0, nil))
	f.Add(append(replyTo(2, 0, data[:1]), 0x66, 0x8e, 0x33, 0xef), []byte{})
	f.Fuzz(func(t *testing.T, reads, writes []byte) {
		if len(reads) > 1<<16 || len(writes) > 1<<12 {
			return
		}
		s := &server{store: make([]byte, 1<<16), minBlock: 1, maxPayload: 1 << 16, flags: 1}
		s.greet = func(c net.Conn) bool {
			if !s.shake(c) {
				return false
			}
			_ = c.SetDeadline(patient())
			first, err := readRequest(c)
			if err != nil {
				return false
			}
			n, says := fuzzedReads, reads
			if first == 1 {
				n, says = len(fuzzed)-fuzzedReads, writes
			}
			for range n - 1 {
				if _, err := readRequest(c); err != nil {
					return false
				}
			}
			_, _ = c.Write(says)
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			return false
		}
		r := newRig(t, s, 32<<10, 64<<10)
		r.conf.Depth, r.conf.Timeout = len(fuzzed), time.Minute
		d := r.open(t)
		want := judge(reads, 0, fuzzedReads)
		written := judge(writes, fuzzedReads, len(fuzzed)-fuzzedReads)
		copy(want[fuzzedReads:], written[fuzzedReads:])
		given, seen := 0, 0
		next := give(fuzzed)
		err := d.Do(t.Context(), len(fuzzed), func() (block.Op, bool) {
			o, ok := next()
			if ok {
				given++
			}
			return o, ok
		}, func(x block.Done) {
			seen++
			i := 0
			for fuzzed[i] != x.Op {
				i++
			}
			e := (*block.OpError)(nil)
			switch {
			case x.Err == nil && (!want[i].answered || want[i].value != 0):
				t.Errorf("%v was done, and not answered", x.Op)
			case errors.As(x.Err, &e) && want[i].value == 0:
				t.Errorf("%v was answered well, and failed: %v", x.Op, x.Err)
			case x.Err == nil && !x.Write:
				copy(r.want[guard+x.Mem:], want[i].data)
			case !x.Write: // the memory of a failed read may have any content
				copy(r.want[guard+x.Mem:][:x.Len], r.memory()[x.Mem:])
			}
		})
		r.check(t)
		all := true
		for _, o := range want {
			all = all && o.answered
		}
		if seen != given || err == nil && (!all || seen != len(fuzzed)) {
			t.Errorf("%d of %d operations have ended, %v", seen, given, err)
		}
	})
}

func readRequest(c net.Conn) (uint16, error) {
	var b [28]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return 0, err
	}
	typ := binary.BigEndian.Uint16(b[6:])
	if typ == 1 {
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(b[24:]))); err != nil {
			return 0, err
		}
	}
	return typ, nil
}
