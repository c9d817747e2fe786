package devmemtest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// completions reads the completions of sends 0 to n-1, and fails unless they come in order. No completion of the
// connection may have been read before.
func (e *env) completions(c devmem.Conn, n uint32) {
	e.Helper()
	for next := uint32(0); next < n; {
		lo, hi, err := c.ReadCompletion(time.Now().Add(patience))
		if err != nil || lo != next || hi < lo || hi >= n {
			e.Fatalf("completion [%d, %d], %v: next is %d of %d", lo, hi, err, next, n)
		}
		next = hi + 1
	}
}

func sendAll(c devmem.Conn, b devmem.Binding, ranges ...devmem.Range) error {
	want := 0
	for _, r := range ranges {
		want += int(r.Len)
	}
	if n, err := c.SendDevmem(b.ID(), ranges); err != nil || n != want {
		return fmt.Errorf("send of %d: %d, %w: %s", want, n, err, c.State())
	}
	return nil
}

func (e *env) send(c devmem.Conn, b devmem.Binding, ranges ...devmem.Range) {
	e.Helper()
	testkit.OK(e, sendAll(c, b, ranges...))
}

var sendCases = []testCase{
	{"ranges of any length, at any place, in their order", func(e *env) {
		b, c, host, mem := e.sender(40, txSize)
		ranges := []devmem.Range{{Off: 1, Len: 1}, {Off: 4095, Len: 2}, {Off: 9, Len: 7}, {Off: txSize - 1, Len: 1},
			{Off: 3, Len: 100_001}, {Off: 8191, Len: 3}}
		for i := range 200 {
			ranges = append(ranges, devmem.Range{Off: uint64(txSize - 3 - 17*i), Len: uint64(1 + i%13)})
		}
		var want []byte
		for _, r := range ranges {
			want = append(want, mem[r.Off:r.Off+r.Len]...)
		}
		e.readWhile(host, want, func() error { return sendAll(c, b, ranges...) })
		e.completions(c, 1)
	}},
	{"segments of many small pieces", func(e *env) {
		b, c, host, mem := e.sender(45, txSize)
		var want []byte
		var sends [][]devmem.Range
		for _, size := range []uint64{1, 8, 63, 144, 160, 161, 180, 181, 182, 400, 1000} {
			var ranges []devmem.Range
			for i := range uint64(120) {
				r := devmem.Range{Off: (i*7919 + size) % (txSize - 1000), Len: size}
				ranges = append(ranges, r)
				want = append(want, mem[r.Off:r.Off+r.Len]...)
			}
			sends = append(sends, ranges)
		}
		e.readWhile(host, want, func() (err error) {
			for _, ranges := range sends {
				err = errors.Join(err, sendAll(c, b, ranges...))
			}
			return err
		})
		e.completions(c, uint32(len(sends)))
	}},
	{"a binding that is not there, or not for that", func(e *env) {
		tx, rx := e.bindTX(), e.bindRX()
		c, host := e.accept()
		one := []devmem.Range{{Off: 0, Len: 1}}
		e.errorIs("id 0", errOf(c.SendDevmem(0, one)), syscall.EINVAL)
		e.errorIs("unknown id", errOf(c.SendDevmem(1<<30, one)), syscall.EINVAL)
		e.errorIs("receive binding", errOf(c.SendDevmem(rx.ID(), one)), syscall.EINVAL)
		e.errorIs("no range", errOf(c.SendDevmem(tx.ID(), nil)), syscall.EINVAL)
		e.errorIs("empty range", errOf(c.SendDevmem(tx.ID(), []devmem.Range{{Off: 5, Len: 0}})), syscall.EINVAL)
		testkit.OK(e, tx.Close())
		e.errorIs("closed binding", errOf(c.SendDevmem(tx.ID(), one)), syscall.EINVAL)
		e.write(c, []byte("x")) // the failed calls did not change the stream
		e.readAll(host, []byte("x"))
	}},
	{"a range outside the buffer is EFAULT, or ends the send short", func(e *env) {
		b, c, host, mem := e.sender(41, txSize)
		for _, r := range []devmem.Range{{Off: txSize, Len: 1}, {Off: ^uint64(0), Len: 1}, {Off: ^uint64(0) - 1, Len: 4}} {
			n, err := c.SendDevmem(b.ID(), []devmem.Range{r})
			e.errorIs("send", err, syscall.EFAULT)
			if n != 0 {
				e.Errorf("%+v sent %d", r, n)
			}
		}
		n, err := c.SendDevmem(b.ID(), []devmem.Range{{Off: 10, Len: 20}, {Off: txSize, Len: 1}})
		if n != 20 || err != nil {
			e.Errorf("20 good bytes, then a bad one: %d, %v", n, err)
		}
		e.readAll(host, mem[10:30])
		e.completions(c, 1)
	}},
	{"completions count calls and are merged", func(e *env) {
		b, c, host, mem := e.sender(42, txSize)
		for i := range 50 {
			e.send(c, b, devmem.Range{Off: uint64(100 * i), Len: 100})
		}
		e.readAll(host, mem[:5000])
		e.completions(c, 50)
		e.errorIs("no more", errOf(c.ReadCompletion(time.Now().Add(-time.Second))), os.ErrDeadlineExceeded)
		e.send(c, b, devmem.Range{Off: 0, Len: 9})
		e.readAll(host, mem[:9])
		if lo, hi, err := c.ReadCompletion(time.Now().Add(patience)); lo != 50 || hi != 50 || err != nil {
			e.Errorf("the next is [%d, %d], %v", lo, hi, err)
		}
	}},
	{"memory is free to change once a send is complete, and not looked at before it is sent", func(e *env) {
		b := e.bindTX()
		c, host := e.accept()
		wait := e.background(func() error {
			for i := range 100 {
				if _, err := e.Memory.WriteAt(data(uint64(1000+i), 20_000), txOff); err != nil {
					return err
				}
				if err := sendAll(c, b, devmem.Range{Off: 0, Len: 20_000}); err != nil {
					return err
				}
				if lo, hi, err := c.ReadCompletion(time.Now().Add(patience)); err != nil || lo != uint32(i) || hi != lo {
					return fmt.Errorf("completion %d: [%d, %d], %w", i, lo, hi, err)
				}
			}
			return nil
		})
		for i := range 100 {
			e.readAll(host, data(uint64(1000+i), 20_000))
		}
		wait()
	}},
	{"host and device memory in turns keep their order", func(e *env) {
		b, c, host, mem := e.sender(43, txSize)
		sizes := []int{1, 1448, 100, 5000, 17, 70_000, 3}
		var want []byte
		sends := uint32(0)
		for i := range 60 {
			want = append(want, mem[i*31:i*31+sizes[i%len(sizes)]]...)
		}
		e.readWhile(host, want, func() (err error) {
			for i := 0; i < 60 && err == nil; i++ {
				n := sizes[i%len(sizes)]
				if i%3 == 0 {
					err = writeAll(c, mem[i*31:i*31+n])
				} else {
					err = sendAll(c, b, devmem.Range{Off: uint64(i * 31), Len: uint64(n)})
				}
			}
			return err
		})
		for i := range 60 {
			if i%3 != 0 {
				sends++
			}
		}
		e.completions(c, sends)
	}},
	{"a binding closed with sends under way lives until they are complete", func(e *env) {
		b, c, host, mem := e.sender(44, txSize)
		wait := e.background(func() error {
			for range 3 {
				if err := sendAll(c, b, devmem.Range{Off: 0, Len: txSize}); err != nil {
					return err
				}
			}
			return b.Close()
		})
		for range 3 {
			e.readAll(host, mem)
		}
		wait()
		e.completions(c, 3)
		<-b.Done()
	}},
	{"write deadline", func(e *env) {
		b := e.bindTX()
		c, _ := e.accept()
		_ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		total := 0
		for {
			n, err := c.SendDevmem(b.ID(), []devmem.Range{{Off: 0, Len: txSize}})
			total += n
			if err != nil {
				e.errorIs("send", err, os.ErrDeadlineExceeded)
				break
			}
			if total > 1<<30 {
				e.Fatal("a GiB fits into the buffers")
			}
		}
	}},
}

