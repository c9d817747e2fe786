package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/wire"
)

// testpmd is a running dpdk-testpmd, which forwards between two devices, each with a vhost-user socket.
type testpmd struct {
	*proc.Child
	in io.WriteCloser

	mu   sync.Mutex
	text []byte        // under mu: output that await has not used
	more chan struct{} // has an element when text has grown
}

func (t *testpmd) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.text = append(t.text, b...)
	t.mu.Unlock()
	select {
	case t.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

// what testpmd prints: when it is ready for a command, when it starts to forward, and when it has stopped
var (
	isReady   = regexp.MustCompile(`testpmd> `)
	isMoving  = regexp.MustCompile(`packet forwarding - ports=2`)
	isStopped = regexp.MustCompile(`(?s)statistics for all ports.*?RX-packets: (\d+).*?Done`)
)

func testpmdPath() string {
	for _, name := range []string{"dpdk-testpmd", "testpmd"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// startTestpmd starts a testpmd with two virtual devices on one processor, and waits until it is ready for a command.
// The rig r ends it.
func startTestpmd(ctx context.Context, r *rig, processor int, vdevs [2]string, args ...string) (*testpmd, error) {
	t := &testpmd{more: make(chan struct{}, 1)}
	// stdbuf makes testpmd write each line at once.
	cmd := exec.Command("stdbuf", append([]string{
		"-oL", testpmdPath(), "--no-pci", "--no-huge", "-m", "256", "--no-telemetry", "--no-shconf",
		"--lcores", fmt.Sprintf("0@%d,1@%[1]d", processor), "--vdev", vdevs[0], "--vdev", vdevs[1],
		"--", "-i", "--forward-mode=io", "--total-num-mbufs=16384", "--txd=1024", "--rxd=1024"},
		args...)...)
	cmd.Stdout, cmd.Stderr = t, t
	var err error
	if t.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if t.Child, err = proc.StartChild(cmd); err != nil {
		return nil, err
	}
	r.undo.Add(func() error { t.End(0); return nil })
	_, err = t.await(ctx, isReady)
	return t, err
}

// await waits until the output of testpmd that no earlier await has used matches what, and returns the submatches. It
// fails if testpmd ends, and after limits.Bench.Here().
func (t *testpmd) await(ctx context.Context, what *regexp.Regexp) ([][]byte, error) {
	timeout := time.NewTimer(limits.Bench.Here())
	defer timeout.Stop()
	for {
		t.mu.Lock()
		text := t.text
		places := what.FindSubmatchIndex(text)
		if places != nil {
			t.text = text[places[1]:]
		}
		t.mu.Unlock()
		if places != nil {
			return what.FindSubmatch(text), nil
		}
		select {
		case <-t.more:
		case <-t.Done():
			return nil, errors.Join(t.Err(), fmt.Errorf("testpmd ended: %s", lastLines(t.text)))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timeout.C:
			return nil, fmt.Errorf("testpmd does not say %v within %v, but: %s", what, limits.Bench.Here(), lastLines(text))
		}
	}
}

func lastLines(output []byte) string { return strings.Join(proc.LastLines(output, 3), "; ") }

func (t *testpmd) do(ctx context.Context, command string, says *regexp.Regexp) ([][]byte, error) {
	if _, err := io.WriteString(t.in, command+"\n"); err != nil {
		return nil, err
	}
	return t.await(ctx, says)
}

// circle is two ports of a testpmd, joined by a switch: testpmd sends a frame that one port receives out of the other
// port, and the switch brings it back to the first one.
type circle struct {
	front *testpmd
	sw    *testpmd // nil: vnic is the switch
	dir   string   // directory of the sockets
	size  int      // frame size, without FCS
	burst int
}

// run makes frames circle for d, at least leastCircling, and counts the frames that came back to testpmd's ports. Until
// limits.Bench.Here() has passed it tries again if there are none: a ring may not have started yet.
func (c *circle) run(ctx context.Context, d time.Duration) (w work, err error) {
	for deadline := time.Now().Add(limits.Bench.Here()); ; {
		w, err = c.once(ctx, max(d, leastCircling))
		switch {
		case err != nil || w.frames > 0:
			return w, err
		case time.Now().After(deadline):
			return w, errStuck
		}
	}
}

func (c *circle) once(ctx context.Context, d time.Duration) (w work, err error) {
	if c.sw != nil {
		if _, err := c.sw.do(ctx, "start", isMoving); err != nil {
			return w, err
		}
	}
	if _, err := c.front.do(ctx, "start tx_first "+strconv.Itoa(max(1, underWay/c.burst)), isMoving); err != nil {
		return w, err
	}
	start := time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return w, context.Cause(ctx)
	}
	w.spent = time.Since(start)
	says, err := c.front.do(ctx, "stop", isStopped)
	if err == nil && c.sw != nil {
		_, err = c.sw.do(ctx, "stop", isStopped)
	}
	if err != nil {
		return w, err
	}
	w.frames, err = strconv.ParseUint(string(says[1]), 10, 64)
	w.bytes = w.frames * uint64(c.size-etherLen-udpHeaders)
	return w, err
}

// connect starts the frontend testpmd, which connects to the sockets in dir.
func (c *circle) connect(ctx context.Context, r *rig, macs [2]wire.MAC) (err error) {
	var vdevs [2]string
	// Both ports send from the IP address 0.0.0.0, which belongs to no port.
	args := []string{c.bursts(), "--no-lsc-interrupt", "--tx-ip=0.0.0.0,198.18.0.2", "--txpkts=" + strconv.Itoa(c.size)}
	for i := range vdevs {
		vdevs[i] = fmt.Sprintf("net_virtio_user%d,path=%s,queue_size=1024,mac=%s", i, c.socket(i), macText(macs[i]))
		args = append(args, fmt.Sprintf("--eth-peer=%d,%s", i, macText(macs[1-i])))
	}
	c.front, err = startTestpmd(ctx, r, 0, vdevs, args...)
	return err
}

func (c *circle) socket(port int) string { return filepath.Join(c.dir, strconv.Itoa(port)) }

func (c *circle) bursts() string { return "--burst=" + strconv.Itoa(c.burst) }

const (
	leastCircling = 100 * time.Millisecond // a shorter run may end before the first frame is back
	underWay      = 512                    // frames that each port sends at first, which then circle
	etherLen      = 14
	udpHeaders    = 20 + 8
)

func macText(m wire.MAC) string { return net.HardwareAddr(m[:]).String() }

// aroundOurs joins the circle's ports by vnic's switch. poll is the number of threads that poll; with 0, workers sleep
// until they get a kick.
func (c *circle) aroundOurs(ctx context.Context, log *slog.Logger, poll int, r *rig) error {
	l, err := lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: 1, NICOptions: lab.NICOptions{MTU: 1500}}, 0),
		lab.Options{Log: log, Poll: poll})
	if err != nil {
		return err
	}
	r.undo.Add(l.Close)
	var macs [2]wire.MAC
	for i, p := range l.Ports() {
		macs[i] = p.MAC
		s, err := net.Listen("unix", c.socket(i))
		if err != nil {
			return err
		}
		r.undo.Add(s.Close)
		go func() {
			if conn, err := s.Accept(); err == nil {
				p.Connected(conn.(*net.UnixConn))
			}
		}()
	}
	r.counted = func() (n uint64) {
		for _, p := range l.Ports() {
			n += counters(p).Rx.HostBytes
		}
		return n
	}
	return c.connect(ctx, r, macs)
}

