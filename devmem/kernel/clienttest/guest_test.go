package clienttest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/collective"
	"vnic.dev/vnic/control"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/devmemtest"
	"vnic.dev/vnic/devmem/engine"
	"vnic.dev/vnic/driver"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/guestnet"
	"vnic.dev/vnic/guest-images/guestnvme"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/machines"
	"vnic.dev/vnic/lab/machines/machinetest"
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/stack"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	program = "vnic.dev/vnic/devmem/kernel/clienttest/devmem-clients"
	nqn     = "nqn.2026-01.dev.vnic:disk"

	fileSize = 2<<20 + 12345
	diskSize = 1 << 20
	sums     = 1<<18 + 1

	webPort  = 80
	nbdPort  = 10809
	ringPort = 5201
)

// Guests of the lab.
const (
	client = iota // runs the program, on its kernel's gve
	peer          // is this process: our driver and stack
	target        // is the kernel's NVMe/TCP target
)

// world is the lab, and what its guests serve.
type world struct {
	lab    *lab.Lab
	client *agent.Client
	target *agent.Client
	addr   [3]netip.Addr

	nic   *driver.NIC // the peer's
	stack *stack.Stack

	file []byte
	nbd  *nbdServer
	disk *os.File // the target's
}

func newWorld(t *testing.T) *world {
	t.Helper()
	targetModules := append(slices.Clone(guestnvme.TargetModules), machines.SoftwareFor(lab.Virtio).Driver)
	gve := machines.SoftwareFor(lab.GVE).Modules
	im := machinetest.Images(t, []string{lab.GVE, lab.Virtio}, guestimages.Options{
		Modules: slices.Concat(targetModules, gve),
		Files:   map[string]string{"bin/devmem-clients": machinetest.Program(t, program)}})
	w := &world{file: make([]byte, fileSize), nbd: &nbdServer{store: make([]byte, diskSize)}}
	fill(w.file, 1)
	fill(w.nbd.store, 2)
	w.disk = testkit.Must(qemu.NewMemory("disk", diskSize))(t)
	t.Cleanup(func() { testkit.OK(t, w.disk.Close()) })
	blocks := make([]byte, diskSize)
	fill(blocks, 3)
	testkit.Must(w.disk.WriteAt(blocks, 0))(t)

	w.lab = machinetest.Lab(t, lab.Description{Guests: []lab.Guest{
		// Of 64 MiB the guest's kernel now and then leaves less than is wanted here.
		client: {NICs: []lab.NIC{{Model: lab.GVE}}, GPUs: []lab.GPU{{Memory: 128 << 20}}},
		peer:   {NICs: []lab.NIC{{Model: lab.Virtio, QueuePairs: 2}}, GPUs: []lab.GPU{{Memory: 16 << 20}}},
		target: {NICs: []lab.NIC{{Model: lab.Virtio}}},
	}}, nil)
	for i := range w.addr {
		w.addr[i] = w.lab.Port(i).Addr4.Addr()
	}
	w.start(t)
	const limit = 5 * time.Minute
	guests := machinetest.BootAll(t, im,
		machinetest.Guest{Machine: w.lab.Machine(client), Config: machines.Config{Name: "client", RAMSize: 384 << 20,
			Accel: qemu.AccelTCG, TimeLimit: limit, Agent: agent.Config{Modules: gve}}},
		machinetest.Guest{Machine: w.lab.Machine(target), Config: machines.Config{Name: "target", RAMSize: 256 << 20,
			Accel: qemu.AccelTCG, TimeLimit: limit, Agent: agent.Config{Modules: targetModules},
			Disks: []qemu.Disk{{File: w.disk, Serial: "disk"}}}})
	w.client, w.target = guests[0].Agent(), guests[1].Agent()
	for i, c := range map[int]*agent.Client{client: w.client, target: w.target} {
		p := w.lab.Port(i)
		r, err := guestnet.Apply(t.Context(), c, guestnet.Config{Interfaces: []guestnet.Interface{{
			MAC: net.HardwareAddr(p.MAC[:]).String(), MTU: p.MTU, Addrs: []netip.Prefix{p.Addr4}}}})
		if err != nil || r.NotReady != "" {
			t.Fatal(i, r.NotReady, err)
		}
	}
	testkit.OK(t, guestnvme.Serve(t.Context(), w.target, guestnvme.Target{NQN: nqn, Disks: []string{"disk"},
		Addrs: []netip.AddrPort{w.at(target, guestnvme.Port)}}))
	return w
}

