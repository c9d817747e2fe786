// Command gvelost takes the server of a guest's gVNICs away while its QEMU lives on, in several ways, under traffic, and holds
// that QEMU ends when it is told to, that our log says what the guest will see, and that the guest sees that.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/acceptance/internal/gvelab"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/qemu"
)

var (
	cache  = flag.String("cache", "", "vnic's cache")
	only   = flag.String("case", "", "run this case only")
	limit  = flag.Duration("limit", 2*time.Minute, "time for a case")
	server = flag.Bool("server", false, "be the server: for itself")
)

// quitLimit is how long QEMU may take to end, powerOffLimit how long a guest may take to power off whose driver gives up on
// each of its devices.
const (
	quitLimit     = 5 * time.Second
	powerOffLimit = time.Minute
)

// lost is what the log is to say, and givesUp what the guest's then does.
const (
	lost    = "the guest has lost a device: reads of its registers give all ones, writes go nowhere, its driver times out and gives up"
	givesUp = "DISABLING ALL QUEUES"
)

// cases are ways for a server to go. end has it go, and says what our log is to have.
var cases = []struct {
	name, what string
	remote     bool // the server is another process
	end        func(ctx context.Context, r *run) error
	powerOff   bool // the guest ends the run
	mayAbort   bool // QEMU may take it badly: its own fault, but it has to be gone then, and we to say so
}{
	{name: "stop", what: "Serve ended by its context", end: stop},
	{name: "term", what: "the server's process ended by SIGTERM", remote: true, end: term, powerOff: true},
	{name: "kill", what: "the server's process killed (-9) under traffic", remote: true, end: kill, mayAbort: true},
	{name: "unread", what: "the server's process killed (-9) with requests unread", remote: true, end: killUnread, mayAbort: true},
}

