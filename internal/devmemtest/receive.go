package devmemtest

import (
	"io"
	"os"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

var receiveCases = []testCase{
	{"steered payload comes as frags that cross no page", func(e *env) {
		b, c, host := e.steered()
		want := data(1, 100_000)
		wait := e.background(func() error { return writeAll(host, want) })
		e.recvEach(c, 64, want, func(frags []devmem.Frag) {
			for _, f := range frags {
				if f.Kind != devmem.Dmabuf || f.Size == 0 || f.Binding != b.ID() || f.Token == 0 ||
					f.Off+uint64(f.Size) > rxSize || f.Off/devmem.PageSize != (f.Off+uint64(f.Size)-1)/devmem.PageSize {
					e.Fatalf("frag %+v of binding %d", f, b.ID())
				}
			}
		})
		wait()
	}},
	{"payload that is not steered is copied, without a frag", func(e *env) {
		e.bindRX()
		c, host := e.accept()
		want := data(2, 5000)
		e.write(host, want)
		e.recvEach(c, 64, want, func(frags []devmem.Frag) {
			if len(frags) > 0 {
				e.Fatalf("frags %+v", frags)
			}
		})
	}},
	{"Read of device memory is EFAULT and harms nothing", func(e *env) {
		_, c, host := e.steered()
		want := data(3, 3000)
		e.write(host, want)
		for range 3 {
			n, err := c.Read(make([]byte, 100))
			e.errorIs("read", err, syscall.EFAULT)
			if n != 0 {
				e.Errorf("read %d bytes", n)
			}
		}
		e.recvAll(c, want)
	}},
	{"a call stops where packets stop being readable, and where they start", func(e *env) {
		e.bindRX()
		c, host := e.accept()
		x, y, z := data(4, 700), data(5, 800), data(6, 900)
		e.write(host, x)
		e.arrived(c, 700)
		id := e.steer()
		e.write(host, y)
		e.settled(c, 700, 800)
		testkit.OK(e, e.Dev.DelFlow(id))
		e.write(host, z)
		frags, p := e.recv(c, 16, 4096, 0)
		if len(frags) > 0 {
			e.Errorf("first call: frags %+v", frags)
		}
		e.equal("first call", p, x)
		frags, p = e.recv(c, 16, 4096, 0)
		if len(frags) == 0 {
			e.Errorf("second call: no frags")
		}
		e.equal("second call", p, y)
		e.free(c, frags)
		e.readAll(c, z)
	}},
	{"Read stops before device memory", func(e *env) {
		e.bindRX()
		c, host := e.accept()
		x, y := data(7, 100), data(8, 100)
		e.write(host, x)
		e.arrived(c, 100)
		e.steer()
		e.write(host, y)
		e.settled(c, 100, 100)
		got := make([]byte, 1000)
		n, err := c.Read(got)
		if err != nil {
			e.Fatal(err)
		}
		e.equal("read", got[:n], x)
		e.errorIs("next read", errOf(c.Read(got)), syscall.EFAULT)
		e.recvAll(c, y)
	}},
	{"len(linear) bounds the bytes of a call, and cuts a frag", func(e *env) {
		_, c, host := e.steered()
		want := e.arrive(c, host, 9, 1000)
		one, p := e.recv(c, 16, 300, 0)
		e.equal("first", p, want[:300])
		two, p := e.recv(c, 16, 1000, 0)
		e.equal("second", p, want[300:])
		if len(one) != 1 || len(two) != 1 || one[0].Off+300 != two[0].Off || one[0].Token == two[0].Token {
			e.Errorf("frags %+v, then %+v: want one page, two tokens", one, two)
		}
		e.free(c, one)
		if q, ok := e.binding(two[0].Binding); e.Pages && (!ok || q.Held != 1) {
			e.Errorf("%+v: the page is free although one token is out", q)
		}
		e.free(c, two)
	}},
	{"room for frags bounds a call", func(e *env) {
		_, c, host := e.steered()
		want := data(10, 20_000)
		e.write(host, want)
		e.recvEach(c, 2, want, func(frags []devmem.Frag) {
			if len(frags) > 2 {
				e.Fatalf("%d frags", len(frags))
			}
		})
	}},
	{"no room for frags is ErrTooSmall and consumes nothing", func(e *env) {
		_, c, host := e.steered()
		want := data(11, 2000)
		e.write(host, want)
		for range 2 {
			n, nf, nl, err := c.RecvDevmem(nil, make([]byte, 100), 0)
			e.errorIs("no frags", err, devmem.ErrTooSmall)
			if n+nf+nl > 0 {
				e.Errorf("no frags: %d bytes, %d frags, %d linear", n, nf, nl)
			}
		}
		e.recvAll(c, want)
	}},
	{"Peek leaves the data and gives new tokens each time", func(e *env) {
		b, c, host := e.steered()
		want := e.arrive(c, host, 12, 1200)
		one, p := e.recv(c, 16, 1200, devmem.Peek)
		e.equal("peek", p, want)
		two, p := e.recv(c, 16, 1200, devmem.Peek)
		e.equal("peek again", p, want)
		if one[0].Token == two[0].Token || one[0].Off != two[0].Off {
			e.Errorf("frags %+v, then %+v", one, two)
		}
		three, p := e.recv(c, 16, 1200, 0)
		e.equal("recv", p, want)
		e.free(c, one)
		e.free(c, three)
		if s, _ := e.binding(b.ID()); e.Pages && s.Held == 0 {
			e.Errorf("%+v: a token is out", s)
		}
		e.free(c, two)
		e.unused(b)
	}},
	{"Trunc discards device memory, and needs no room for frags", func(e *env) {
		b, c, host := e.steered()
		want := e.arrive(c, host, 13, 3000)
		n, nf, nl, err := c.RecvDevmem(nil, make([]byte, 1000), devmem.Trunc)
		if n != 1000 || nf+nl > 0 || err != nil {
			e.Fatalf("trunc: %d, %d, %d, %v", n, nf, nl, err)
		}
		e.recvAll(c, want[1000:])
		e.unused(b)
	}},
	{"DontWait and deadlines", func(e *env) {
		_, c, host := e.steered()
		frags, linear := make([]devmem.Frag, 1), make([]byte, 10)
		e.errorIs("nothing there", errOf(c.RecvDevmem(frags, linear, devmem.DontWait)), syscall.EAGAIN)
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		e.errorIs("deadline while waiting", errOf(c.RecvDevmem(frags, linear, 0)), os.ErrDeadlineExceeded)
		e.errorIs("deadline passed", errOf(c.Read(linear)), os.ErrDeadlineExceeded)
		c.SetReadDeadline(time.Time{})
		e.write(host, linear)
		e.recvAll(c, linear)
		if n, _, _, err := c.RecvDevmem(frags, nil, 0); n != 0 || err != nil {
			e.Errorf("no room for bytes: %d, %v", n, err)
		}
	}},
	{"the end of the stream is io.EOF, after the data", func(e *env) {
		_, c, host := e.steered()
		want := data(14, 10_000)
		e.write(host, want)
		host.Close()
		e.recvAll(c, want)
		for range 2 {
			n, nf, nl, err := c.RecvDevmem(make([]devmem.Frag, 1), make([]byte, 1), 0)
			if n+nf+nl > 0 || err != io.EOF {
				e.Errorf("at the end: %d, %d, %d, %v", n, nf, nl, err)
			}
		}
		e.errorIs("Read at the end", errOf(c.Read(make([]byte, 1))), io.EOF)
	}},
	{"segments of all sizes around pages", func(e *env) {
		_, c, host := e.steered()
		for i, n := range []int{1, 2, 3, 7, 8, 63, 64, 65, 1447, 1448, 1449, 4095, 4096, 4097, 8191, 8192, 8193, 65536,
			100_001} {
			want := data(uint64(100+i), n)
			e.stream(c, host, want)
		}
	}},
}

// settled waits until c has at least first+n unread bytes.
func (e *env) settled(c devmem.Conn, first, n int) {
	e.Helper()
	if !e.poll(func() bool {
		m, nf, nl, err := c.RecvDevmem(nil, make([]byte, first+n), devmem.Peek|devmem.Trunc)
		if err != nil || nf+nl > 0 {
			e.Fatalf("peek: %d, %d, %d, %v", m, nf, nl, err)
		}
		return m == first+n
	}) {
		e.Fatalf("%d bytes did not arrive", first+n)
	}
}
