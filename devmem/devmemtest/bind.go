package devmemtest

import (
	"net/netip"
	"syscall"

	"vnic.dev/vnic/devmem"
)

var bindCases = []testCase{
	{"registers whole pages of a gpu that is there", func(e *env) {
		_, err := e.Dev.Register(e.GPU, rxOff, 0)
		e.is("size 0", err, syscall.EINVAL)
		_, err = e.Dev.Register(e.GPU, rxOff, 4097)
		e.is("size 4097", err, syscall.EINVAL)
		_, err = e.Dev.Register(e.GPU, 1, 4096)
		e.is("offset 1", err, syscall.EINVAL)
		_, err = e.Dev.Register(e.GPU, 1<<60, 4096)
		e.is("past the end", err, syscall.EINVAL)
		_, err = e.Dev.Register(e.GPU, ^uint64(4095), 8192)
		e.is("around the end", err, syscall.EINVAL)
		_, err = e.Dev.Register(77, 0, 4096)
		e.is("gpu 77", err, syscall.ENODEV)
	}},
	{"refuses queues that cannot be bound", func(e *env) {
		b := e.buffer(rxOff, rxSize)
		_, err := e.Dev.BindRX(b)
		e.is("no queue", err, syscall.EINVAL)
		_, err = e.Dev.BindRX(b, -1)
		e.is("queue -1", err, syscall.EINVAL)
		_, err = e.Dev.BindRX(b, 1<<20)
		e.is("queue 2^20", err, syscall.EINVAL)
		_, err = e.Dev.BindRX(b, 0)
		e.is("queue 0", err, syscall.ERANGE)
	}},
	{"refuses a queue that is bound, and then binds none", func(e *env) {
		e.bindRX()
		other := e.buffer(txOff, txSize)
		_, err := e.Dev.BindRX(other, e.Queues[1], e.Queues[0])
		e.is("second bind", err, syscall.EEXIST)
		b, err := e.Dev.BindRX(other, e.Queues[1])
		if err != nil {
			e.Fatalf("the other queue, alone: %v", err)
		}
		if b.ID() == 0 {
			e.Error("id is 0")
		}
	}},
	{"refuses memory that is bound for receive already", func(e *env) {
		e.bindRX()
		_, err := e.Dev.BindRX(e.buffer(rxOff+rxSize/2, rxSize), e.Queues[1])
		e.is("overlap", err, syscall.EBUSY)
	}},
	{"merges queues that are named twice", func(e *env) {
		if _, err := e.Dev.BindRX(e.buffer(rxOff, rxSize), e.Queues[0], e.Queues[0]); err != nil {
			e.Error(err)
		}
	}},
	{"refuses a buffer with too few pages", func(e *env) {
		_, err := e.Dev.BindRX(e.buffer(rxOff, 4096), e.Queues[0])
		e.is("one page", err, syscall.ENOSPC)
	}},
	{"refuses a closed buffer, and does not close a bound one", func(e *env) {
		b := e.buffer(rxOff, rxSize)
		if err := b.Close(); err != nil {
			e.Fatal(err)
		}
		if err := b.Close(); err != nil {
			e.Errorf("second close: %v", err)
		}
		_, err := e.Dev.BindRX(b, e.Queues[0])
		e.is("bind rx", err, syscall.EBADF)
		_, err = e.Dev.BindTX(b)
		e.is("bind tx", err, syscall.EBADF)
		b = e.buffer(rxOff, rxSize)
		rx, err := e.Dev.BindRX(b, e.Queues[0])
		if err != nil {
			e.Fatal(err)
		}
		e.is("close while bound", b.Close(), syscall.EBUSY)
		if err := rx.Close(); err != nil {
			e.Fatal(err)
		}
		<-rx.Done()
		if err := b.Close(); err != nil {
			e.Errorf("close after the binding: %v", err)
		}
	}},
	{"binds one buffer for receive and transmit", func(e *env) {
		b := e.buffer(rxOff, rxSize)
		rx, err := e.Dev.BindRX(b, e.Queues[0])
		if err != nil {
			e.Fatal(err)
		}
		tx, err := e.Dev.BindTX(b)
		if err != nil {
			e.Fatal(err)
		}
		if rx.ID() == tx.ID() {
			e.Errorf("both have id %d", rx.ID())
		}
	}},
	{"closes a binding twice, and binds its queue again", func(e *env) {
		b := e.bindRX()
		for range 2 {
			if err := b.Close(); err != nil {
				e.Error(err)
			}
		}
		<-b.Done()
		e.bindRX()
	}},
	{"refuses rules that say nothing or lead nowhere", func(e *env) {
		_, err := e.Dev.AddFlow(devmem.Flow{Dst: netip.AddrPortFrom(e.Addr, port), Queue: 1 << 10})
		e.is("queue", err, syscall.EINVAL)
		_, err = e.Dev.AddFlow(devmem.Flow{Queue: e.Queues[0]})
		e.is("no field", err, syscall.EINVAL)
		id := e.steer()
		if err := e.Dev.DelFlow(id); err != nil {
			e.Error(err)
		}
		e.is("delete again", e.Dev.DelFlow(id), syscall.ENOENT)
		e.is("rss over 0", e.Dev.SetRSS(0), syscall.EINVAL)
		e.is("rss over 1000", e.Dev.SetRSS(1000), syscall.EINVAL)
	}},
}
