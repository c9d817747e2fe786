package devmemtool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/testkit"
)

// closing checks, before it closes a device, that the tool has left no rule, buffer or binding.
type closing struct {
	devmem.Device
	guest *guest
}

func (c *closing) Close() error {
	p := c.guest.port.NIC()
	flows, _ := p.Flows()
	buffers, _ := p.Buffers()
	bindings, _ := p.Bindings()
	if len(flows)+len(buffers)+len(bindings) > 0 {
		c.guest.t.Errorf("left: rules %v, buffers %v, bindings %v", flows, buffers, bindings)
	}
	if s := c.Device.Stats(); len(s.Bindings) > 0 {
		c.guest.t.Errorf("left: %+v", s.Bindings)
	}
	return c.Device.Close()
}

const (
	toServer   = "-s 10.0.0.2 -p 5201"
	fromClient = "-s 10.0.0.2 -c 10.0.0.1 -p 5201"
)

func TestPatternArrives(t *testing.T) {
	for _, x := range []struct{ name, recv, send, want string }{
		{"v4", "-s 10.0.0.2 -p 5201 -v 7", "-s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b 3M", "total_received=3145728"},
		{"v6", "-s fd00::2 -p 5201 -v 8", "-s fd00::2 -c fd00::1/64 -p 5201 -v 8 -b 1000001", "total_received=1000001"},
		{"one byte", "-l -s 10.0.0.2 -p 1 -v 7", "-s 10.0.0.2 -c 10.0.0.1 -p 1 -v 7 -b 1", "total_received=1"},
		{"one flow", "-s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 256 -f virtio", "-s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 256 -b 64K",
			"total_received=65536"},
		{"chunks", "-s 10.0.0.2 -p 5201 -v 7", "-s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b 5000 -z 3", "total_received=5000"},
		{"two queues", "-s 10.0.0.2 -p 5201 -v 7 -t 1 -q 2 -g 1 -L", "-s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b 1M -g 0",
			"using queues 1..2"},
		{"second queue", "-s 10.0.0.2 -p 5201 -v 7 -t 2 -q 1", "-s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b 1M",
			"using queues 2..2"},
		{"described", "-s 10.0.0.2 -p 5201 -v 7 -d", "-s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b 10000 -d", "frag_offset="},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWorld(t, 3)
			r, s := w.both("", x.recv, x.send)
			r.want(t, "recv", 0, "Validated buffer\n", x.want, "linear_received=0\n", "client exited\n")
			if s.status != 0 || !strings.HasSuffix(s.err, "devmem: tx ok\n") || s.out != "" {
				t.Errorf("send: %v", s)
			}
		})
	}
}

func TestStdinArrivesAtStdout(t *testing.T) {
	w := newWorld(t, 2)
	big := make([]byte, 5<<20+3)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(big)
	for _, in := range []string{"", "h", "hello\nworld", string(big)} {
		for _, chunk := range []string{"", " -z 1", " -z 4096", " -z 5000"} {
			if len(in) > 100 && chunk == " -z 1" {
				continue
			}
			r, s := w.both(in, toServer, fromClient+chunk)
			what := fmt.Sprintf("%d bytes%s: ", len(in), chunk)
			r.want(t, what+"recv", 0, in, fmt.Sprintf("total_received=%d\n", len(in)))
			s.want(t, what+"send", 0, "", fmt.Sprintf("total_sent=%d\n", len(in)))
		}
	}
}

