package serve

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

func statusBytes(t *testing.T, pid int, key string) uint64 {
	t.Helper()
	b := testkit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == key+":" {
			return testkit.Must(strconv.ParseUint(f[1], 10, 64))(t) << 10
		}
	}
	t.Fatalf("no %s in %s", key, b)
	return 0
}

// The peak memory of vnic serve plus the memory of its GPUs is at most MemoryMax.
func TestMemoryMaxIsEnough(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	const most, ram = 8 << 20, 64 << 20
	for _, n := range []int{1, 16, 64} {
		gpu := most
		if n > lab.MaxGPUs {
			gpu = 0
		}
		paths := testkit.Must(Paths([]string{t.TempDir() + "/%d"}, n))(t)
		p := startApart(t, apartOptions{Mode: broker.On, Paths: paths, GPUMemory: uint64(gpu),
			Gateway: lab.GatewayFlags{NoGateway: true}})
		o := Options{Paths: paths, GPUMemory: uint64(gpu), GatewayFlags: lab.GatewayFlags{NoGateway: true}}
		for i := range min(n, n*gpu) { // fill each GPU's memory
			f := testkit.Must(os.OpenFile(p.rep.Ports[i].GPUPath, os.O_RDWR, 0))(t)
			testkit.Must(f.WriteAt(bytes.Repeat([]byte{1}, gpu), 0))(t)
			testkit.OK(t, f.Close())
		}
		if n > 1 {
			a, b := p.guest(0), p.guest(n-1)
			testkit.OK(t, errors.Join(a.Exchange(t.Context(), b, 4<<20), a.Close(), b.Close()))
		}
		least, limit := statusBytes(t, p.rep.PID, "VmHWM"), o.MemoryMax(0)
		t.Logf("%d ports: %d MiB at the peak, GPUs' %d; the limit is %d", n, least>>20, n*gpu>>20, limit>>20)
		if need := least + uint64(n*gpu); need > limit { // VmHWM lacks memory that the process has not touched
			t.Errorf("%d ports: %d bytes, the limit is %d", n, need, limit)
		}
		p.end()
	}
	o := Options{Paths: make([]string, 4), GPUMemory: most}
	testkit.Equal(t, "added by guests' RAM", o.MemoryMax(ram)-o.MemoryMax(0), uint64(4*ram))
	with := o.MemoryMax(0)
	o.Gateway = lab.GatewayOff
	testkit.Equal(t, "added by a gateway", with-o.MemoryMax(0), uint64(maxGateway))
}
