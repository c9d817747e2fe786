package badinput

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

const idlePorts = 64

// idleEnv is the environment variable with the length of a period, such as 10s; unset: a second.
const idleEnv = "BADINPUT_IDLE"

// idleTries is the most periods of a test: the first ones may see work of the start, and the Go runtime collects
// garbage every two minutes.
const idleTries = 10

// In one of at most idleTries periods no thread of the server or of its descendants wakes, and the server's process
// uses no tick of processor time.
//
// Invariant: cmd/vnic: A port whose guest does nothing costs no processor time.
func TestIdlePortsDoNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("runs vnic")
	}
	for _, model := range []string{"virtio", "gve"} {
		t.Run(model, func(t *testing.T) {
			watch := time.Second
			if s := os.Getenv(idleEnv); s != "" {
				watch = testkit.Must(time.ParseDuration(s))(t)
			}
			s := serve(t, idlePorts, "--nic", model)
			for port := range idlePorts {
				s.idle(t, model, port)
			}
			settled := s.cost().ticks
			wakes, ticks := 1, 1
			for i := 0; i < idleTries && wakes+ticks > 0; i++ {
				wakes, ticks = s.wakes(t), s.cost().ticks
				time.Sleep(watch)
				wakes, ticks = s.wakes(t)-wakes, s.cost().ticks-ticks
			}
			if wakes+ticks > 0 {
				t.Errorf("in each of %d times %v something is done: in the last %d threads woke up, and %d ticks were counted",
					idleTries, watch, wakes, ticks)
			}
			t.Logf("%d ports: in %v %d ticks and %d wakes, after %d ticks to start", idlePorts, watch,
				ticks, wakes, settled)
		})
	}
}

func (s *server) idle(t *testing.T, model string, port int) {
	t.Helper()
	g := s.slowReceiver(t, model, port).set(quick)
	announce(g.say, port)
	g.give(time.Now())
}

// wakes counts how often the present threads of the server and of its descendants have gone to sleep
// (voluntary_ctxt_switches in proc(5)).
func (s *server) wakes(t *testing.T) (n int) {
	t.Helper()
	for _, pid := range s.processes(t) {
		for _, task := range testkit.Must(os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)))(t) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, task.Name()))
			if err != nil {
				continue // the thread has ended
			}
			_, rest, _ := strings.Cut(string(b), "\nvoluntary_ctxt_switches:")
			var k int
			_, err = fmt.Sscan(rest, &k)
			testkit.OK(t, err)
			n += k
		}
	}
	return n
}

// processes returns the server's process and its descendants.
func (s *server) processes(t *testing.T) (pids []int) {
	t.Helper()
	pids = []int{s.cmd.Process.Pid}
	for i := 0; i < len(pids); i++ {
		for _, task := range testkit.Must(os.ReadDir(fmt.Sprintf("/proc/%d/task", pids[i])))(t) {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pids[i], task.Name()))
			for _, f := range strings.Fields(string(b)) {
				var pid int
				_, err := fmt.Sscan(f, &pid)
				testkit.OK(t, err)
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
