package gvelab

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

// quitLimit is how long QEMU and the server's process may take to end, powerOffLimit how long a guest whose driver has
// given up may take to power off.
const (
	quitLimit     = 5 * time.Second
	powerOffLimit = time.Minute
)

// lost must be in the log of a server that was not killed, givesUp in the kernel log of a guest whose QEMU lives on.
const (
	lost = "the guest has lost a device: reads of its registers give all ones, writes go nowhere, " +
		"its driver times out and gives up"
	givesUp = "DISABLING ALL QUEUES"
)

// The server of a guest's gVNICs ends during traffic.
//
// Invariant: vfiouser: A server that is killed never keeps QEMU from ending.
func TestServerGoesWhileQEMULives(t *testing.T) {
	for _, c := range []struct {
		name     string
		remote   bool // the server is another process
		end      func(*loss)
		powerOff bool // the guest powers off; else the test ends QEMU
		mayAbort bool // QEMU may abort by a fault of its own; vnic's error must name that
	}{
		{name: "Serve ended by its context", end: (*loss).stop},
		{name: "process ended by SIGTERM", remote: true, end: (*loss).term, powerOff: true},
		{name: "process killed", remote: true, end: (*loss).kill, mayAbort: true},
		{name: "process killed with requests unread", remote: true, end: (*loss).killUnread, mayAbort: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newLoss(t, c.remote)
			x.do("links are up, streams run", OpSetup, Args{})
			x.do("all streams flow", OpTraffic, Args{})
			start := time.Now()
			c.end(x)
			x.ok("the server has gone, %v after it was told to", time.Since(start).Round(time.Millisecond))
			x.after(c.powerOff, c.mayAbort)
			x.quit()
		})
	}
}

// loss is one guest that loses its server.
type loss struct {
	*bench
	log    *os.File   // of this process and of the server's process
	served chan error // errors of the NICs' servers in this process
	cancel context.CancelCauseFunc
	remote *remote // the server's process; nil: the server is in this process
	ended  bool    // QEMU has ended: the guest has powered off, or QEMU has aborted
}

func newLoss(t *testing.T, away bool) *loss {
	log := testkit.Must(os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(t)
	x := &loss{log: log, served: make(chan error, len(describe().Guests[0].NICs))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("our log:\n" + x.text())
		}
		_ = log.Close()
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	x.cancel = cancel
	t.Cleanup(func() { cancel(nil) })
	connected := func(p *lab.Port, conn *net.UnixConn) { dma.Go(func() { x.served <- p.Serve(ctx, conn) }) }
	if away {
		x.remote = startServer(t, log)
		connected = x.remote.connect
	}
	x.bench = newBench(t, 2*time.Minute, slog.New(slog.NewTextHandler(log, nil)), connected)
	return x
}

func (x *loss) stop() {
	why := errors.New("stopped by the test")
	x.cancel(why)
	for range x.lab.Ports() {
		if err := <-x.served; !errors.Is(err, why) {
			x.Errorf("serve: %v", err)
		}
	}
	x.tells()
}

func (x *loss) text() string {
	b, err := os.ReadFile(x.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (x *loss) tells() {
	x.Helper()
	if got := strings.Count(x.text(), lost); got != len(x.lab.Ports()) {
		x.Errorf("our log has %d times %q, not for each NIC", got, lost)
	}
}

func (x *loss) term() {
	x.remote.end(x.T, syscall.SIGTERM)
	x.tells()
}

func (x *loss) kill() { x.remote.end(x.T, syscall.SIGKILL) }

func (x *loss) killUnread() {
	n, err := x.remote.hang(x.Context())
	if err != nil {
		x.Fatal(err)
	}
	x.ok("the server was stopped: %d bytes of requests wait", n)
	x.remote.end(x.T, syscall.SIGKILL)
}

// after checks what happens to the guest and its QEMU.
func (x *loss) after(powerOff, mayAbort bool) {
	x.Helper()
	var news []Record
	err := x.call(OpLost, &Args{Name: givesUp}, &news)
	switch {
	case err == nil:
		for _, n := range news[max(0, len(news)-4):] {
			x.Log("guest: ", n)
		}
		x.ok("the guest's driver has given up; the guest itself lives")
	case mayAbort && x.gone():
		x.aborted()
		return
	default:
		x.Fatal(err)
	}
	if powerOff {
		ctx, cancel := context.WithTimeoutCause(x.Context(), powerOffLimit, errors.New("it hangs"))
		defer cancel()
		if err := x.PowerOff(ctx); err != nil {
			x.Fatal(err, context.Cause(ctx))
		}
		x.ended = true
		x.ok("the guest has powered off")
	}
}

// gone reports whether QEMU ends by itself within quitLimit.
func (x *loss) gone() bool {
	select {
	case <-x.Done():
		return true
	case <-time.After(quitLimit):
		return false
	}
}

func (x *loss) aborted() {
	x.Helper()
	x.ended = true
	err := x.Gone("")
	var e *qemu.RunError
	if !errors.As(err, &e) || !errors.Is(err, qemu.ErrExited) || !strings.Contains(e.Detail, "signal: aborted") {
		x.Fatalf("QEMU ended, and not by an abort: %v", err)
	}
	e.Console = nil
	x.ok("QEMU has aborted: a bug of its own, and it is gone. We say: %v", e)
}

// quit ends QEMU if it still runs. QEMU must not take longer than quitLimit.
func (x *loss) quit() {
	x.Helper()
	if x.ended {
		return
	}
	start := time.Now()
	if err := x.Close(); err != nil {
		x.Error(err)
	}
	took := time.Since(start)
	if took > quitLimit {
		x.Errorf("QEMU took %v to end", took)
	}
	x.ok("QEMU ended %v after it was told to quit", took.Round(time.Millisecond))
}
