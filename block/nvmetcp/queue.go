package nvmetcp

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
)

// A command identifier has the slot's number in its lower slotBits bits, and above them a count of the slot's
// identifiers, modulo 64.
const slotBits = 10

// maxJobs is the most jobs (type job) of a command that the sender has at a time: to send the command, or data of an
// earlier R2T that is not counted as sent yet; to send the data of one R2T (MAXR2T is 0); and to send the command
// again.
const maxJobs = 3

type queue struct {
	conn    devmem.Conn
	timeout time.Duration
	data    devmem.Buffer
	tx      devmem.Binding // nil: payload goes through host memory

	nsid       uint32
	info       *block.Info
	align      int
	maxH2C     uint32
	inCapsule  uint64 // most bytes of data in a capsule; 0: none
	commandPDO int

	stream    *devmem.Stream
	heads     heads
	sender    sender
	completed uint64 // how many calls of SendDevmem are known to be complete

	slots []slot
	free  []uint16

	read, written uint64
}

// slot is a place for a command in progress. Only Do's goroutine uses it, except for the atomic fields, which the
// sender's goroutine uses, too.
type slot struct {
	op       block.Op
	cid      uint16
	used     bool
	answered bool
	retries  int
	got      uint64 // bytes received; of a write: bytes requested, or in the capsule
	began    time.Time
	err      error

	jobs atomic.Int32  // jobs that were given to the sender and are not done
	need atomic.Uint64 // calls of SendDevmem to be complete before Do calls done; stored before jobs is lowered
}

func (q *queue) init(d *Device) {
	k := &d.ctrl
	q.timeout, q.data, q.tx = d.c.Timeout, d.c.Data, d.tx
	q.nsid, q.info, q.inCapsule = d.c.Namespace, &k.info, k.inCapsule
	if pdo := roundUp(commandLen+16*int(k.icdoff), q.align); pdo <= maxPDO {
		q.commandPDO = pdo
	} else {
		q.inCapsule = 0 // the data's offset does not fit in PDO
	}
	pool := d.c.Pool
	if d.c.Copy {
		pool = nil
	}
	q.stream = devmem.NewStream(q.conn, d.c.Memory, pool)
	q.heads = heads{stream: q.stream, device: !d.c.Copy, window: 1}
	q.sender = sender{q: q, send: devmem.NewSender(q.conn, d.c.Memory), wake: make(chan struct{}, 1)}
	q.slots = make([]slot, k.info.MaxDepth)
	for i := range q.slots {
		q.free = append(q.free, uint16(len(q.slots)-1-i))
	}
	q.conn.SetStallLimit(d.c.Timeout)
}

func (q *queue) snapshot() block.Stats {
	s := q.heads.stats
	s.Read, s.Written, s.HostBytes = q.read, q.written, q.stream.HostBytes()
	return s
}

func (q *queue) take(o block.Op) *slot {
	i := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	s := &q.slots[i]
	s.op, s.cid = o, s.cid&^(1<<slotBits-1)|i
	s.used, s.retries, s.began = true, 0, time.Now()
	q.renew(s)
	return s
}

// renew gives a slot's command an identifier that differs from the slot's last 63, and resets its progress.
func (q *queue) renew(s *slot) {
	s.cid += 1 << slotBits
	s.answered, s.got, s.err = false, 0, nil
	if s.op.Write && s.op.Len <= q.inCapsule {
		s.got = s.op.Len // the capsule carries the data
	}
}

func (q *queue) put(s *slot) {
	s.used = false
	q.free = append(q.free, s.cid&(1<<slotBits-1))
}

// find returns the unanswered command that a PDU of type t names by cid, or block.ErrProtocol if there is none.
func (q *queue) find(t pduType, cid uint16) (*slot, error) {
	if i := int(cid & (1<<slotBits - 1)); i < len(q.slots) {
		if s := &q.slots[i]; s.used && s.cid == cid {
			if s.answered {
				return nil, violation("%v for %v, which was answered", t, s)
			}
			return s, nil
		}
	}
	return nil, violation("%v for command %#04x, which is not under way", t, cid)
}

func (s *slot) String() string { return fmt.Sprintf("command %#04x (%v)", s.cid, s.op) }

func (q *queue) job(s *slot) job {
	return job{s: s, cid: s.cid, write: s.op.Write, lba: s.op.Off / q.info.BlockSize, len: s.op.Len, mem: s.op.Mem}
}

func (q *queue) opError(s *slot, st status) *block.OpError {
	opcode := opRead
	if s.op.Write {
		opcode = opWrite
	}
	errno := st.in(statuses).errno
	if st.code() == 0x080 && !s.op.Write { // LBA out of range: EIO for reads, as in block.Info.Check
		errno = syscall.EIO
	}
	return &block.OpError{Op: s.op, Errno: errno, Status: fmt.Sprintf("opcode %#02x, LBA %d: %s", opcode,
		s.op.Off/q.info.BlockSize, st.say(statuses))}
}
