package nvmetcp

import (
	"context"
	"errors"
	"os"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
)

const maxBurst = 64

type job struct {
	s    *slot
	cid  uint16
	data bool // send data that an R2T requests; false: send the command
	tag  uint16

	write    bool
	lba      uint64
	off, len uint64 // the bytes of the operation that a data job sends; of a command off is 0, and len is all of them
	mem      uint64 // where they are in Config.Data
}

// sender sends on the I/O queue's connection. Another goroutine must receive: the target may stop reading until
// it can send.
type sender struct {
	q    *queue
	send *devmem.Sender

	sent  uint64 // calls of SendDevmem that queued a byte
	burst []byte // bytes that are not written yet: commands, or the header of an H2CData
	held  []*slot

	wake chan struct{} // has a value if a job was done since settle last received one
}

func (s *sender) run(ctx context.Context, jobs <-chan job) error {
	for j := range jobs {
		err := s.do(ctx, &j)
		if err == nil && len(jobs) == 0 {
			err = s.flush()
		}
		if err != nil {
			return s.over(err)
		}
	}
	return nil
}

// over sets the connection's read deadline, and returns err. The deadline is now if err is a stall. Else it is after
// limits.LastWords or Config.Timeout, whichever is less: until then Do may receive a C2HTermReq that explains err.
func (s *sender) over(err error) error {
	wait := min(limits.LastWords.Here(), s.q.timeout)
	if stalled := (*devmem.StallError)(nil); errors.As(err, &stalled) {
		wait = 0
	}
	_ = s.q.conn.SetReadDeadline(time.Now().Add(wait))
	return err
}

// do does a job. Commands, and their slots in held, may wait for flush.
func (s *sender) do(ctx context.Context, j *job) error {
	if j.data {
		if err := s.flush(); err != nil {
			return err
		}
		if err := s.h2c(ctx, j); err != nil {
			return err
		}
		s.done(j.s)
		return nil
	}
	inCapsule := s.command(j)
	s.held = append(s.held, j.s)
	if !inCapsule && len(s.burst) < maxBurst*commandLen {
		return nil
	}
	if inCapsule {
		if err := s.write(s.burst); err != nil {
			return err
		}
		s.burst = s.burst[:0]
		if err := s.payload(ctx, j.mem, j.len); err != nil {
			return err
		}
	}
	return s.flush()
}

// command appends a CapsuleCmd to burst, without the data. It returns whether the data must follow in the capsule.
func (s *sender) command(j *job) (inCapsule bool) {
	q := s.q
	opcode := uint8(opRead)
	head := common{Type: typeCapsuleCmd, HLen: commandLen, PLen: commandLen}
	kind := uint8(sglTransport)
	if j.write {
		opcode = opWrite
		if inCapsule = j.len <= q.inCapsule; inCapsule {
			kind, head.PDO, head.PLen = sglInCapsule, uint8(q.commandPDO), uint32(q.commandPDO)+uint32(j.len)
		}
	}
	cmd := newSQE(opcode, q.nsid)
	cmd.setCID(j.cid)
	cmd.setSGL(kind, uint32(j.len))
	cmd.setBlocks(j.lba, uint32(j.len/q.info.BlockSize))
	var h [commonLen]byte
	head.encode(&h)
	s.burst = append(append(s.burst, h[:]...), cmd[:]...)
	if inCapsule {
		s.pad(q.commandPDO - commandLen)
	}
	return inCapsule
}

func (s *sender) pad(n int) {
	var zero [maxPDO]byte
	s.burst = append(s.burst, zero[:n]...)
}

// h2c sends the data that an R2T requests, in H2CDatas of up to MAXH2CDATA bytes of data.
func (s *sender) h2c(ctx context.Context, j *job) error {
	pdo := roundUp(headLen, s.q.align)
	for off, mem, left := j.off, j.mem, j.len; left > 0; {
		n := min(left, uint64(s.q.maxH2C))
		p := transfer{common: common{Type: typeH2CData, HLen: headLen, PDO: uint8(pdo), PLen: uint32(pdo) + uint32(n)},
			CID: j.cid, Tag: j.tag, Off: uint32(off), Len: uint32(n)}
		if n == left {
			p.Flags = flagLast
		}
		var b [headLen]byte
		p.encode(&b)
		s.burst = append(s.burst[:0], b[:]...)
		s.pad(pdo - headLen)
		if err := s.write(s.burst); err != nil {
			return err
		}
		s.burst = s.burst[:0]
		if err := s.payload(ctx, mem, n); err != nil {
			return err
		}
		off, mem, left = off+n, mem+n, left-n
	}
	return nil
}

// payload sends [mem, mem+n) of Config.Data.
func (s *sender) payload(ctx context.Context, mem, n uint64) error {
	q := s.q
	if q.tx == nil {
		return s.send.Send(ctx, q.data, nil, mem, n)
	}
	for n > 0 {
		k, err := q.conn.SendDevmem(q.tx.ID(), []devmem.Range{{Off: mem, Len: n}})
		if k > 0 {
			s.sent++
		}
		if err != nil {
			return err
		}
		mem, n = mem+uint64(k), n-uint64(k)
	}
	return nil
}

// flush writes the commands in burst, and counts the jobs of the slots in held as done.
func (s *sender) flush() error {
	if len(s.burst) > 0 {
		if err := s.write(s.burst); err != nil {
			return err
		}
		s.burst = s.burst[:0]
	}
	for _, x := range s.held {
		s.done(x)
	}
	s.held = s.held[:0]
	return nil
}

func (s *sender) write(b []byte) error {
	_, err := s.q.conn.Write(b)
	return err
}

func (s *sender) done(x *slot) {
	x.need.Store(s.sent)
	x.jobs.Add(-1)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// completed raises *n, the count of completed calls of SendDevmem on c, by the completions that it reads, until it is
// at least need. With wait, completed waits for that; else it returns nil when there is no completion to read.
func completed(c devmem.Conn, n *uint64, need uint64, wait bool) error {
	deadline := time.Time{}
	if !wait {
		deadline = time.Unix(0, 1)
	}
	for *n < need {
		_, hi, err := c.ReadCompletion(deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) && !wait {
			return nil
		}
		if err != nil {
			return err
		}
		*n += uint64(hi + 1 - uint32(*n)) // ReadCompletion's numbers have 32 bits
	}
	return nil
}
