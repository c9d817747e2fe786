package nbd

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// cookie returns a server.bend that replaces the cookie of answer n of each connection by f of it.
func cookie(n int, f func(old uint64) uint64) func(a *answerTo) {
	return func(a *answerTo) {
		if a.n == n {
			binary.BigEndian.PutUint64(a.b[8:], f(binary.BigEndian.Uint64(a.b[8:])))
		}
	}
}

// magic returns a server.bend that sets the magic of answer n of each connection.
func magic(n int, to uint32) func(a *answerTo) {
	return func(a *answerTo) {
		if a.n == n {
			binary.BigEndian.PutUint32(a.b, to)
		}
	}
}

// cut returns a server.bend that ends the stream of each connection after the first length bytes of its answer n.
func cut(n, length int) func(a *answerTo) {
	return func(a *answerTo) {
		if a.n == n {
			a.b, a.end = a.b[:min(length, len(a.b))], true
		}
	}
}

// Invariant: nbd: A server that breaks the protocol is named in the error and disconnected, and
// only the buffers change.
func TestServerBreaksTheProtocol(t *testing.T) {
	const n, length = 16, 4096
	for name, c := range map[string]struct {
		bend   func() func(a *answerTo)
		writes bool // test writes too
		target error
		says   string
	}{
		"a cookie of nobody's": {func() func(*answerTo) {
			return cookie(5, func(uint64) uint64 { return 0xdead<<40 | 3 })
		}, true,
			block.ErrProtocol, "which no operation ever had"},
		"a slot that is not there": {func() func(*answerTo) {
			return cookie(5, func(c uint64) uint64 { return c | 0xffff })
		}, true,
			block.ErrProtocol, "which no operation ever had"},
		"cookie 0": {func() func(*answerTo) {
			return cookie(0, func(uint64) uint64 { return 0 })
		}, true, block.ErrProtocol,
			"which no operation ever had"},
		"another operation's number": {func() func(*answerTo) {
			return cookie(3, func(c uint64) uint64 { return c ^ 3<<slotBits })
		}, true, block.ErrProtocol, "answered before, or never was"},
		"a cookie twice": {func() func(*answerTo) {
			var first uint64
			return func(a *answerTo) {
				switch a.n {
				case 2:
					first = binary.BigEndian.Uint64(a.b[8:])
				case 7:
					binary.BigEndian.PutUint64(a.b[8:], first)
				}
			}
		}, true, block.ErrProtocol, "answered before, or never was"},
		"no magic": {func() func(*answerTo) { return magic(4, 0x12345678) }, true, block.ErrProtocol,
			"begins with 0x12345678, not 0x67446698"},
		"structured reply": {func() func(*answerTo) { return magic(0, 0x668e33ef) }, true, block.ErrProtocol,
			"a structured reply, which was not negotiated"},
		"data that is short": {func() func(*answerTo) {
			return func(a *answerTo) {
				if a.n == 1 {
					a.b = a.b[:len(a.b)-1]
				}
			}
		}, false, block.ErrProtocol, "a reply begins with "},
		"data behind an error": {func() func(*answerTo) {
			return func(a *answerTo) {
				if a.n == 1 {
					a.b[7] = 5
				}
			}
		}, false, block.ErrProtocol, "a reply begins with "},
		"an end at a head": {func() func(*answerTo) { return cut(6, 0) }, true, io.ErrUnexpectedEOF,
			"the server ended it where the "},
		"an end in a head": {func() func(*answerTo) { return cut(6, 15) }, true, io.ErrUnexpectedEOF,
			"the server ended it where the "},
		"an end after head": {func() func(*answerTo) { return cut(6, 16) }, false, io.ErrUnexpectedEOF,
			"where the data of the read of 4096 bytes"},
		"an end in data": {func() func(*answerTo) { return cut(6, 4000) }, false, io.ErrUnexpectedEOF,
			"where the data of the read of 4096 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, write := range []bool{false, true} {
				if write && !c.writes {
					continue
				}
				s := &server{store: pattern(n * length), batch: n, reads: n, writes: n, bend: c.bend(), seed: 1}
				r := newRig(t, s, n*2*length, 1<<20)
				d := r.open(t)
				var ops []block.Op
				for i := range uint64(n) {
					ops = append(ops, block.Op{Write: write, Off: i * length, Len: length, Mem: 7 + i*2*length})
				}
				good, bad := 0, 0
				err := d.Do(t.Context(), n, give(ops), func(x block.Done) {
					if x.Err == nil {
						good++
						return
					}
					if e := (*block.OpError)(nil); errors.As(x.Err, &e) {
						testkit.Equal(t, "errno", e.Errno, syscall.EIO)
						good++
						return
					}
					bad++
					testkit.ErrorIs(t, x.Err, c.target)
				})
				testkit.ErrorIs(t, err, c.target)
				link := "read"
				if write {
					link = "write"
				}
				testkit.ErrorSays(t, err, c.says, link+" connection to "+s.addr.String())
				if good+bad != n || bad == 0 {
					t.Errorf("%d operations went well, and %d did not", good, bad)
				}
				if !write { // do not compare: the memory of failed reads may have any content
					for _, o := range ops {
						copy(r.want[guard+o.Mem:][:o.Len], r.memory()[o.Mem:])
					}
				}
				r.check(t)
				testkit.ErrorIs(t, d.Do(t.Context(), 1, give(ops), nil), c.target)
				testkit.OK(t, d.Close())
				s.set(func() { s.bend, s.batch = nil, 0 })
				all(t, r.open(t), n, ops)
			}
		})
	}
}

