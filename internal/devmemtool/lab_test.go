package devmemtool

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type world struct {
	t      testing.TB
	guests [2]*guest
}

type guest struct {
	t      testing.TB
	port   *lab.Port
	gpu    *gpumem.GPU
	change func(*Device)
}

func newWorld(t testing.TB, pairs int) *world {
	t.Helper()
	l := testkit.Must(lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: pairs}, 16<<20),
		lab.Options{Log: labtest.Log(t)}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	w := &world{t: t}
	for i := range w.guests {
		w.guests[i] = &guest{t: t, port: l.Port(i), gpu: l.Port(i).GPU().GPU}
	}
	return w
}

func (g *guest) open(_ context.Context, r Request) (*Device, error) {
	n, err := g.port.InProcess(driver.Options{QueuePairs: g.port.QueuePairs, HostQueues: 1})
	if err != nil {
		return nil, err
	}
	d, err := attach(n, "nic"+g.port.Name, r.Address)
	if err != nil {
		return nil, err
	}
	d.Device = &closing{Device: d.Device, guest: g}
	if g.change != nil {
		g.change(d)
	}
	return d, nil
}

type run struct {
	status   int
	out, err string
}

func (r run) String() string {
	return fmt.Sprintf("status %d\nstdout: %.200q\nstderr: %s", r.status, r.out, r.err)
}

// want checks the status, the whole stdout, and parts of stderr.
func (r run) want(t testing.TB, who string, status int, out string, says ...string) {
	t.Helper()
	missing := func(part string) bool { return !strings.Contains(r.err, part) }
	if r.status != status || r.out != out || slices.ContainsFunc(says, missing) {
		t.Errorf("%s: %v", who, r)
	}
}

// start runs the tool in guest i. waiting is closed when the tool waits for a connection, or has
// ended.
func (w *world) start(ctx context.Context, i int, in, args string) (done <-chan run, waiting <-chan struct{}) {
	d, listens := make(chan run, 1), make(chan struct{})
	go func() {
		var out bytes.Buffer
		e := watched{listens: listens}
		std := Stdio{In: strings.NewReader(in), Out: &out, Err: &e}
		status := Main(ctx, strings.Fields(args), std, w.guests[i].open)
		e.end()
		d <- run{status: status, out: out.String(), err: e.buf.String()}
	}()
	return d, listens
}

// watched is the tool's stderr. It closes listens when the tool writes that it waits for a connection.
type watched struct {
	buf     bytes.Buffer
	once    sync.Once
	listens chan struct{}
}

func (w *watched) end() { w.once.Do(func() { close(w.listens) }) }

func (w *watched) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte("Waiting for connection")) {
		defer w.end()
	}
	return w.buf.Write(b)
}

func (w *world) recv(ctx context.Context, args string) <-chan run {
	done, waiting := w.start(ctx, 1, "", "recv "+args)
	<-waiting
	return done
}

func (w *world) send(ctx context.Context, in, args string) <-chan run {
	done, _ := w.start(ctx, 0, in, "send "+args)
	return done
}

func (w *world) both(in, recv, send string) (r, s run) {
	w.t.Helper()
	done := w.recv(w.t.Context(), recv)
	s = <-w.send(w.t.Context(), in, send)
	return <-done, s
}