func (c *circle) aroundTestpmd(ctx context.Context, r *rig) (err error) {
	var vdevs [2]string
	for i := range vdevs {
		vdevs[i] = fmt.Sprintf("net_vhost%d,iface=%s", i, c.socket(i))
	}
	if c.sw, err = startTestpmd(ctx, r, 1, vdevs, c.bursts()); err != nil {
		return err
	}
	return c.connect(ctx, r, [2]wire.MAC{lab.MAC(0), lab.MAC(1)})
}

func findTestpmd() string {
	if runtime.NumCPU() < 2 {
		return "needs two processors"
	}
	if testpmdPath() == "" {
		return "not installed (Debian: dpdk)"
	}
	return ""
}

// circling measures frames that circle through vnic's switch; the yardstick is a second testpmd in its place.
func circling(size, burst, poll int) openFunc {
	return func(ctx context.Context, log *slog.Logger, r *rig) error {
		dir, err := os.MkdirTemp("", "vnic-bench-")
		if err != nil {
			return err
		}
		r.undo.Add(func() error { return os.RemoveAll(dir) })
		// The parameter size includes the FCS, 4 bytes.
		ours := &circle{dir: filepath.Join(dir, "ours"), size: size - 4, burst: burst}
		theirs := &circle{dir: filepath.Join(dir, "dpdk"), size: size - 4, burst: burst}
		r.ours, r.yardstick, r.atLeast = ours.run, theirs.run, true
		if err := errors.Join(os.Mkdir(ours.dir, 0o700), os.Mkdir(theirs.dir, 0o700)); err != nil {
			return err
		}
		if err := ours.aroundOurs(ctx, log, poll, r); err != nil {
			return err
		}
		return theirs.aroundTestpmd(ctx, r)
	}
}
