package lab_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/rdma"
	"vnic.dev/vnic/internal/testkit"
)

// verbs is a guest with a queue pair to the other guest.
type verbs struct {
	port *lab.Port
	nic  *driver.NIC
	dev  *rdma.Device
	mr   *rdma.MR
	qp   *rdma.QP
	peer rdma.Peer
	got  udpCounter
}

const rdmaMemory = 8 << 20

// newVerbs makes two guests with a queue pair to each other.
func newVerbs(t testing.TB, mtu uint16, im lab.Impairment) (l *lab.Lab, ends [2]*verbs) {
	t.Helper()
	testkit.LeavesNothing(t)
	d := lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: 2, NICOptions: lab.NICOptions{MTU: 9000}}, rdmaMemory)
	d.Impair(im)
	l = testkit.Must(lab.Open(d, lab.Options{Log: labtest.Log(t)}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	ctx := t.Context()
	for i := range ends {
		v := &verbs{port: l.Port(i)}
		ends[i] = v
		v.nic = testkit.Must(v.port.InProcess(driver.Options{QueuePairs: 2, HostQueues: 1}))(t)
		t.Cleanup(func() { testkit.OK(t, v.nic.Close()) })
		v.got.more = make(chan struct{}, 1)
		testkit.OK(t, v.nic.Start(&v.got))
		buffer := testkit.Must(v.nic.Control().RegisterBuffer(ctx, uint16(v.port.GPU().ID()), 0, rdmaMemory))(t)
		v.dev = testkit.Must(rdma.Open(v.nic.Control()))(t)
		pd := testkit.Must(v.dev.AllocPD())(t)
		v.mr = testkit.Must(pd.RegisterBuffer(buffer, 0, rdmaMemory, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead))(t)
		cq := testkit.Must(v.dev.NewCQ(256))(t)
		v.qp = testkit.Must(pd.NewQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 64, MaxRecv: 16}))(t)
	}
	a, b := net.Pipe()
	var work sync.WaitGroup
	for i, c := range []net.Conn{a, b} {
		v := ends[i]
		work.Go(func() {
			p, err := rdma.Exchange(ctx, c, v.qp, rdma.Ends{Addr: v.port.Addr4.Addr(), MAC: v.port.MAC, MTU: mtu,
				Offer: v.mr.Remote()})
			v.peer = p
			testkit.NoError(t, err)
		})
	}
	work.Wait()
	t.Cleanup(func() { // closes the RDMA devices before their drivers
		for _, v := range ends {
			testkit.NoError(t, v.dev.Close())
		}
	})
	return l, ends
}

// write and read access the memory of the port's GPU.
func (v *verbs) write(t testing.TB, b []byte, off int64) {
	testkit.Must(unix.Pwrite(v.port.GPU().GPU.FD(), b, off))(t)
}

func (v *verbs) read(t testing.TB, n int, off int64) []byte {
	b := make([]byte, n)
	testkit.Must(unix.Pread(v.port.GPU().GPU.FD(), b, off))(t)
	return b
}

// move writes a quarter of a GPU's memory from a to b (Put), and reads as much from b to a (Get).
func move(t testing.TB, a, b *verbs, seed byte) {
	t.Helper()
	const n = rdmaMemory / 4
	x, y := make([]byte, n), make([]byte, n)
	for i := range x {
		x[i], y[i] = byte(i*7)^byte(i>>11)^seed, byte(i*5)^byte(i>>9)+seed
	}
	a.write(t, x, 0)
	b.write(t, y, 2*n)
	to, from := testkit.Must(a.peer.MR.Part(n, n))(t), testkit.Must(a.peer.MR.Part(2*n, n))(t)
	c := testkit.Must(rdma.Put(t.Context(), a.qp, a.mr.Part(0, n), to, rdma.TransferOptions{}))(t)
	testkit.Equal(t, "bytes put", c.Bytes, n)
	c = testkit.Must(rdma.Get(t.Context(), a.qp, a.mr.Part(3*n, n), from, rdma.TransferOptions{}))(t)
	testkit.Equal(t, "bytes got", c.Bytes, n)
	if !bytes.Equal(b.read(t, n, n), x) || !bytes.Equal(a.read(t, n, 3*n), y) {
		t.Fatal("wrong bytes")
	}
}

