package stack

import (
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/deadline"
	"vnic.dev/vnic/internal/ether"
)

// writeSize is netstack's largest segment with GSO, without headers (snd.go: sendData).
const writeSize = ether.MaxGSO - 160 - 1

// room waits for space in the send buffer, and returns how many of n bytes to write, at least 1. If netstack will send
// nothing more (flow.ended), it does not wait. The caller holds wmu.
func (c *Conn) room(op string, n int) (int, error) {
	d := c.wd.Wait()
	for {
		if err := c.over(d); err != nil {
			return 0, err
		}
		size := int(c.ep.SocketOptions().GetSendBufferSize())
		c.f.mu.Lock()
		free := size - int(c.f.written-c.f.una)
		ended, most := c.f.ended, c.f.longest()
		c.f.mu.Unlock()
		n = min(n, most)
		if free >= min(n, size/2) || ended {
			return max(1, min(n, free)), nil
		}
		if err := c.wait(op, c.wsig, d); err != nil {
			return 0, err
		}
	}
}

// longest returns the longest payload of a packet, of whole segments if their size is known.
func (f *flow) longest() int {
	if f.mss > 0 && f.mss < writeSize {
		return writeSize - writeSize%f.mss
	}
	return writeSize
}

func (c *Conn) put(op string, p tcpip.Payloader) (int, error) {
	d := c.wd.Wait()
	for {
		n, err := c.ep.Write(p, tcpip.WriteOptions{})
		switch err.(type) {
		case nil:
			return int(n), nil
		case *tcpip.ErrWouldBlock:
			if err := c.wait(op, c.wsig, d); err != nil {
				return 0, err
			}
		default:
			return 0, c.failure(err)
		}
	}
}

// SendDevmem implements devmem.Conn.
func (c *Conn) SendDevmem(binding uint32, ranges []devmem.Range) (n int, err error) {
	v, ok := c.s.txBinds.Load(binding)
	if !ok {
		return 0, c.opError("send", c.s.facts().NoTXBinding(binding))
	}
	b := v.(*txBinding)
	if ranges, err = b.buf.Inside(ranges); err != nil {
		return 0, c.opError("send", err)
	}
	if !b.ref() {
		return 0, c.opError("send", c.s.facts().NoTXBinding(binding))
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.f.openSend(b)
	for _, r := range ranges {
		for done := uint64(0); done < r.Len && err == nil; {
			var m int
			if m, err = c.room("send", int(min(r.Len-done, writeSize))); err != nil {
				break
			}
			// Netstack may send the bytes before put returns.
			c.f.addPart(b.buf.GPU(), b.buf.Offset()+r.Off+done, m)
			m, err = c.put("send", &placeholder{m})
			c.f.cutPart(m)
			done += uint64(m)
			n += m
		}
		if err != nil {
			break
		}
	}
	c.f.closeSend(n)
	c.s.count.txDevice.Add(uint64(n))
	return n, c.opError("send", err)
}

// ReadCompletion implements devmem.Conn.
func (c *Conn) ReadCompletion(until time.Time) (lo, hi uint32, err error) {
	c.cmu.Lock()
	defer c.cmu.Unlock()
	var d <-chan struct{}
	if !until.IsZero() {
		dl := deadline.New()
		dl.Set(until)
		defer dl.Set(time.Time{})
		d = dl.Wait()
	}
	for {
		c.f.mu.Lock()
		if c.f.done.len() > 0 {
			r := c.f.done.pop()
			c.f.mu.Unlock()
			return r.lo, r.hi, nil
		}
		over := c.f.ended && c.f.sends.len() == 0
		c.f.mu.Unlock()
		if over && !c.isClosed() {
			if err := c.ep.LastError(); err != nil {
				return 0, 0, c.opError("completion", c.failure(err))
			}
			return 0, 0, c.opError("completion", syscall.ENOTCONN)
		}
		if err := c.wait("completion", c.csig, d); err != nil {
			return 0, 0, c.opError("completion", err)
		}
	}
}

func (f *flow) wrote(n int) {
	f.mu.Lock()
	f.written += uint64(n)
	f.mu.Unlock()
}

// openSend adds an open send, which takes over the caller's reference to b.
func (f *flow) openSend(b *txBinding) {
	f.mu.Lock()
	f.sends.push(send{binding: b, open: true})
	f.mu.Unlock()
}

// addPart records where in a GPU's memory the next n bytes of the stream are.
func (f *flow) addPart(gpu int, off uint64, n int) {
	f.mu.Lock()
	f.parts.push(part{
		span: span{f.written, f.written + uint64(n)}, gpu: gpu, off: off,
		send: f.firstSend + uint32(f.sends.len()-1),
	})
	f.mu.Unlock()
}

// cutPart records that netstack accepted n bytes of the last part, and shortens the part to these.
func (f *flow) cutPart(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written += uint64(n)
	if f.parts.len() == 0 {
		return
	}
	if p := f.parts.elem(f.parts.len() - 1); p.end > f.written {
		if p.end = f.written; p.start == p.end {
			f.parts.popBack()
		}
	}
}

// closeSend closes the last send, for which SendDevmem has queued n bytes. Without bytes the send gets no number.
func (f *flow) closeSend(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n == 0 {
		s := f.sends.popBack()
		s.binding.unref()
		return
	}
	s := f.sends.elem(f.sends.len() - 1)
	s.open, s.end = false, f.written
	f.complete()
}