// start starts the peer, and its servers.
func (w *world) start(t *testing.T) {
	t.Helper()
	p := w.lab.Port(peer)
	w.nic = testkit.Must(p.InProcess(driver.Options{QueuePairs: 2, HostQueues: 1}))(t)
	s, err := stack.New(w.nic, w.nic.Control(), stack.Options{Addresses: []netip.Prefix{p.Addr4}, MTU: p.MTU})
	if err != nil {
		t.Fatal(errors.Join(err, w.nic.Close()))
	}
	w.stack = s
	var work sync.WaitGroup
	t.Cleanup(func() {
		testkit.OK(t, s.Close())
		work.Wait()
	})
	for port, serve := range map[uint16]func(net.Listener){
		webPort: func(l net.Listener) { serveFile(l, w.file) },
		nbdPort: w.nbd.serve,
	} {
		l := testkit.Must(s.Listen(w.at(peer, port)))(t)
		work.Go(func() { serve(l) })
	}
}

// at is a port of a guest.
func (w *world) at(guest int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(w.addr[guest], port)
}

// counts is what a NIC has counted.
type counts struct{ rx, tx control.DirCounters }

func (c counts) since(was counts) counts {
	for _, d := range [][2]*control.DirCounters{{&c.rx, &was.rx}, {&c.tx, &was.tx}} {
		before := d[1].All()
		for i, n := range d[0].All() {
			*n -= *before[i]
		}
	}
	return c
}

// meters reads the client's NIC: the receive queue that its program takes, and all the others.
func (w *world) meters() (bound, others counts) {
	p := w.lab.Port(client)
	n := p.QueuePairs
	for i := range n - 1 {
		rx, tx := p.NIC().QueueCounters(i)
		others.rx.Add(rx)
		others.tx.Add(tx)
	}
	bound.rx, bound.tx = p.NIC().QueueCounters(n - 1)
	others.tx.Add(bound.tx) // whichever queue it is
	bound.tx = control.DirCounters{}
	return bound, others
}

// run runs the program, and gives what it and the NIC say.
func (w *world) run(ctx context.Context, t *testing.T, job string, args ...any) (r Report, bound, others counts) {
	t.Helper()
	words := []string{"/bin/devmem-clients", job, "-i", "eth0", "-node", "1"}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	wasBound, wasOthers := w.meters()
	begin := time.Now()
	var out agent.ExecResult
	testkit.OK(t, w.client.Call(ctx, "exec", agent.Exec{Args: words}, &out))
	if out.Status != 0 {
		t.Fatalf("%s: status %d: %s", job, out.Status, agent.Plain(out.Stderr))
	}
	testkit.OK(t, json.Unmarshal([]byte(out.Stdout), &r))
	bound, others = w.meters()
	bound, others = bound.since(wasBound), others.since(wasOthers)
	t.Logf("%s: %v\n\t%+v\n\tbound queue: rx %+v\n\tothers: rx %+v\n\ttx %+v", job, time.Since(begin), r, bound.rx,
		others.rx, others.tx)
	return r, bound, others
}

// overhead is more than all that clients take and send by host memory: handshakes, requests, heads.
const overhead = 64 << 10

// inGPU wants a client's payload to be in the GPU's memory, by its own count and by the NIC's. The NIC knows nothing of
// the program: what it counts is memory of the GPU that nobody has registered.
func inGPU(t *testing.T, r Report, bound, others counts) {
	t.Helper()
	if r.Received == 0 || r.HostBytes != 0 {
		t.Errorf("received %d bytes, %d of what was steered in host memory", r.Received, r.HostBytes)
	}
	if x := bound.rx; x.GPUFileBytes < r.Received || x.HostBytes != 0 || x.DeviceBytes != 0 || x.BouncedBytes != 0 {
		t.Errorf("the bound queue has received %+v, the client %d bytes", x, r.Received)
	}
	if x := others.rx; x.GPUFileBytes != 0 || x.HostBytes > overhead {
		t.Errorf("other queues have received %+v", x)
	}
	if x := others.tx; x.GPUFileBytes < r.Sent || x.HostBytes > overhead {
		t.Errorf("sent %+v, the client %d bytes", x, r.Sent)
	}
}