// Invariant: nic/rdma: Between GPUs of two NICs both ends count all bytes as device memory, and
// without P2P as bounced through host memory.
func TestRDMABetweenGPUs(t *testing.T) {
	_, ends := newVerbs(t, 4096, lab.Impairment{})
	a, b := ends[0], ends[1]
	const n = rdmaMemory / 4
	var before [2]control.RDMAPortCounts
	for i, p2p := range []bool{true, false, true} {
		a.port.NIC().SetP2P(p2p)
		b.port.NIC().SetP2P(p2p || i == 2)
		move(t, a, b, byte(i))
		for j, v := range ends {
			c := testkit.Must(v.dev.Counts(t.Context()))(t)
			was := before[j]
			before[j] = c
			for k, d := range [][2]control.RDMACounts{{c.Out, was.Out}, {c.In, was.In}} {
				device, host := d[0].DeviceBytes-d[1].DeviceBytes, d[0].HostBytes-d[1].HostBytes
				bounced, file := d[0].BouncedBytes-d[1].BouncedBytes, d[0].GPUFileBytes-d[1].GPUFileBytes
				again := d[0].AgainBytes - d[1].AgainBytes
				want := uint64(2 * n)
				if (k == 0) != (j == 0) { // a requests both transfers: a counts them as Out, b as In
					want = 0
				}
				if again > 0 { // on a busy machine bytes may be sent again, and count again
					want = device + host
				}
				if p2p && (device != want || host+bounced+file != 0) || !p2p && (bounced != want || host != want ||
					device+file != 0) {
					t.Errorf("P2P %v, end %d, direction %d: device %d, host %d, bounced %d, file %d; %d moved", p2p, j, k, device,
						host, bounced,
						file, want)
				}
			}
			if c.ICRC+c.Unknown+c.Malformed != 0 {
				t.Errorf("end %d: %+v", j, c)
			}
		}
	}
}

func TestRDMAOnALossyLink(t *testing.T) {
	_, ends := newVerbs(t, 1024, lab.Impairment{Loss: 0.01, Reorder: 0.002, Duplicate: 0.002, Corrupt: 0.002, Seed: 7})
	move(t, ends[0], ends[1], 3)
	c := testkit.Must(ends[0].dev.Counts(t.Context()))(t)
	if c.Out.AgainPackets == 0 {
		t.Error("nothing was lost")
	}
	t.Logf("%+v", c)
}

// udpCounter records the numbers of received datagrams to UDP port 9, and counts received datagrams to RoCEv2's port.
type udpCounter struct {
	mu       sync.Mutex
	ordinary []uint32
	roce     int
	more     chan struct{}
}

func (u *udpCounter) Receive(frames []driver.RxFrame) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, f := range frames {
		if len(f.Header) < 46 || f.Header[12] != 8 || f.Header[13] != 0 || f.Header[23] != 17 {
			continue
		}
		switch binary.BigEndian.Uint16(f.Header[36:]) {
		case 9:
			u.ordinary = append(u.ordinary, binary.BigEndian.Uint32(f.Header[42:]))
		case 4791:
			u.roce++
		}
	}
	u.wake()
}

func (u *udpCounter) wake() {
	select {
	case u.more <- struct{}{}:
	default:
	}
}

func (u *udpCounter) Completed(int, []uint64) { u.wake() }
func (u *udpCounter) Wake()                   {}

