package devmemtest

import (
	"net/netip"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

var bindCases = []testCase{
	{"registers whole pages of a gpu that is there", func(e *env) {
		e.errorIs("size 0", errOf(e.Dev.Register(e.GPU, rxOff, 0)), syscall.EINVAL)
		e.errorIs("size 4097", errOf(e.Dev.Register(e.GPU, rxOff, 4097)), syscall.EINVAL)
		e.errorIs("offset 1", errOf(e.Dev.Register(e.GPU, 1, 4096)), syscall.EINVAL)
		e.errorIs("past the end", errOf(e.Dev.Register(e.GPU, 1<<60, 4096)), syscall.EINVAL)
		e.errorIs("around the end", errOf(e.Dev.Register(e.GPU, ^uint64(4095), 8192)), syscall.EINVAL)
		e.errorIs("gpu 77", errOf(e.Dev.Register(77, 0, 4096)), syscall.ENODEV)
	}},
	{"refuses queues that cannot be bound", func(e *env) {
		b := e.buffer(rxOff, rxSize)
		e.errorIs("no queue", errOf(e.Dev.BindRX(b)), syscall.EINVAL)
		e.errorIs("queue -1", errOf(e.Dev.BindRX(b, -1)), syscall.EINVAL)
		e.errorIs("queue 2^20", errOf(e.Dev.BindRX(b, 1<<20)), syscall.EINVAL)
		e.errorIs("queue 0", errOf(e.Dev.BindRX(b, 0)), syscall.ERANGE)
	}},
	{"refuses a queue that is bound, and then binds none", func(e *env) {
		e.bindRX()
		other := e.buffer(txOff, txSize)
		e.errorIs("second bind", errOf(e.Dev.BindRX(other, e.Queues[1], e.Queues[0])), syscall.EEXIST)
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
		e.errorIs("overlap", errOf(e.Dev.BindRX(e.buffer(rxOff+rxSize/2, rxSize), e.Queues[1])), syscall.EBUSY)
	}},
	{"merges queues that are named twice", func(e *env) {
		e.errorIs("BindRX", errOf(e.Dev.BindRX(e.buffer(rxOff, rxSize), e.Queues[0], e.Queues[0])), nil)
	}},
	{"refuses a buffer with too few pages", func(e *env) {
		e.errorIs("one page", errOf(e.Dev.BindRX(e.buffer(rxOff, 4096), e.Queues[0])), syscall.ENOSPC)
	}},
	{"refuses a closed buffer, and does not close a bound one", func(e *env) {
		b := e.buffer(rxOff, rxSize)
		testkit.OK(e, b.Close())
		e.errorIs("second close", b.Close(), nil)
		e.errorIs("bind rx", errOf(e.Dev.BindRX(b, e.Queues[0])), syscall.EBADF)
		e.errorIs("bind tx", errOf(e.Dev.BindTX(b)), syscall.EBADF)
		b = e.buffer(rxOff, rxSize)
		rx, err := e.Dev.BindRX(b, e.Queues[0])
		if err != nil {
			e.Fatal(err)
		}
		e.errorIs("close while bound", b.Close(), syscall.EBUSY)
		testkit.OK(e, rx.Close())
		<-rx.Done()
		e.errorIs("close after the binding", b.Close(), nil)
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
			e.errorIs("Close", b.Close(), nil)
		}
		<-b.Done()
		e.bindRX()
	}},
	{"refuses rules that say nothing or lead nowhere", func(e *env) {
		e.errorIs("queue", errOf(e.Dev.AddFlow(devmem.Flow{Dst: netip.AddrPortFrom(e.Addr, port), Queue: 1 << 10})),
			syscall.EINVAL)
		e.errorIs("no field", errOf(e.Dev.AddFlow(devmem.Flow{Queue: e.Queues[0]})), syscall.EINVAL)
		id := e.steer()
		e.errorIs("DelFlow", e.Dev.DelFlow(id), nil)
		e.errorIs("delete again", e.Dev.DelFlow(id), syscall.ENOENT)
		e.errorIs("rss over 0", e.Dev.SetRSS(0), syscall.EINVAL)
		e.errorIs("rss over 1000", e.Dev.SetRSS(1000), syscall.EINVAL)
	}},
}