func main() {
	gvelab.Main()
	flag.Parse()
	if *server {
		serve()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	for _, c := range cases {
		if *only != "" && *only != c.name {
			continue
		}
		fmt.Println("== " + c.what)
		r := &run{start: time.Now()}
		err := r.boot(ctx, c.remote)
		if err == nil {
			err = r.loseServer(ctx, c.end)
		}
		if err == nil {
			err = r.after(ctx, c.powerOff, c.mayAbort)
		}
		if err = errors.Join(err, r.close()); err != nil {
			fmt.Fprintf(os.Stderr, "%s\nour log:\n%s\nFAIL %s: %v\n", r.console(), r.log.String(), c.what, err)
			os.Exit(1)
		}
	}
}

// run is one guest that loses its server.
type run struct {
	*gvelab.Lab
	start  time.Time
	log    buffer
	remote *remote // or nil
	ended  bool    // QEMU has, by itself
}

func (r *run) ok(format string, args ...any) {
	fmt.Printf("ok   %5.1f s  %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// boot has a guest with all streams running.
func (r *run) boot(ctx context.Context, away bool) (err error) {
	o := gvelab.Options{Name: "guest", Cache: *cache, Log: slog.New(slog.NewTextHandler(&r.log, nil)), BootLimit: *limit, TimeLimit: *limit}
	if away {
		if r.remote, err = startServer(&r.log); err != nil {
			return err
		}
		o.Connect = r.remote.connect
	}
	if r.Lab, err = gvelab.Boot(ctx, o); err != nil {
		return err
	}
	for _, op := range []string{gvelab.OpSetup, gvelab.OpTraffic} {
		if err := r.Call(ctx, *limit, op, &gvelab.Args{}, nil, nil); err != nil {
			return err
		}
	}
	r.ok("the guest has booted, all streams flow")
	return nil
}

// loseServer has the server go.
func (r *run) loseServer(ctx context.Context, end func(context.Context, *run) error) error {
	start := time.Now()
	if err := end(ctx, r); err != nil {
		return err
	}
	r.ok("the server has gone, %v after it was told to", time.Since(start).Round(time.Millisecond))
	return nil
}

// stop ends the server of this process.
func stop(_ context.Context, r *run) error {
	why := errors.New("stopped by gvelost")
	for _, err := range r.Wires.Stop(why) {
		if !errors.Is(err, why) {
			return fmt.Errorf("serve: %w", err)
		}
	}
	return r.said(gvelab.Ports)
}

// said holds that our log says what the guest will see, for each NIC.
func (r *run) said(n int) error {
	if got := strings.Count(r.log.String(), lost); got != n {
		return fmt.Errorf("our log has %d times %q, not %d times", got, lost, n)
	}
	r.ok("our log says, for each NIC: %s", lost)
	return nil
}

// term, kill and killUnread end the server's process.
func term(_ context.Context, r *run) error {
	if err := r.remote.end(syscall.SIGTERM); err != nil {
		return err
	}
	return r.said(gvelab.Ports)
}

func kill(_ context.Context, r *run) error { return r.remote.end(syscall.SIGKILL) }

func killUnread(ctx context.Context, r *run) error {
	n, err := r.remote.hang(ctx)
	if err != nil {
		return err
	}
	r.ok("the server was stopped: %d bytes of requests wait", n)
	return r.remote.end(syscall.SIGKILL)
}

// after holds what becomes of the guest and its QEMU.
func (r *run) after(ctx context.Context, powerOff, mayAbort bool) error {
	var news []gvelab.Record
	err := r.Call(ctx, *limit, gvelab.OpLost, &gvelab.Args{Name: givesUp}, &news, nil)
	switch {
	case err == nil:
		for _, n := range news[max(0, len(news)-4):] {
			fmt.Println("     guest:", n)
		}
		r.ok("the guest's driver has given up; the guest itself lives")
	case mayAbort && r.gone():
		return r.aborted()
	default:
		return err
	}
	if powerOff {
		ctx, cancel := context.WithTimeoutCause(ctx, powerOffLimit, errors.New("it hangs"))
		defer cancel()
		start := time.Now()
		if err := r.PowerOff(ctx); err != nil {
			return err
		}
		r.ended = true
		r.ok("the guest has powered off, within %v", time.Since(start).Round(time.Millisecond))
	}
	return nil
}

// gone says whether QEMU has ended by itself. When the guest's channel has, QEMU's own end follows.
func (r *run) gone() bool {
	t := time.NewTimer(quitLimit)
	defer t.Stop()
	select {
	case <-r.Done():
		return true
	case <-t.C:
		return false
	}
}

// aborted holds that an end of QEMU's own making is told for what it is.
func (r *run) aborted() error {
	err := r.Wait()
	r.ended = true
	var e *qemu.RunError
	if !errors.As(err, &e) || !errors.Is(err, qemu.ErrExited) || !strings.Contains(e.Detail, "signal: aborted") {
		return fmt.Errorf("QEMU ended, and not by an abort: %w", err)
	}
	e.Console = nil
	r.ok("QEMU has aborted: a bug of its own, and it is gone. We say: %s", strings.ReplaceAll(e.Error(), "\n", "\n     | "))
	return nil
}

// close ends what is left: a QEMU that lives has to go when it is told to.
func (r *run) close() error {
	var errs []error
	if r.Lab != nil {
		start := time.Now()
		err := r.Lab.Close()
		took := time.Since(start)
		switch {
		case r.ended:
		case took > quitLimit:
			errs = append(errs, fmt.Errorf("QEMU took %v to end", took))
		default:
			r.ok("QEMU ended %v after it was told to quit", took.Round(time.Millisecond))
		}
		if !r.ended {
			errs = append(errs, err)
		}
	}
	if r.remote != nil {
		errs = append(errs, r.remote.close())
	}
	return errors.Join(errs...)
}

// console is the last of the guest's.
func (r *run) console() string {
	if r.Lab == nil || r.Machine == nil {
		return ""
	}
	b := r.Console()
	lines := strings.Split(string(b[max(0, len(b)-16<<10):]), "\n")
	for i, l := range lines {
		lines[i] = agent.Plain(l)
	}
	return strings.Join(lines, "\n")
}

// buffer is a log.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var _ io.Writer = (*buffer)(nil)