func (v *verbs) udp(to *verbs, port uint16, number uint32) driver.TxFrame {
	h := make([]byte, 42+64)
	copy(h, to.port.MAC[:])
	copy(h[6:], v.port.MAC[:])
	copy(h[12:], []byte{8, 0, 0x45, 0, 0, byte(len(h) - 14), 0, 0, 0, 0, 64, 17})
	src, dst := v.port.Addr4.Addr().As4(), to.port.Addr4.Addr().As4()
	copy(h[26:], src[:])
	copy(h[30:], dst[:])
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	binary.BigEndian.PutUint16(h[24:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(h[34:], 1000)
	binary.BigEndian.PutUint16(h[36:], port)
	binary.BigEndian.PutUint16(h[38:], uint16(len(h)-34))
	binary.BigEndian.PutUint32(h[42:], number)
	return driver.TxFrame{Header: h}
}

// Datagrams to port 9 that are sent during RDMA reach a receive queue in order. With a queue pair, the NIC keeps
// datagrams to RoCEv2's port from the receive queues.
func TestRDMABesideUDP(t *testing.T) {
	_, ends := newVerbs(t, 1024, lab.Impairment{})
	a, b := ends[0], ends[1]
	const rounds, batch = 50, 8
	var work sync.WaitGroup
	work.Go(func() { move(t, a, b, 1) })
	before := testkit.Must(b.dev.Counts(t.Context()))(t)
	for round := range rounds {
		var frames []driver.TxFrame
		for i := range batch {
			frames = append(frames, a.udp(b, 9, uint32(round*batch+i)))
			if i%2 == 0 { // not a valid RoCEv2 packet
				frames = append(frames, a.udp(b, 4791, uint32(i)))
			}
		}
		for len(frames) > 0 {
			k := testkit.Must(a.nic.Transmit(0, frames))(t)
			if frames = frames[k:]; len(frames) > 0 {
				<-a.got.more
			}
		}
		b.got.until(t, func() bool { return len(b.got.ordinary) == (round+1)*batch })
	}
	work.Wait()
	b.got.mu.Lock()
	for i, n := range b.got.ordinary {
		if n != uint32(i) {
			t.Fatalf("datagram %d is number %d", i, n)
		}
	}
	testkit.Equal(t, "datagrams of RoCEv2 in a receive queue", b.got.roce, 0)
	b.got.mu.Unlock()
	c := testkit.Must(b.dev.Counts(t.Context()))(t)
	testkit.Equal(t, "counted", c.Unknown+c.Malformed+c.ICRC-before.Unknown-before.Malformed-before.ICRC, rounds*batch/2)

	// Without a queue pair, datagrams to RoCEv2's port reach a receive queue.
	testkit.OK(t, b.qp.Close())
	testkit.Must(a.nic.Transmit(0, []driver.TxFrame{a.udp(b, 4791, 1)}))(t)
	b.got.until(t, func() bool { return b.got.roce == 1 })
}

func (u *udpCounter) until(t testing.TB, f func() bool) {
	t.Helper()
	testkit.Eventually(t, "datagrams", func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return f()
	})
}

// A transfer ends with an error when the peer closes its queue pair.
func TestRDMAWhenThePeerResets(t *testing.T) {
	testkit.Slow(t)
	_, ends := newVerbs(t, 1024, lab.Impairment{})
	a, b := ends[0], ends[1]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		for {
			if _, err := rdma.Put(ctx, a.qp, a.mr.Part(0, rdmaMemory/2), a.peer.MR, rdma.TransferOptions{}); err != nil {
				failed <- err
				return
			}
		}
	}()
	testkit.Eventually(t, "bytes", func() bool { return testkit.Must(b.dev.Counts(t.Context()))(t).In.DeviceBytes > 0 })
	testkit.OK(t, b.qp.Close())
	if err := <-failed; err == nil {
		t.Error("a transfer to a closed queue pair succeeds")
	} else {
		t.Log(err)
	}
}

// A NIC whose RDMA is suspended, as after the end of its guest, does not respond, and counts no received packets.
func TestRDMAOfAGuestThatIsGone(t *testing.T) {
	testkit.Slow(t)
	l, ends := newVerbs(t, 1024, lab.Impairment{})
	a, b := ends[0], ends[1]
	put := func() error {
		_, err := rdma.Put(t.Context(), a.qp, a.mr.Part(0, rdmaMemory/2), a.peer.MR, rdma.TransferOptions{})
		return err
	}
	testkit.OK(t, put())
	l.Port(1).NIC().SuspendRDMA(true)
	before := testkit.Must(b.dev.Counts(t.Context()))(t)
	err := put()
	var wc *rdma.WCError
	if !errors.As(err, &wc) || wc.WC.Status != control.WCRetriesExceeded {
		t.Errorf("%v", err)
	}
	if now := testkit.Must(b.dev.Counts(t.Context()))(t); now.In != before.In {
		t.Errorf("%+v, and before %+v", now.In, before.In)
	}
}

// BenchmarkRDMA moves bytes between two GPUs.
func BenchmarkRDMA(b *testing.B) {
	for _, mtu := range []uint16{1024, 4096} {
		for _, size := range []uint32{64 << 10, 1 << 20} {
			for _, get := range []bool{false, true} {
				name := "WRITE"
				if get {
					name = "READ"
				}
				b.Run(fmt.Sprintf("%s/%dK/mtu%d", name, size>>10, mtu), func(b *testing.B) {
					_, ends := newVerbs(b, mtu, lab.Impairment{})
					a := ends[0]
					const n = rdmaMemory / 2
					part := testkit.Must(a.peer.MR.Part(0, n))(b)
					b.SetBytes(n)
					b.ResetTimer()
					for range b.N {
						o := rdma.TransferOptions{Size: size, Window: 16}
						var err error
						if get {
							_, err = rdma.Get(b.Context(), a.qp, a.mr.Part(n, n), part, o)
						} else {
							_, err = rdma.Put(b.Context(), a.qp, a.mr.Part(n, n), part, o)
						}
						testkit.OK(b, err)
					}
				})
			}
		}
	}
}
