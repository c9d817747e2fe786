package bench

import (
	"bytes"
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
	"syscall"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/wire"
)

// testpmd is a run of DPDK's dpdk-testpmd, which forwards between two ports when it is told to. It needs no huge pages
// and no device: its ports are vhost-user sockets.
type testpmd struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    chan string // what it writes
	got    string      // of it, not yet awaited
	ended  chan struct{}
	log    bytes.Buffer // of stderr, once it has ended
	failed error        // why it has
}

// What testpmd writes when it is ready for a command, when it forwards, and when it has stopped to, with the
// statistics of all ports.
var (
	isReady   = regexp.MustCompile(`testpmd> `)
	isMoving  = regexp.MustCompile(`packet forwarding - ports=2`)
	isStopped = regexp.MustCompile(`(?s)statistics for all ports.*?RX-packets: (\d+).*?Done`)
)

// testpmdPrograms are its names in distributions.
var testpmdPrograms = []string{"dpdk-testpmd", "testpmd"}

// startTestpmd starts one on a processor, with two virtual devices, for bursts of some frames.
func startTestpmd(ctx context.Context, processor int, vdevs [2]string, burst int, args ...string) (*testpmd, error) {
	path := ""
	for _, name := range testpmdPrograms {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	t := &testpmd{out: make(chan string, 1), ended: make(chan struct{})}
	// Into a pipe it would write what it prints when a buffer is full; coreutils' stdbuf has it write lines.
	t.cmd = exec.Command("stdbuf", append([]string{
		"-oL", path, "--no-pci", "--no-huge", "-m", "256", "--no-telemetry", "--no-shconf",
		"--lcores", fmt.Sprintf("0@%d,1@%[1]d", processor), "--vdev", vdevs[0], "--vdev", vdevs[1],
		"--", "-i", "--forward-mode=io", "--total-num-mbufs=16384", "--txd=1024", "--rxd=1024",
		"--burst=" + strconv.Itoa(burst)}, args...)...)
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	t.cmd.Stderr = &t.log
	var err error
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	go t.read(out)
	if _, err = t.await(ctx, isReady); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// read passes on what testpmd writes, until it ends.
func (t *testpmd) read(out io.Reader) {
	defer close(t.ended)
	b := make([]byte, 4096)
	last := ""
	for {
		n, err := out.Read(b)
		if n > 0 {
			last = string(b[:n])
			t.out <- last
		}
		if err != nil {
			t.failed = errors.Join(t.cmd.Wait(), fmt.Errorf("testpmd ended: %s", lastLines(last+t.log.String())))
			return
		}
	}
}

// lastLines is what a user needs of a program's output to see why it ended.
func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// await waits until testpmd has written something, and returns its parts.
func (t *testpmd) await(ctx context.Context, what *regexp.Regexp) ([]string, error) {
	timeout := time.NewTimer(limits.Bench.Here())
	defer timeout.Stop()
	for {
		if places := what.FindStringSubmatchIndex(t.got); places != nil {
			parts := what.FindStringSubmatch(t.got)
			t.got = t.got[places[1]:]
			return parts, nil
		}
		select {
		case s := <-t.out:
			t.got += s
		case <-t.ended:
			return nil, t.failed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timeout.C:
			return nil, fmt.Errorf("testpmd does not say %v within %v, but: %s", what, limits.Bench.Here(), lastLines(t.got))
		}
	}
}

// do gives it a command and returns what it says to it.
func (t *testpmd) do(ctx context.Context, command string, says *regexp.Regexp) ([]string, error) {
	if _, err := io.WriteString(t.in, command+"\n"); err != nil {
		return nil, err
	}
	return t.await(ctx, says)
}

// close ends it.
func (t *testpmd) close() error {
	_ = t.in.Close()
	_ = t.cmd.Process.Kill()
	for {
		select {
		case <-t.out:
		case <-t.ended:
			return nil
		}
	}
}

// testpmdRing is two ports of testpmd, joined by a switch: what comes in at one goes out at the
// other, around and around.
type testpmdRing struct {
	front    *testpmd
	sw       *testpmd // nil: ours
	burst    int
	payload  int
	closing  func() error
	received func() uint64
}

// run has frames circle for a time, and counts those that came back. It is done again where none did: what comes before
// a ring has started is lost, and a testpmd that waits for its processor has sent nothing.
func (r *testpmdRing) run(ctx context.Context, d time.Duration) (w work, err error) {
	for deadline := time.Now().Add(limits.Bench.Here()); ; {
		w, err = r.circle(ctx, max(d, leastCircling))
		switch {
		case err != nil || w.frames > 0:
			return w, err
		case time.Now().After(deadline):
			return w, errStuck
		}
	}
}

func (r *testpmdRing) circle(ctx context.Context, d time.Duration) (w work, err error) {
	if r.sw != nil {
		if _, err := r.sw.do(ctx, "start", isMoving); err != nil {
			return w, err
		}
	}
	if _, err := r.front.do(ctx, "start tx_first "+strconv.Itoa(max(1, circling/r.burst)), isMoving); err != nil {
		return w, err
	}
	start := time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return w, context.Cause(ctx)
	}
	w.spent = time.Since(start)
	says, err := r.front.do(ctx, "stop", isStopped)
	if err == nil && r.sw != nil {
		_, err = r.sw.do(ctx, "stop", isStopped)
	}
	if err != nil {
		return w, err
	}
	w.frames, err = strconv.ParseUint(says[1], 10, 64)
	w.bytes = w.frames * uint64(r.payload)
	return w, err
}

func (r *testpmdRing) close() (err error) {
	for _, t := range []*testpmd{r.front, r.sw} {
		if t != nil {
			err = errors.Join(err, t.close())
		}
	}
	if r.closing != nil {
		err = errors.Join(err, r.closing())
	}
	return err
}

// connect starts the frontend of a ring, of frames of a size without FCS, at sockets in dir.
func (r *testpmdRing) connect(ctx context.Context, dir string, macs [2]string, size, burst int) (err error) {
	r.burst, r.payload = burst, size-etherLen-udpHeaders
	var vdevs [2]string
	var peers []string
	for i := range vdevs {
		vdevs[i] = fmt.Sprintf("net_virtio_user%d,path=%s,queue_size=1024,mac=%s", i, filepath.Join(dir, strconv.Itoa(i)),
			macs[i])
		peers = append(peers, fmt.Sprintf("--eth-peer=%d,%s", i, macs[1-i]))
	}
	// Both ports have the same source address: 0.0.0.0, which nobody claims.
	r.front, err = startTestpmd(ctx, 0, vdevs, burst, append(peers, "--no-lsc-interrupt", "--tx-ip=0.0.0.0,198.18.0.2",
		"--txpkts="+strconv.Itoa(size))...)
	return err
}

const (
	leastCircling = 100 * time.Millisecond // a run takes, or it may end before the first frame is back
	circling      = 512                    // frames that circle, from each port: half of a ring
	etherLen      = 14
	udpHeaders    = 20 + 8
)

func macText(m wire.MAC) string { return net.HardwareAddr(m[:]).String() }

// oursBetween is a ring around our switch, whose NICs have sockets; poll threads serve them.
func oursBetween(ctx context.Context, log *slog.Logger, dir string, size, burst, poll int) (r *testpmdRing, err error) {
	r = &testpmdRing{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	l, err := lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: 1, NICOptions: lab.NICOptions{MTU: 1500}}, 0),
		lab.Options{Log: log, Poll: poll})
	if err != nil {
		return r, err
	}
	var listeners []net.Listener
	r.closing = func() (err error) {
		for _, s := range listeners {
			err = errors.Join(err, s.Close())
		}
		return errors.Join(err, l.Close())
	}
	var macs [2]string
	for i, p := range l.Ports() {
		macs[i] = macText(p.MAC)
		s, err := net.Listen("unix", filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			return r, err
		}
		listeners = append(listeners, s)
		go func() {
			if conn, err := s.Accept(); err == nil {
				p.Connected(conn.(*net.UnixConn))
			}
		}()
	}
	r.received = func() (n uint64) {
		for _, p := range l.Ports() {
			rx, _ := p.NIC().QueueCounters(0)
			n += rx.HostBytes
		}
		return n
	}
	return r, r.connect(ctx, dir, macs, size, burst)
}

