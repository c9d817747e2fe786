package ncdevmem

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

const (
	guestRAM  = 512 << 20
	gpuMemory = 128 << 20 // ncdevmem's buffer has 62.5 MiB
)

// Addresses of the guest and of the peer: the first of each is IPv4, the second IPv6.
var (
	guestAddrs = [2]netip.Prefix{lab.Addr4(0), lab.Addr6(0)}
	peerAddrs  = [2]netip.Prefix{lab.Addr4(1), lab.Addr6(1)}
)

type bench struct {
	driver  string // of the GPU: lab.DriverNode or lab.DriverVNICGPU
	gpu     *lab.GPUMemory
	port    *nic.Port // the guest's
	machine *machine.Guest
	peer    *stack.Stack
	lines   []byte // content of the guest's file /data
	ports   uint16 // the last port that fromGuest used; at first 6000
}

func buildTools(t *testing.T) string {
	t.Helper()
	build := exec.CommandContext(t.Context(), "../../../tools/ncdevmem")
	build.Stderr = t.Output()
	dir, err := build.Output()
	if err != nil {
		t.Fatalf("tools/ncdevmem: %v", err)
	}
	return strings.TrimSpace(string(dir))
}

// onGPU returns the beginning of a shell script: with it ncdevmem's buffer lies in GPU memory (tools/gpu-memory.c).
func (l *bench) onGPU() string {
	if l.driver == lab.DriverVNICGPU {
		return "export GPU=/dev/vnicgpu0; "
	}
	return "export GPU_NODE=1; "
}

func newBench(t *testing.T, driverOfGPU string) *bench {
	t.Helper()
	modules := machine.SoftwareFor(lab.GVE).Modules
	if driverOfGPU == lab.DriverVNICGPU {
		modules = append(slices.Clone(modules), guestimages.GPUModule)
	}
	im := machinetest.Images(t, []string{lab.GVE}, guestimages.Options{Modules: modules})
	tools := buildTools(t) // for the series of the kernel that Images has fetched
	w := machinetest.Lab(t, lab.Description{Guests: []lab.Guest{
		{Name: "guest", Driver: driverOfGPU, NICs: []lab.NIC{{Name: "guest", Model: lab.GVE}},
			GPUs: []lab.GPU{{Memory: gpuMemory}}},
		{Name: "peer", NICs: []lab.NIC{{Name: "peer", Model: lab.Virtio}}},
	}}, nil)
	l := &bench{driver: driverOfGPU, gpu: w.Port(0).GPU(), port: w.Port(0).NIC(), lines: makeLines(8, sent), ports: 6000}
	n, err := w.Port(1).InProcess(driver.Options{QueuePairs: 2, HostQueues: 2})
	testkit.OK(t, err)
	if l.peer, err = stack.New(n, n.Control(), stack.Options{Addresses: peerAddrs[:], MTU: w.Port(1).MTU}); err != nil {
		t.Fatal(errors.Join(err, n.Close()))
	}
	t.Cleanup(func() {
		testkit.NoError(t, l.peer.Close())
	})
	files := testkit.Must(programs(tools, map[string][]byte{"data": l.lines}))(t)
	start := time.Now()
	// Without duplicate address detection IPv6 addresses can be used at once.
	l.machine = machinetest.Boot(t, im, w.Machine(0), machine.Config{Files: files,
		Config: qemu.Config{RAMSize: guestRAM, BootLimit: 2 * time.Minute, TimeLimit: timeLimit},
		Agent: agent.Config{Hostname: "ncdevmem",
			Sysctl: map[string]string{"net.ipv6.conf.default.accept_dad": "0"}}})
	t.Logf("guest: QEMU %s (%s), kernel %s, up after %.1f s", im.QEMU.Version, l.machine.Accel(),
		im.Kernel.Version, time.Since(start).Seconds())
	testkit.OK(t, l.network(t.Context()))
	return l
}

func addrs(v6 bool) (guest, peer netip.Addr) {
	i := 0
	if v6 {
		i = 1
	}
	return guestAddrs[i].Addr(), peerAddrs[i].Addr()
}

func (l *bench) meter(guest, peer netip.AddrPort) (read func() (control.FlowCounts, error), err error) {
	id, err := l.port.AddFlowCounter(control.FlowCounter{Proto: unix.IPPROTO_TCP, Local: guest, Remote: peer})
	if err != nil {
		return nil, err
	}
	return func() (control.FlowCounts, error) {
		c, err := l.port.ReadFlowCounter(id)
		return c, errors.Join(err, l.port.DelFlowCounter(id))
	}, nil
}

// placed checks d, the counters of one direction: at least size bytes of payload in the GPU's file, or, without onGPU,
// in host memory, and none in another place.
func (j *judge) placed(d control.DirCounters, size uint64, onGPU bool) {
	gpu, host, where := d.GPUFileBytes, d.HostBytes, "in the GPU's file (file-level count)"
	if !onGPU {
		gpu, host, where = host, gpu, "in host memory"
	}
	j.check(gpu >= size && host == 0 && d.DeviceBytes == 0 && d.BouncedBytes == 0,
		"meter: %d payload bytes %s, of %d; %d elsewhere; %d came again", gpu, where, size, host, d.RetransBytes)
}