// A reply on the wrong connection is an error.
func TestReplyOnTheOtherConnection(t *testing.T) {
	for _, write := range []bool{false, true} {
		var other atomic.Uint64
		s := &server{store: pattern(1 << 20)}
		came := make(chan struct{})
		s.bend = func(a *answerTo) {
			if a.write != write {
				other.Store(binary.BigEndian.Uint64(a.b[8:]))
				close(came)
				a.b = nil
				return
			}
			<-came
			binary.BigEndian.PutUint64(a.b[8:], other.Load())
		}
		r := newRig(t, s, 1<<20, 1<<20)
		d := r.open(t)
		err := d.Do(t.Context(), 2, give([]block.Op{{Len: 512}, {Write: true, Off: 4096, Len: 512, Mem: 4096}}),
			func(x block.Done) {
				testkit.ErrorIs(t, x.Err, block.ErrProtocol)
			})
		testkit.ErrorIs(t, err, block.ErrProtocol)
		testkit.ErrorSays(t, err, "bytes at ", ", on the other connection")
		r.check(t)
	}
}

// After a reply that came before any request, Do with several operations returns block.ErrProtocol.
func TestReplyToNothing(t *testing.T) {
	for _, write := range []bool{false, true} {
		s := &server{store: pattern(1 << 20)}
		s.greet = func(c net.Conn) bool {
			if !s.shake(c) {
				return false
			}
			b := binary.BigEndian.AppendUint64([]byte{0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0}, 1<<slotBits)
			_, err := c.Write(append(b, make([]byte, 512)...)) // a reply with the first operation's cookie
			return err == nil
		}
		r := newRig(t, s, 1<<20, 1<<20)
		d := r.open(t)
		// The first operation may succeed by that reply.
		o := block.Op{Write: write, Len: 512, Mem: 5}
		err := d.Do(t.Context(), 1, give([]block.Op{o, o, o}), func(block.Done) {})
		testkit.ErrorIs(t, err, block.ErrProtocol, "write %v", write)
		if !write {
			copy(r.want[guard+o.Mem:][:o.Len], r.memory()[o.Mem:])
		}
		r.check(t)
	}
}

func (d *Device) limit(to time.Duration) {
	for _, l := range d.links {
		l.SetStallLimit(to)
	}
}

// If the server sends nothing more, operations fail with a StallError.
func TestServerIsSilent(t *testing.T) {
	for name, bend := range map[string]func(a *answerTo){
		"no reply":         func(a *answerTo) { a.b = nil },
		"a part of a head": func(a *answerTo) { a.b = a.b[:9] },
		"a part of the data": func(a *answerTo) {
			a.b = a.b[:min(600, len(a.b)-1)]
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, write := range []bool{false, true} {
				s := &server{store: pattern(1 << 20), bend: bend}
				r := newRig(t, s, 1<<20, 1<<20)
				limit := 100 * time.Millisecond
				if name == "no reply" && !write {
					limit = 1500 * time.Millisecond
					r.conf.Timeout = limit
				}
				d := r.open(t)
				if r.conf.Timeout != limit {
					d.limit(limit)
				}
				n := 0
				err := d.Do(t.Context(), 1, give([]block.Op{{Write: write, Len: 1024}}), func(x block.Done) {
					n++
					stall := (*devmem.StallError)(nil)
					if !errors.As(x.Err, &stall) {
						t.Errorf("%v", x.Err)
					}
				})
				testkit.ErrorSays(t, err, "no progress for "+limit.String(), s.addr.String())
				testkit.Equal(t, "operations that have ended", n, 1)
			}
		})
	}
}

// If the server does not receive, Do returns an error.
func TestServerTakesNothing(t *testing.T) {
	s := &server{store: make([]byte, 32<<20)}
	over := make(chan struct{})
	s.greet = func(c net.Conn) bool {
		if s.shake(c) {
			<-over
		}
		return false
	}
	r := newRig(t, s, 32<<20, 1<<20)
	t.Cleanup(func() { close(over) }) // before the server's own cleanup
	d := r.open(t)
	d.limit(100 * time.Millisecond)
	var ops []block.Op
	for range 4 {
		ops = append(ops, block.Op{Write: true, Len: 32 << 20})
	}
	err := d.Do(t.Context(), 4, give(ops), func(block.Done) {})
	testkit.ErrorSays(t, err, "no progress for 100ms", "write connection")
}