var closeCases = []testCase{
	{"half close: the other direction goes on", func(e *env) {
		_, c, host := e.steered()
		tx := e.bindTX()
		mem := data(50, 200_000)
		e.store(0, mem)
		wait := e.background(func() error {
			return errors.Join(sendAll(c, tx, devmem.Range{Off: 0, Len: uint64(len(mem))}), c.CloseWrite())
		})
		e.readAll(host, mem)
		if n, err := host.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			e.Errorf("host reads %d, %v", n, err)
		}
		wait()
		e.errorIs("send after CloseWrite", errOf(c.SendDevmem(tx.ID(), []devmem.Range{{Off: 0, Len: 1}})), syscall.EPIPE)
		wait = e.background(func() error { return errors.Join(writeAll(host, mem), host.Close()) })
		e.recvAll(c, mem)
		wait()
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			e.Errorf("at the end: %v", err)
		}
	}},
	{"data that is not acknowledged goes out after Close", func(e *env) {
		tx, c, host, mem := e.sender(51, 600_000)
		e.readWhile(host, mem, func() error {
			return errors.Join(sendAll(c, tx, devmem.Range{Off: 0, Len: uint64(len(mem))}), c.Close(), tx.Close())
		})
		<-tx.Done()
	}},
	{"a reset by the peer ends all calls, and completes sends", func(e *env) {
		_, c, host := e.steered()
		tx := e.bindTX()
		e.arrive(c, host, 52, 1000)
		host.(interface{ SetLinger(int) error }).SetLinger(0)
		host.Close()
		frags, linear := make([]devmem.Frag, 8), make([]byte, 1000)
		var err error
		for range 4 { // RecvDevmem may first return earlier data
			if _, _, _, err = c.RecvDevmem(frags, linear, 0); err != nil {
				break
			}
		}
		e.errorIs("recv", err, syscall.ECONNRESET)
		_, err = c.SendDevmem(tx.ID(), []devmem.Range{{Off: 0, Len: 10}})
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			e.Errorf("send: %v", err)
		}
		e.errorIs("Close", tx.Close(), nil)
		<-tx.Done()
	}},
	{"Close ends calls that wait", func(e *env) {
		_, c, _ := e.steered()
		tx := e.bindTX()
		errs := make(chan error, 3)
		for _, call := range []func() error{
			func() error { return errOf(c.RecvDevmem(make([]devmem.Frag, 1), make([]byte, 1), 0)) },
			func() error { return errOf(c.SendDevmem(tx.ID(), []devmem.Range{{Off: 0, Len: txSize}})) },
			func() error { return errOf(c.ReadCompletion(time.Time{})) },
		} {
			go func() {
				var err error
				for err == nil {
					err = call()
				}
				errs <- err
			}()
		}
		e.poll(func() bool { s, _ := e.binding(tx.ID()); return s.Sends > 0 })
		testkit.OK(e, c.Close())
		for range 3 {
			e.errorIs("call", <-errs, net.ErrClosed)
		}
		e.errorIs("read later", errOf(c.Read(make([]byte, 1))), net.ErrClosed)
		e.errorIs("write later", errOf(c.Write(make([]byte, 1))), net.ErrClosed)
	}},
	{"the device's Close ends everything", func(e *env) {
		rx, c, host := e.steered()
		tx := e.bindTX()
		e.arrive(c, host, 53, 20_000)
		e.recv(c, 4, 10_000, 0)
		e.send(c, tx, devmem.Range{Off: 0, Len: 10_000})
		testkit.OK(e, e.Dev.Close())
		<-rx.Done()
		<-tx.Done()
		e.errorIs("read", errOf(c.Read(make([]byte, 1))), net.ErrClosed)
		e.errorIs("second close", e.Dev.Close(), nil)
	}},
}