func TestWrongBytesFail(t *testing.T) {
	w := newWorld(t, 2)
	good := make([]byte, 100000)
	pattern{7}.fill(good, 0)
	one := bytes.Clone(good)
	one[77777] ^= 1
	shifted := good[1:]
	for _, x := range []struct{ name, in, want string }{
		{"one", string(one), "actual=" + fmt.Sprint(one[77777]) + ", index=77777\n"},
		{"shifted", string(shifted), "validation failed: 99999 of 99999 bytes are wrong"},
		{"none", "", "validation failed: nothing was received"},
	} {
		t.Run(x.name, func(t *testing.T) {
			r, s := w.both(x.in, toServer+" -v 7", fromClient)
			r.want(t, "recv", 1, "", x.want)
			if n := strings.Count(r.err, "Failed validation"); n > maxWrong {
				t.Errorf("%d wrong bytes are described", n)
			}
			s.want(t, "send", 0, "")
		})
	}
	r, _ := w.both(string(good), toServer+" -v 7", fromClient)
	r.want(t, "recv", 0, "Validated buffer\n")
}

func TestWrongUse(t *testing.T) {
	w := newWorld(t, 3)
	for _, args := range []string{
		"", "fetch", "-s 10.0.0.2", "recv", "recv -p 5201", "recv -s 10.0.0.2", "recv -s 10.0.0.2 -p 0",
		"recv -s 10.0.0.2 -p 65536",
		"recv -s 10.0.0.300 -p 5201", "recv -s 10.0.0.2/33 -p 5201", "recv -s nobody -p 5201",
		"recv -s 10.0.0.2 -p 5201 extra",
		"recv -s 10.0.0.2 -p 5201 -v 1", "recv -s 10.0.0.2 -p 5201 -v 257", "recv -s 10.0.0.2 -p 5201 -v x",
		"recv -s 10.0.0.2 -p 5201 -t 1",
		"recv -s 10.0.0.2 -p 5201 -q 1", "recv -s 10.0.0.2 -p 5201 -b 1", "recv -s 10.0.0.2 -p 5201 -z 1",
		"recv -s 10.0.0.2 -p 5201 -c fd00::1",
		"recv -s 10.0.0.2 -p 5201 -t -1 -q 1", "recv -s 10.0.0.2 -p 5201 -t 1 -q 0", "recv -s 10.0.0.2 -p 5201 -nosuch",
		"send -s 10.0.0.2 -p 5201", "send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -L", "send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7",
		"send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -b 7", "send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b 0",
		"send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -z 0",
		"send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b 1T", "send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -v 7 -b -1",
		"send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -t 1 -q 1",
		"recv -s 10.0.0.2 -p 5201 -t 0 -q 1", "recv -s 10.0.0.2 -p 5201 -t 3 -q 1", "recv -s 10.0.0.2 -p 5201 -t 1 -q 3",
		"recv -s 10.0.0.2 -p 5201 -g 9",
		"send -s 10.0.0.2 -c 10.0.0.1 -p 5201 -g 9",
	} {
		d, _ := w.start(t.Context(), 1, "", args)
		if r := <-d; r.status != 2 || r.out != "" || !strings.HasPrefix(r.err, "devmem: ") &&
			!strings.Contains(r.err, "\ndevmem: ") {
			t.Errorf("%q: %v", args, r)
		}
	}
}

func TestHelpOpensWithExamples(t *testing.T) {
	w := newWorld(t, 2)
	for _, args := range []string{"-h", "--help", "help", "recv -h", "send -help"} {
		d, _ := w.start(t.Context(), 0, "", args)
		if r := <-d; r.status != 0 || r.err != "" || !strings.HasPrefix(r.out, "  On the receiving guest:   devmem recv -s") {
			t.Errorf("%q: %v", args, r)
		}
	}
	d, _ := w.start(t.Context(), 0, "", "recv -h")
	r := <-d
	for _, f := range strings.Fields("-s -c -p -v -t -q -f -L -g -w -d -l") {
		if !strings.Contains(r.out, "\n  "+f+" ") && !strings.Contains(r.out, "\n  "+f+"\t") {
			t.Errorf("no word of %s:\n%s", f, r.out)
		}
	}
}

