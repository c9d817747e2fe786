package broker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

const starter = "VNIC_TEST_STARTER"

func start() error {
	k, err := Start(Config{Mode: On})
	if err != nil {
		return err
	}
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; sleep 1000 & wait; wait")
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = w
	child, err := proc.StartChild(cmd)
	if err != nil {
		return err
	}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		return err
	}
	a, b, err := scm.Pair()
	if err != nil {
		return err
	}
	defer b.Close()
	gate := NewGate(k, 1, func() error { _, err := k.Confine(On, nil); return err })
	signal, instead, err := gate.Pass(context.Background(), child.PID(), a)
	if err != nil {
		return err
	}
	defer instead.Close()
	fmt.Println("SIGKILL by itself:", errors.Is(unix.Kill(child.PID(), unix.SIGKILL), unix.EPERM))
	fmt.Println("SIGSTOP by the broker:", errors.Is(signal(unix.SIGSTOP), unix.EINVAL))
	child.SignalBy(signal)
	child.End(20 * time.Millisecond)
	fmt.Println("ended:", child.Err())
	return k.Close()
}

// A confined process ends its child through its broker, which sends no SIGSTOP, and cannot kill the child itself.
func TestConfinedProcessEndsItsOwn(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), starter+"=1")
	out, err := cmd.Output()
	testkit.OK(t, err)
	testkit.Equal(t, "said", string(out),
		"SIGKILL by itself: true\nSIGSTOP by the broker: true\nended: signal: killed\n")
}

// The broker signals a process that was named before the seal, only with SIGTERM and SIGKILL, and refuses to take
// processes and monitors after the seal.
func TestOnlyOwnProcessesAreSignalled(t *testing.T) {
	testkit.LeavesNothing(t)
	k := both(t, Config{Mode: On})
	child := testkit.Must(proc.StartChild(exec.Command("sleep", "1000")))(t)
	_, err := opSignal.quick(k, processSignal{Signal: int32(unix.SIGTERM)})
	testkit.ErrorIs(t, err, unix.EINVAL)
	signal := testkit.Must(k.Own(child.PID()))(t)
	testkit.Must(opSeal.quick(k, none{}))(t)
	_, err = k.Own(child.PID())
	refused(t, "a process after the seal", err)
	a, b, err := scm.Pair()
	testkit.OK(t, err)
	defer a.Close()
	defer b.Close()
	_, err = k.Monitor(a)
	refused(t, "a monitor after the seal", err)
	for _, sig := range []syscall.Signal{0, unix.SIGSTOP, unix.SIGCONT} {
		testkit.ErrorIs(t, signal(sig), unix.EINVAL)
	}
	testkit.OK(t, signal(unix.SIGTERM))
	if !child.Ends(testkit.Patience) {
		t.Error("it has not ended")
	}
	testkit.ErrorIs(t, signal(unix.SIGKILL), unix.ESRCH)
	signal = testkit.Must(both(t, Config{Mode: On}).Own(child.PID()))(t)
	testkit.ErrorIs(t, signal(unix.SIGKILL), unix.ESRCH)
}

// Invariant: sandbox: A confined process gives a QEMU no command that vnic does not need.
func TestMonitorGetsListedCommands(t *testing.T) {
	testkit.LeavesNothing(t)
	k := both(t, Config{Mode: On, Monitor: []string{"quit", "query-status", "device_del"}})
	qemu, theirs, err := scm.Pair()
	testkit.OK(t, err)
	defer qemu.Close()
	m := testkit.Must(k.Monitor(theirs))(t)
	testkit.OK(t, theirs.Close())
	for _, line := range []string{
		`{"execute":"query-status","id":1}`,
		`{"execute":"pmemsave","arguments":{"filename":"/tmp/x"},"id":2}`,
		`{"exec-oob":"migrate","id":3}`,
		`{"execute":"query-status","execute":"device_add","id":4}`,
		`{"execute":"human-monitor-command","arguments":{"command-line":"quit"}}`,
		`{"execute":"quit"}{"execute":"stop"}`,
		`["quit"]`, `junk`, ``,
		`{"execute":"device_del","arguments":{"id":"qmp"},"id":6}`,
		`{"execute":"device_del","id":7}`, `{"execute":"device_del","arguments":"dev-net0","id":8}`,
		`{"execute":"device_del","arguments":{"id":"dev-net0","force":true},"id":9}`,
		`{"execute":"quit","arguments":{"x":1},"exec-oob":"stop","id":5}`,
	} {
		testkit.Must(m.Write([]byte(line + "\n")))(t)
	}
	testkit.OK(t, qemu.SetDeadline(time.Now().Add(testkit.Patience)))
	lines := bufio.NewScanner(qemu)
	var got []string
	for len(got) < 3 && lines.Scan() {
		got = append(got, lines.Text())
	}
	testkit.Equal(t, "commands", strings.Join(got, " "),
		`{"execute":"query-status","id":1} {"execute":"device_del","id":9,"arguments":{"id":"dev-net0"}} `+
			`{"execute":"quit","id":5}`)
	testkit.Must(qemu.Write([]byte("{\"return\": {}}\n")))(t)
	answer := testkit.Must(bufio.NewReader(m).ReadString('\n'))(t)
	testkit.Equal(t, "answer", answer, "{\"return\": {}}\n")
	testkit.Must(m.Write(make([]byte, maxCommand+1)))(t)
	if lines.Scan() {
		t.Errorf("then: %q", lines.Text())
	}
	testkit.OK(t, m.Close())
}

// Callers of Pass wait until the last one has called it and confine has returned; all get confine's error. Pass also
// returns when its context ends.
func TestGateWaitsForTheLast(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, want := range []error{nil, unix.EPERM} {
		k := both(t, Config{Mode: On})
		var there atomic.Int32
		const n = 3
		g := NewGate(k, n, func() error {
			if there.Load() != n {
				t.Errorf("confined when %d are there", there.Load())
			}
			return want
		})
		passed := make(chan error, n)
		var ours [n]*net.UnixConn
		for i := range n {
			a, b, err := scm.Pair()
			testkit.OK(t, err)
			ours[i] = b
			there.Add(1)
			go func() {
				signal, instead, err := g.Pass(t.Context(), os.Getpid(), a)
				if signal == nil || (instead == nil) != (want != nil) {
					t.Errorf("signal %t, monitor %v", signal != nil, instead)
				}
				if instead != nil {
					_ = instead.Close()
				}
				passed <- err
			}()
			if i < n-1 {
				select {
				case <-g.open:
					t.Error("open too early")
				default:
				}
			}
		}
		for range n {
			testkit.ErrorIs(t, <-passed, want)
		}
		for _, c := range ours {
			testkit.OK(t, c.Close())
		}
	}
	k := both(t, Config{Mode: On})
	a, b, err := scm.Pair()
	testkit.OK(t, err)
	defer b.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = NewGate(k, 2, nil).Pass(ctx, os.Getpid(), a)
	testkit.ErrorIs(t, err, context.Canceled)
}
