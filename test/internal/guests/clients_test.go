package guests

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/collective"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/clienttest"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/engine"
	"vnic.dev/vnic/internal/guestnvme"
	"vnic.dev/vnic/internal/testkit"
)

const (
	fileSize   = 2<<20 + 12345
	exportSize = 1 << 20 // bytes of the NBD server's export
	sums       = 1<<18 + 1

	webPort  = 80
	nbdPort  = 10809
	ringPort = 5201
)

type clientLab struct {
	*guestLab
	file []byte
	nbd  *nbdServer
}

type counts struct{ rx, tx control.DirCounters }

func (c counts) since(was counts) counts {
	return counts{minus(c.rx, was.rx), minus(c.tx, was.tx)}
}

func minus(c, was control.DirCounters) control.DirCounters {
	before := was.All()
	for i, n := range c.All() {
		*n -= *before[i]
	}
	return c
}

// serve starts the web and NBD servers on the peer, and the NVMe/TCP target of the virtio guest's kernel.
func (w *clientLab) serve(t *testing.T) {
	t.Helper()
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	for port, serve := range map[uint16]func(net.Listener){
		webPort: func(l net.Listener) { serveFile(l, w.file) },
		nbdPort: w.nbd.serve,
	} {
		l := testkit.Must(w.peer.Listen(w.addrPort(peerPort, port)))(t)
		t.Cleanup(func() { testkit.OK(t, l.Close()) })
		work.Go(func() { serve(l) })
	}
	testkit.OK(t, guestnvme.Serve(t.Context(), w.virtio.Agent(), guestnvme.Target{NQN: nqn, Disks: []string{diskShared},
		Addrs: []netip.AddrPort{w.addrPort(virtioPort, guestnvme.Port)}}))
	t.Cleanup(func() { testkit.NoError(t, guestnvme.Stop(context.WithoutCancel(t.Context()), w.virtio.Agent())) })
}

// meters reads counters of the gve guest's first NIC: bound has what its last queue, which the jobs bind, received;
// rest has what the other queues received, and what all queues sent.
func (w *clientLab) meters() (bound, rest counts) {
	p := w.ports[gvePort]
	n := p.QueuePairs
	for i := range n - 1 {
		rx, tx := p.NIC().QueueCounters(i)
		rest.rx.Add(rx)
		rest.tx.Add(tx)
	}
	bound.rx, bound.tx = p.NIC().QueueCounters(n - 1)
	rest.tx.Add(bound.tx) // sent bytes of all queues
	bound.tx = control.DirCounters{}
	return bound, rest
}

func (w *clientLab) job(ctx context.Context, t *testing.T, job string, args ...any) (r clienttest.Report, bound,
	rest counts) {
	t.Helper()
	words := []string{"/bin/devmem-clients", job, "-i", "eth0", "-node", "1"}
	for _, a := range args {
		words = append(words, fmt.Sprint(a))
	}
	wasBound, wasOthers := w.meters()
	begin := time.Now()
	out := call(ctx, t, w.gve, words...)
	testkit.OK(t, json.Unmarshal([]byte(out.Stdout), &r))
	bound, rest = w.meters()
	bound, rest = bound.since(wasBound), rest.since(wasOthers)
	t.Logf("%s: %v\n\t%+v\n\tbound queue: rx %+v\n\tothers: rx %+v\n\ttx %+v", job, time.Since(begin), r, bound.rx,
		rest.rx, rest.tx)
	return r, bound, rest
}

// overhead bounds the clients' bytes in host memory: handshakes, requests, heads.
const overhead = 64 << 10

// inGPU checks that a job's payload was in GPU memory. The guest's kernel registers no buffer with the NIC, so the NIC
// counts the payload in GPUFileBytes.
func inGPU(t *testing.T, r clienttest.Report, bound, rest counts) {
	t.Helper()
	if r.Received == 0 || r.HostBytes != 0 {
		t.Errorf("received %d bytes, %d of what was steered in host memory", r.Received, r.HostBytes)
	}
	if x := bound.rx; x.GPUFileBytes < r.Received || x.HostBytes != 0 || x.DeviceBytes != 0 || x.BouncedBytes != 0 {
		t.Errorf("the bound queue has received %+v, the client %d bytes", x, r.Received)
	}
	if x := rest.rx; x.GPUFileBytes != 0 || x.HostBytes > overhead {
		t.Errorf("other queues have received %+v", x)
	}
	if x := rest.tx; x.GPUFileBytes < r.Sent || x.HostBytes > overhead {
		t.Errorf("sent %+v, the client %d bytes", x, r.Sent)
	}
}

