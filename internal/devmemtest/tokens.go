package devmemtest

import (
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/testkit"
)

var tokenCases = []testCase{
	{"are given lowest first, and again once they are back", func(e *env) {
		if !e.Strict {
			e.Skip("the implementation gives generations")
		}
		_, c, host := e.steered()
		e.arrive(c, host, 20, 5)
		one, _ := e.recv(c, 1, 1, 0)
		two, _ := e.recv(c, 1, 1, 0)
		three, _ := e.recv(c, 1, 1, 0)
		if one[0].Token != 1 || two[0].Token != 2 || three[0].Token != 3 {
			e.Errorf("tokens %d, %d, %d", one[0].Token, two[0].Token, three[0].Token)
		}
		e.free(c, two)
		four, _ := e.recv(c, 1, 1, 0)
		five, _ := e.recv(c, 1, 1, 0)
		if four[0].Token != 2 || five[0].Token != 4 {
			e.Errorf("then tokens %d, %d", four[0].Token, five[0].Token)
		}
	}},
	{"DontNeed wants 1 to 128 ranges", func(e *env) {
		e.bindRX()
		c, _ := e.accept()
		e.errorIs("none", errOf(c.DontNeed(nil)), syscall.EINVAL)
		e.errorIs("129", errOf(c.DontNeed(make([]devmem.TokenRange, devmem.MaxTokenRanges+1))), syscall.EINVAL)
		e.dontNeed(c, "128 empty ranges", 0, make([]devmem.TokenRange, devmem.MaxTokenRanges)...)
	}},
	{"DontNeed skips what is unknown, and what is back already", func(e *env) {
		b, c, host := e.steered()
		e.arrive(c, host, 21, 3)
		var ts []devmem.TokenRange
		for range 3 {
			f, _ := e.recv(c, 1, 1, 0)
			ts = append(ts, devmem.TokenRange{Start: f[0].Token, Count: 1})
		}
		ts = append(ts, ts[0], devmem.TokenRange{Start: 1 << 31, Count: 5}, devmem.TokenRange{Start: 0, Count: 1},
			devmem.TokenRange{Start: ^uint32(0), Count: 1})
		e.dontNeed(c, "three tokens and what is none", 3, ts...)
		e.dontNeed(c, "again", 0, ts...)
		e.unused(b)
	}},
	{"DontNeed looks at 1024 tokens, unknown ones too", func(e *env) {
		if !e.Strict {
			e.Skip("which tokens are unknown cannot be told")
		}
		_, c, host := e.steered()
		e.arrive(c, host, 22, 2)
		e.recv(c, 1, 1, 0)
		e.recv(c, 1, 1, 0)
		e.dontNeed(c, "1023 unknown ones, then 2", 1,
			devmem.TokenRange{Start: 1000, Count: 1023}, devmem.TokenRange{Start: 1, Count: 2})
		e.dontNeed(c, "very many, then 1", 0,
			devmem.TokenRange{Start: 1000, Count: 1 << 31}, devmem.TokenRange{Start: 2, Count: 1})
		e.dontNeed(c, "the last", 1, devmem.TokenRange{Start: 1, Count: 1024})
	}},
	{"of one connection mean nothing to another", func(e *env) {
		_, c, host := e.steered()
		other, _ := e.accept()
		e.write(host, data(23, 10))
		f, _ := e.recv(c, 1, 10, 0)
		e.dontNeed(other, "another's", 0, devmem.TokenRange{Start: f[0].Token, Count: 1})
		e.free(c, f)
	}},
	{"hold their pages: what they name is not overwritten", func(e *env) {
		b, c, host := e.steered()
		want := e.arrive(c, host, 24, 4000)
		kept, _ := e.recv(c, 16, 4000, 0)
		for i := range 40 { // several times as many pages as the pool has
			e.stream(c, host, data(uint64(30+i), 100_000))
		}
		e.equal("what was kept", e.bytes(kept, nil), want)
		if s, _ := e.binding(b.ID()); e.Pages && s.Held != len(kept) {
			e.Errorf("%d frags of pages of their own are held: %+v", len(kept), s)
		}
		e.free(c, kept)
	}},
	{"all held: the device drops, and recovers", func(e *env) {
		b, c, host := e.steered()
		want := data(25, 2*rxSize)
		wait := e.background(func() error { return writeAll(host, want) })
		var held []devmem.Frag
		got := 0
		// Return no token until no page is left, or the device drops.
		e.poll(func() bool {
			frags, linear := make([]devmem.Frag, 1024), make([]byte, len(want))
			n, nf, _, err := c.RecvDevmem(frags, linear, devmem.DontWait)
			if err == nil {
				e.equal("before", e.bytes(frags[:nf], nil), want[got:got+n])
				got += n
				held = append(held, frags[:nf]...)
			}
			s, _ := e.binding(b.ID())
			return e.Pages && s.Free+s.Posted == 0 || e.Dev.Stats().NICDrops > 0
		})
		if e.Dev.Stats().NICDrops == 0 && !e.poll(func() bool { return e.Dev.Stats().NICDrops > 0 }) {
			e.Error("nothing was dropped")
		}
		e.deadlines(c, host) // anew: drops may be reported late, and by then the host waits long before it retransmits
		e.free(c, held)
		e.recvAll(c, want[got:])
		wait()
	}},
	{"outlive their binding", func(e *env) {
		b := e.bindRX()
		id := e.steer()
		c, host := e.accept()
		want := e.arrive(c, host, 26, 3000)
		f, _ := e.recv(c, 1, 1000, 0)
		testkit.OK(e, e.Dev.DelFlow(id))
		testkit.OK(e, b.Close())
		more := data(27, 5000)
		e.write(host, more)
		if devmembase.IsClosed(b.Done()) {
			e.Error("done, although a token is out and data is queued")
		}
		e.equal("first frag", e.bytes(f, nil), want[:len(e.bytes(f, nil))])
		rest := want[len(e.bytes(f, nil)):]
		e.free(c, f)
		e.recvAll(c, rest)
		<-b.Done()
		e.readAll(c, more)
	}},
	{"are returned by Close", func(e *env) {
		b, c, host := e.steered()
		e.arrive(c, host, 28, 20_000)
		e.recv(c, 4, 20_000, 0)
		testkit.OK(e, c.Close())
		testkit.OK(e, b.Close())
		<-b.Done()
	}},
}