// dpdksBetween is a ring around another testpmd with two vhost ports, on the second processor.
func dpdksBetween(ctx context.Context, dir string, size, burst int) (r *testpmdRing, err error) {
	r = &testpmdRing{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	var vdevs [2]string
	for i := range vdevs {
		vdevs[i] = fmt.Sprintf("net_vhost%d,iface=%s", i, filepath.Join(dir, strconv.Itoa(i)))
	}
	if r.sw, err = startTestpmd(ctx, 1, vdevs, burst); err != nil {
		return r, err
	}
	return r, r.connect(ctx, dir, [2]string{macText(lab.MAC(0)), macText(lab.MAC(1))}, size, burst)
}

// testpmdRow measures a ring of testpmd's ports around our switch, beside the same around another testpmd.
func testpmdRow(name string, size, burst, poll int) Measurement {
	mode := "a thread that polls"
	if poll == 0 {
		mode = "threads that sleep"
	}
	m := Measurement{Name: name, Unit: NsFrame, Yardstick: "the same around DPDK's vhost (testpmd)",
		About: fmt.Sprintf("frames of %s that testpmd has circle, bursts of %d, %s", bytesName(size), burst, mode)}
	m.find = func() string {
		if runtime.NumCPU() < 2 {
			return "needs two processors"
		}
		for _, p := range testpmdPrograms {
			if _, err := exec.LookPath(p); err == nil {
				return ""
			}
		}
		return "not installed (Debian: dpdk)"
	}
	m.open = func(ctx context.Context, log *slog.Logger) (_ *rig, err error) {
		dir, err := os.MkdirTemp("", "vnic-bench-")
		if err != nil {
			return nil, err
		}
		rig := &rig{atLeast: true}
		var rings []*testpmdRing
		rig.close = func() (err error) {
			for _, r := range rings {
				err = errors.Join(err, r.close())
			}
			return errors.Join(err, os.RemoveAll(dir))
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, rig.close())
			}
		}()
		sockets := func(name string) string { return filepath.Join(dir, name) }
		if err = errors.Join(os.Mkdir(sockets("ours"), 0o700), os.Mkdir(sockets("dpdk"), 0o700)); err != nil {
			return nil, err
		}
		// On the wire a frame of 64 B has its FCS, which no virtual one has.
		ours, err := oursBetween(ctx, log, sockets("ours"), size-4, burst, poll)
		if err != nil {
			return nil, err
		}
		rings = append(rings, ours)
		theirs, err := dpdksBetween(ctx, sockets("dpdk"), size-4, burst)
		if err != nil {
			return nil, err
		}
		rings = append(rings, theirs)
		rig.ours, rig.yardstick, rig.counted = ours.run, theirs.run, ours.received
		return rig, nil
	}
	return m
}