func (l *guestLab) clients(t *testing.T) {
	l.lives(t)
	w := &clientLab{guestLab: l, file: make([]byte, fileSize), nbd: &nbdServer{store: make([]byte, exportSize)}}
	gpumem.FillAt(w.file, 1, 0)
	gpumem.FillAt(w.nbd.store, 2, 0)
	w.serve(t)
	w.run(t, "memory", func(ctx context.Context, t *testing.T) {
		r, _, _ := w.job(ctx, t, "memory")
		for _, c := range r.Cases {
			t.Errorf("%s: %q", c.Name, c.Log)
		}
		testkit.Equal(t, "cases passed", r.Passed, len(devmemtest.MemoryCases()))
	})
	url := fmt.Sprintf("http://%v/file", w.addrPort(peerPort, webPort))
	w.run(t, "load", func(ctx context.Context, t *testing.T) {
		r, bound, rest := w.job(ctx, t, "load", "-url", url)
		testkit.Equal(t, "payload", r.Received, fileSize)
		testkit.Equal(t, "digest", r.SHA256, digest(w.file))
		testkit.Equal(t, "gathered", r.Memory.Gathered, fileSize)
		inGPU(t, r, bound, rest)
	})
	w.run(t, "an ordinary socket", func(ctx context.Context, t *testing.T) {
		r, bound, rest := w.job(ctx, t, "plain", "-url", url)
		testkit.Equal(t, "digest", r.SHA256, digest(w.file))
		// The job has taken the last queue out of RSS, so that queue gets no payload.
		if rest.rx.HostBytes < fileSize || rest.rx.GPUFileBytes != 0 || bound.rx.HostBytes+bound.rx.GPUFileBytes != 0 {
			t.Errorf("received %+v, on the other queue %+v", rest.rx, bound.rx)
		}
	})
	w.run(t, "nbd", func(ctx context.Context, t *testing.T) {
		before := w.nbd.content()
		r, bound, rest := w.job(ctx, t, "nbd", "-server", w.addrPort(peerPort, nbdPort), "-name", exportName)
		w.judgeBlocks(t, r, before, w.nbd.content())
		inGPU(t, r, bound, rest)
	})
	w.run(t, "nvme", func(ctx context.Context, t *testing.T) {
		before := w.bytes(t, diskShared, 0, disks[diskShared].size)
		r, bound, rest := w.job(ctx, t, "nvme", "-server", w.addrPort(virtioPort, guestnvme.Port), "-name", nqn)
		w.judgeBlocks(t, r, before, w.bytes(t, diskShared, 0, disks[diskShared].size))
		inGPU(t, r, bound, rest)
		w.kernelReads(ctx, t, r.Written)
	})
	w.run(t, "ring", w.ring)
}

func (w *clientLab) judgeBlocks(t *testing.T, r clienttest.Report, before, after []byte) {
	t.Helper()
	testkit.Equal(t, "digest of what was read", r.SHA256, digest(before))
	testkit.Equal(t, "digest of what the server has", digest(after), r.Written)
	testkit.Equal(t, "read", r.Received, 2*uint64(len(before)))
	testkit.Equal(t, "written", r.Sent, uint64(len(before)))
	if r.Written == r.SHA256 {
		t.Error("what was written is what was there")
	}
}

// kernelReads checks that the kernel's own initiator in the gve guest reads bytes with the digest written, and sees a
// byte that the host changes.
func (w *clientLab) kernelReads(ctx context.Context, t *testing.T, written string) {
	t.Helper()
	a := w.gve.Agent()
	c := testkit.Must(guestnvme.Connect(ctx, a, guestnvme.Connection{Addr: w.addrPort(virtioPort, guestnvme.Port),
		NQN: nqn}))(t)
	all := guestnvme.Range{Device: c.Namespaces[0].Device, Len: disks[diskShared].size}
	read := func() string { return fmt.Sprintf("%x", testkit.Must(guestnvme.Digest(ctx, a, all))(t)) }
	testkit.Equal(t, "digest of what the kernel's initiator reads", read(), written)
	b := w.bytes(t, diskShared, 12345, 1)
	testkit.Must(w.disks[diskShared].WriteAt([]byte{b[0] ^ 1}, 12345))(t)
	if read() == written {
		t.Error("the kernel's initiator does not see a byte that was changed")
	}
	testkit.Must(w.disks[diskShared].WriteAt(b, 12345))(t)
	testkit.OK(t, guestnvme.Disconnect(ctx, a, c.Name))
}

func (w *clientLab) ring(ctx context.Context, t *testing.T) {
	p := w.ports[peerPort]
	gpu := p.GPU()
	register := func(off, size uint64) devmem.Buffer { return testkit.Must(w.peer.Register(gpu.ID(), off, size))(t) }
	data, pool, scratch := register(0, 8<<20), register(8<<20, 4<<20), register(12<<20, 2<<20)
	place := clienttest.Ring{Rank: 1, Ranks: 2, Count: sums, Listen: w.addrPort(peerPort, ringPort),
		Next: w.addrPort(gvePort, ringPort)}
	local := make([]byte, 4*sums)
	for k := range sums {
		binary.LittleEndian.PutUint32(local[4*k:], place.Element(1, k))
	}
	testkit.Must(unix.Pwrite(gpu.GPU.FD(), local, 0))(t)
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- func() (err error) {
			r, err := collective.Join(ctx, collective.Config{Rank: 1, Ranks: 2, Device: w.peer,
				Memory: engine.New(w.nic.Control(), w.nic), GPU: gpu.ID(), Queue: 1, Pool: pool, Scratch: scratch,
				Listen: place.Listen, Next: place.Next})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			return r.AllReduce(ctx, devmem.Int32, data, 0, sums)
		}()
	}()
	defer func() { // also if job ends the test
		cancel()
		<-ended
	}()
	r, bound, rest := w.job(ctx, t, "ring", "-rank", 0, "-ranks", 2, "-listen", place.Next, "-next", place.Listen,
		"-count", strconv.Itoa(sums))
	err := <-ended
	ended <- err
	testkit.OK(t, err)
	got := make([]byte, 4*sums)
	testkit.Must(unix.Pread(gpu.GPU.FD(), got, 0))(t)
	for k := range sums {
		if sum := binary.LittleEndian.Uint32(got[4*k:]); sum != place.Sum(k) {
			t.Fatalf("sum %d is %d, not %d", k, sum, place.Sum(k))
		}
	}
	testkit.Equal(t, "digest of the guest's sums", r.SHA256, digest(got))
	testkit.Equal(t, "the guest has sent", r.Sent, 4*sums)
	inGPU(t, r, bound, rest)
}

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