func TestExamplesRun(t *testing.T) {
	var lines []string
	for line := range strings.SplitSeq(help, "\n") {
		if i := strings.Index(line, "devmem "); i >= 0 && strings.Contains(line, " -s ") {
			lines = append(lines, line[i+len("devmem "):])
		}
	}
	if len(lines) != 5 {
		t.Fatalf("%q", lines)
	}
	for _, line := range lines {
		args := strings.Fields(strings.TrimSuffix(line, " > received"))
		if _, err := parse(args, io.Discard); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestFailures(t *testing.T) {
	testkit.Slow(t)
	t.Run("no device", func(t *testing.T) {
		var e bytes.Buffer
		open := func(context.Context, Request) (*Device, error) { return nil, syscall.ENODEV }
		status := Main(t.Context(), strings.Fields("recv -s 10.0.0.2 -p 1"), Stdio{Err: &e, Out: io.Discard}, open)
		if status != 1 || !strings.Contains(e.String(), "open virtio: no such device") {
			t.Errorf("%d %s", status, e.String())
		}
	})
	t.Run("no GPU", func(t *testing.T) {
		w := newWorld(t, 2)
		w.guests[0].change = func(d *Device) { d.GPUs = nil }
		(<-w.send(t.Context(), "", fromClient)).want(t, "send", 1, "", "reaches no GPU")
	})
	t.Run("close", func(t *testing.T) {
		w := newWorld(t, 2)
		w.guests[0].change = func(d *Device) { d.Device = brokenClose{d.Device} }
		_, s := w.both("x", toServer, fromClient)
		s.want(t, "send", 1, "", "close nicport0: input/output error")
	})
	t.Run("nobody listens", func(t *testing.T) {
		w := newWorld(t, 2)
		recv := w.recv(t.Context(), toServer)
		(<-w.send(t.Context(), "x", "-w 1 -s 10.0.0.2 -c 10.0.0.1 -p 5202")).want(t, "send", 1, "",
			"connection refused", "is the receiver started?: trying again, for 1s (-w)\n", "devmem: again and again: ")
		(<-w.send(t.Context(), "x", fromClient)).want(t, "send", 0, "")
		(<-recv).want(t, "recv", 0, "x")
	})
	t.Run("nobody comes", func(t *testing.T) {
		w := newWorld(t, 2)
		(<-w.recv(t.Context(), toServer+" -w 1")).want(t, "recv", 1, "",
			"accept: nobody has connected to 10.0.0.2:5201: is the sender started, and is this its address? (-w 1s)")
	})
	t.Run("all tokens held", func(t *testing.T) {
		w := newWorld(t, 2)
		recv := w.recv(t.Context(), toServer+" -v 7 -H -w 3")
		<-w.send(t.Context(), "", fromClient+" -v 7 -b 64M -w 5")
		(<-recv).want(t, "recv", 1, "", "recv: no progress for 3", "are held by tokens that were not returned (DontNeed)",
			"; tokens of this connection: ")
	})
	t.Run("a sender that hangs", func(t *testing.T) {
		w := newWorld(t, 2)
		recv := w.recv(t.Context(), toServer+" -w 3")
		hangs, in := newHanging()
		sent := make(chan int, 1)
		go func() {
			sent <- Main(t.Context(), strings.Fields("send "+fromClient), Stdio{In: hangs, Out: io.Discard, Err: io.Discard},
				w.guests[0].open)
		}()
		(<-recv).want(t, "recv", 1, "", "its program sends nothing: it hangs, or waits for something itself")
		in()
		<-sent
	})
	t.Run("a stranger", func(t *testing.T) {
		w := newWorld(t, 2)
		recv := w.recv(t.Context(), fromClient)
		// The send may succeed if its byte was acknowledged before the reset.
		<-w.send(t.Context(), "x", "-s 10.0.0.2 -c 10.0.0.9 -p 5201")
		(<-w.send(t.Context(), "y", fromClient)).want(t, "send", 0, "")
		(<-recv).want(t, "recv", 0, "y", "turned away 10.0.0.9")
	})
	t.Run("not steered", func(t *testing.T) {
		w := newWorld(t, 2)
		w.guests[1].change = func(d *Device) { d.Device = noRules{d.Device} }
		r, _ := w.both("hello", toServer, fromClient) // the sender may fail, or have ended before the receiver fails
		if r.status != 1 || !strings.Contains(r.err, "flow steering error: 5 bytes") {
			t.Errorf("recv: %v", r)
		}
	})
	t.Run("stdout closed", func(t *testing.T) {
		w := newWorld(t, 2)
		rd := make(chan int, 1)
		e := watched{listens: make(chan struct{})}
		go func() {
			defer e.end()
			rd <- Main(t.Context(), strings.Fields("recv "+toServer), Stdio{Out: brokenPipe{}, Err: &e}, w.guests[1].open)
		}()
		<-e.listens
		sent := w.send(t.Context(), "hello", fromClient)
		if status := <-rd; status != 1 || !strings.Contains(e.buf.String(), "broken pipe") {
			t.Errorf("%d: %s", status, e.buf.String())
		}
		<-sent
	})
	t.Run("stdin fails", func(t *testing.T) {
		w := newWorld(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		recv := w.recv(ctx, toServer)
		var e bytes.Buffer
		status := Main(t.Context(), strings.Fields("send "+fromClient), Stdio{In: brokenPipe{}, Out: io.Discard, Err: &e},
			w.guests[0].open)
		if status != 1 || !strings.Contains(e.String(), "stdin: broken pipe") {
			t.Errorf("%d: %s", status, e.String())
		}
		cancel() // the receiver still waits if it has not seen the connection before its reset
		(<-recv).want(t, "recv", 1, "")
	})
}

func newHanging() (io.Reader, func()) {
	r, w := io.Pipe()
	return r, func() { _ = w.Close() }
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }
func (brokenPipe) Read([]byte) (int, error)  { return 0, syscall.EPIPE }

type brokenClose struct{ devmem.Device }

func (d brokenClose) Close() error { return errors.Join(d.Device.Close(), syscall.EIO) }

type noRules struct{ devmem.Device }

func (noRules) AddFlow(devmem.Flow) (devmem.FlowID, error) { return 1, nil }
func (noRules) DelFlow(devmem.FlowID) error                { return nil }

func TestInterrupted(t *testing.T) {
	t.Run("accept", func(t *testing.T) {
		w := newWorld(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		recv := w.recv(ctx, toServer)
		cancel()
		(<-recv).want(t, "recv", 1, "", "devmem: interrupted")
	})
	t.Run("connect", func(t *testing.T) {
		w := newWorld(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		w.guests[0].change = func(d *Device) { d.Device = &dialing{d.Device, cancel} }
		(<-w.send(ctx, "x", fromClient)).want(t, "send", 1, "", "devmem: interrupted")
	})
	for _, who := range []string{"recv", "send"} {
		t.Run(who, func(t *testing.T) {
			w := newWorld(t, 2)
			ctx, cancel := context.WithCancel(t.Context())
			w.guests[1].change = func(d *Device) { d.Memory = &slow{Memory: d.Memory, after: 3, then: cancel} }
			rctx, sctx, says := ctx, t.Context(), map[string]string{who: "devmem: interrupted"}
			if who == "send" {
				rctx, sctx = sctx, rctx
			}
			recv := w.recv(rctx, toServer+" -v 7")
			(<-w.send(sctx, "", fromClient+" -v 7 -b 1G")).want(t, "send", 1, "", says["send"])
			(<-recv).want(t, "recv", 1, "", says["recv"])
			w.guests[1].change = nil
			r, s := w.both("", toServer+" -v 7", fromClient+" -v 7 -b 1M")
			r.want(t, "recv afterwards", 0, "Validated buffer\n")
			s.want(t, "send afterwards", 0, "")
		})
	}
}

type dialing struct {
	devmem.Device
	cancel func()
}

func (d *dialing) Dial(ctx context.Context, local, remote netip.AddrPort) (devmem.Conn, error) {
	d.cancel()
	return d.Device.Dial(ctx, local, remote)
}

type slow struct {
	devmem.Memory
	after int
	then  func()
}

func (s *slow) Look(ctx context.Context, dst []byte, b devmem.Buffer, ranges ...devmem.Range) error {
	if s.after--; s.after == 0 {
		s.then()
	}
	return s.Memory.Look(ctx, dst, b, ranges...)
}

func TestLinearBytes(t *testing.T) {
	gpu := []byte("....world..!")
	frags := []devmem.Frag{
		{Kind: devmem.Linear, Size: 6}, {Off: 4, Size: 5, Token: 1}, {Kind: devmem.Linear, Size: 1},
		{Off: 11, Size: 1, Token: 5},
	}
	conn := &countingConn{}
	var out, say bytes.Buffer
	r := &receiver{tool: &tool{options: &options{}, std: Stdio{Err: &say}, dev: &Device{Memory: whole(gpu).memory()}},
		buffer: whole(gpu), conn: conn, out: &out, buf: make([]byte, 100)}
	if err := r.take(t.Context(), frags, []byte("hello ,")); err != nil || out.String() != "hello world,!" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if r.total != 13 || r.inHost != 7 || conn.tokens != 2 {
		t.Errorf("%+v, %+v", r, conn)
	}
	r.options.linear = true
	if err := r.take(t.Context(), frags, []byte("hello ,")); err == nil {
		t.Error("-L does not fail")
	}
	many := make([]devmem.Frag, 0, 300)
	for i := range 300 {
		many = append(many, devmem.Frag{Size: 1, Token: uint32(2 * i)}) // no two tokens are adjacent
	}
	conn.calls = 0
	r.buf = make([]byte, 300)
	if err := r.take(t.Context(), many, nil); err != nil || conn.calls != 3 {
		t.Errorf("%d calls, %v", conn.calls, err)
	}
	conn.lose = true
	if err := r.take(t.Context(), many, nil); err == nil {
		t.Error("an unknown token was not noticed")
	}
}

type whole []byte

func (w whole) GPU() int       { return 0 }
func (w whole) Offset() uint64 { return 0 }
func (w whole) Size() uint64   { return uint64(len(w)) }
func (w whole) Close() error   { return nil }

func (w whole) memory() devmem.Memory {
	return plain.MapMemory(func(_ int, off, size uint64) ([]byte, error) { return w[off:][:size], nil })
}

type countingConn struct {
	devmem.Conn
	calls, tokens int
	lose          bool
}

func (c *countingConn) DontNeed(ranges []devmem.TokenRange) (int, error) {
	if len(ranges) > devmem.MaxTokenRanges {
		return 0, syscall.EINVAL
	}
	c.calls++
	n := 0
	for _, r := range ranges {
		n += int(r.Count)
	}
	c.tokens += n
	if c.lose {
		return n - 1, nil
	}
	return n, nil
}

func TestPatternIsNcdevmems(t *testing.T) {
	b := make([]byte, 15)
	pattern{7}.fill(b, 0)
	testkit.Equal(t, "the pattern", string(b), "\x01\x02\x03\x04\x05\x06\n\x01\x02\x03\x04\x05\x06\n\x01")
	pattern{7}.fill(b[:3], 5)
	testkit.Equal(t, "the pattern from 5 on", string(b[:3]), "\x06\n\x01")
	v := &validator{pattern: pattern{256}, out: io.Discard}
	all := make([]byte, 1000)
	v.fill(all, 0)
	_, _ = v.Write(all[:3])
	_, _ = v.Write(all[3:])
	testkit.OK(t, v.err())
}