// A gve guest has a program that knows none of vnic's drivers, stacks and guest packages: Linux's sockets, a dma-buf
// that it maps, and the clients of package devmem. Their peers are servers and a rank on vnic's stack in this process,
// and Linux's own NVMe/TCP target in another guest.
//
// Invariant: devmem: The clients pass in a guest over Linux's device memory TCP and a mapped dma-buf, without any of
// vnic's code below package devmem; payload lies in the GPU's memory, by the NIC's count.
func TestClientsOverTheKernelAndAMappedDMABuf(t *testing.T) {
	begin := time.Now()
	w := newWorld(t)
	t.Logf("ready after %v", time.Since(begin))
	t.Run("memory", func(t *testing.T) {
		r, _, _ := w.run(t.Context(), t, "memory")
		for _, c := range r.Cases {
			t.Errorf("%s: %q", c.Name, c.Log)
		}
		testkit.Equal(t, "cases passed", r.Passed, len(devmemtest.MemoryCases()))
	})
	url := fmt.Sprintf("http://%v/file", w.at(peer, webPort))
	t.Run("load", func(t *testing.T) {
		r, bound, others := w.run(t.Context(), t, "load", "-url", url)
		testkit.Equal(t, "payload", r.Received, fileSize)
		testkit.Equal(t, "digest", r.SHA256, digest(w.file))
		testkit.Equal(t, "gathered", r.Memory.Gathered, fileSize)
		inGPU(t, r, bound, others)
	})
	t.Run("an ordinary socket", func(t *testing.T) { // the meters show where payload is, not what is hoped for
		r, bound, others := w.run(t.Context(), t, "plain", "-url", url)
		testkit.Equal(t, "digest", r.SHA256, digest(w.file))
		// The client before has left its queue to RSS: late acknowledgments may come by it.
		if others.rx.HostBytes < fileSize || others.rx.GPUFileBytes != 0 || bound.rx.HostBytes+bound.rx.GPUFileBytes != 0 {
			t.Errorf("received %+v, on the other queue %+v", others.rx, bound.rx)
		}
	})
	t.Run("nbd", func(t *testing.T) {
		before := w.nbd.content()
		r, bound, others := w.run(t.Context(), t, "nbd", "-server", w.at(peer, nbdPort), "-name", exportName)
		w.judgeBlocks(t, r, before, w.nbd.content())
		inGPU(t, r, bound, others)
	})
	t.Run("nvme", func(t *testing.T) {
		before, after := make([]byte, diskSize), make([]byte, diskSize)
		testkit.Must(w.disk.ReadAt(before, 0))(t)
		r, bound, others := w.run(t.Context(), t, "nvme", "-server", w.at(target, guestnvme.Port), "-name", nqn)
		testkit.Must(w.disk.ReadAt(after, 0))(t)
		w.judgeBlocks(t, r, before, after)
		inGPU(t, r, bound, others)
	})
	t.Run("ring", func(t *testing.T) { w.ring(t) })
}

// judgeBlocks compares what was read and written with what the server has had before and after.
func (w *world) judgeBlocks(t *testing.T, r Report, before, after []byte) {
	t.Helper()
	testkit.Equal(t, "digest of what was read", r.SHA256, digest(before))
	testkit.Equal(t, "digest of what the server has", digest(after), r.Written)
	testkit.Equal(t, "read", r.Received, 2*diskSize)
	testkit.Equal(t, "written", r.Sent, diskSize)
	if r.Written == r.SHA256 {
		t.Error("what was written is what was there")
	}
}

// ring adds up integers of two ranks: the guest's, over Linux, and one over vnic's stack and engines.
func (w *world) ring(t *testing.T) {
	p := w.lab.Port(peer)
	gpu := p.GPU()
	register := func(off, size uint64) devmem.Buffer { return testkit.Must(w.stack.Register(gpu.ID(), off, size))(t) }
	data, pool, scratch := register(dataOff, dataSize), register(poolOff, poolSize), register(scratchOff, scratchSize)
	place := Ring{Rank: 1, Ranks: 2, Count: sums, Listen: w.at(peer, ringPort), Next: w.at(client, ringPort)}
	mine := make([]byte, 4*sums)
	for k := range sums {
		binary.LittleEndian.PutUint32(mine[4*k:], place.Element(1, k))
	}
	testkit.Must(unix.Pwrite(gpu.GPU.FD(), mine, dataOff))(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- func() (err error) {
			r, err := collective.Join(ctx, collective.Config{Rank: 1, Ranks: 2, Device: w.stack,
				Memory: engine.New(w.nic.Control(), w.nic), GPU: gpu.ID(), Queue: 1, Pool: pool, Scratch: scratch,
				Listen: place.Listen, Next: place.Next})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			return r.AllReduce(ctx, devmem.Int32, data, 0, sums)
		}()
	}()
	defer func() { // also where run ends the test
		cancel()
		<-ended
	}()
	r, bound, others := w.run(ctx, t, "ring", "-rank", 0, "-ranks", 2, "-listen", place.Next, "-next", place.Listen,
		"-count", strconv.Itoa(sums))
	err := <-ended
	ended <- err
	testkit.OK(t, err)
	got := make([]byte, 4*sums)
	testkit.Must(unix.Pread(gpu.GPU.FD(), got, dataOff))(t)
	for k := range sums {
		if sum := binary.LittleEndian.Uint32(got[4*k:]); sum != place.Sum(k) {
			t.Fatalf("sum %d is %d, not %d", k, sum, place.Sum(k))
		}
	}
	testkit.Equal(t, "digest of the guest's sums", r.SHA256, digest(got))
	testkit.Equal(t, "the guest has sent", r.Sent, 4*sums)
	inGPU(t, r, bound, others)
}
