package collective_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/collective"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/engine"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

const (
	data    = 4 << 20
	pool    = 4 << 20
	scratch = 4 << 20
)

// member is a rank over a NIC of vnic.
type member struct {
	port    *lab.Port
	stack   *stack.Stack
	data    devmem.Buffer
	ring    *collective.Ring
	out, in uint32
}

// newMembers makes members that have joined.
func newMembers(t *testing.T, n int, lossy bool, timeout time.Duration) (*lab.Lab, []*member) {
	t.Helper()
	testkit.LeavesNothing(t)
	d := lab.Uniform(n, lab.NIC{Model: lab.Virtio, QueuePairs: 2}, 16<<20)
	l := testkit.Must(lab.Open(d, lab.Options{Log: labtest.Log(t)}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	list := make([]*member, n)
	confs := make([]collective.Config, n)
	from := func(i int) netip.AddrPort { return netip.AddrPortFrom(l.Port(i).Addr4.Addr(), 5202) }
	to := func(i int) netip.AddrPort { return netip.AddrPortFrom(l.Port(i).Addr4.Addr(), 5201) }
	for i := range list {
		p := l.Port(i)
		nic := testkit.Must(p.InProcess(driver.Options{QueuePairs: 2, HostQueues: 1}))(t)
		o := stack.Options{Addresses: []netip.Prefix{p.Addr4}, RACK: lossy}
		if !lossy { // a busy machine must cause no retransmission
			o.MinRTO = 20 * time.Second
		}
		s := testkit.Must(stack.New(nic, nic.Control(), o))(t)
		t.Cleanup(func() { testkit.OK(t, s.Close()) })
		register := func(off, size uint64) devmem.Buffer { return testkit.Must(s.Register(p.GPU().ID(), off, size))(t) }
		m := &member{port: p, stack: s, data: register(0, data)}
		next, prev := (i+1)%n, (i+n-1)%n
		confs[i] = collective.Config{Rank: i, Ranks: n, Device: s, Memory: engine.New(nic.Control(), nic), GPU: p.GPU().ID(),
			Queue: 1, Pool: register(data, pool), Scratch: register(data+pool, scratch), Listen: to(i), Next: to(next),
			From: from(i), Timeout: timeout}
		m.out = testkit.Must(p.NIC().AddFlowCounter(control.FlowCounter{Proto: 6, Local: from(i), Remote: to(next)}))(t)
		m.in = testkit.Must(p.NIC().AddFlowCounter(control.FlowCounter{Proto: 6, Local: to(i), Remote: from(prev)}))(t)
		list[i] = m
	}
	for _, err := range each(list, func(i int, m *member) (err error) {
		m.ring, err = collective.Join(t.Context(), confs[i])
		return err
	}) {
		testkit.OK(t, err)
	}
	t.Cleanup(func() {
		for _, m := range list {
			_ = m.ring.Close() // the NIC may be gone
		}
	})
	return l, list
}

func each(list []*member, f func(i int, m *member) error) []error {
	errs := make([]error, len(list))
	var work sync.WaitGroup
	for i, m := range list {
		work.Go(func() { errs[i] = f(i, m) })
	}
	work.Wait()
	return errs
}

// traffic counts a flow's payload bytes: in device memory; in host memory; of these the bounced ones, of a GPU that the
// NIC does not reach; and, of all, the retransmitted ones (again).
type traffic struct{ device, host, bounced, again uint64 }

func (m *member) traffic(t *testing.T, id uint32, rx bool) traffic {
	t.Helper()
	c, _ := m.port.NIC().ReadFlowCounter(id)
	d := c.Tx
	if rx {
		d = c.Rx
	}
	return traffic{d.DeviceBytes, d.HostBytes + d.GPUFileBytes, d.BouncedBytes, d.RetransBytes}
}

const helloBytes = 16

// sums performs an all-reduce, and counts the wrong sums at all ranks.
func sums(t *testing.T, list []*member, count int) (wrong int) {
	t.Helper()
	b := make([]byte, 4*count)
	for i, m := range list {
		for k := range count {
			v := uint32(k*7919 + i*104729)
			b[4*k], b[4*k+1], b[4*k+2], b[4*k+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
		}
		testkit.Must(unix.Pwrite(m.port.GPU().GPU.FD(), b, 0))(t)
	}
	for i, err := range each(list, func(_ int, m *member) error {
		return m.ring.AllReduce(t.Context(), devmem.Int32, m.data, 0, uint64(count))
	}) {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	for _, m := range list {
		testkit.Must(unix.Pread(m.port.GPU().GPU.FD(), b, 0))(t)
		for k := range count {
			n := len(list)
			want := uint32(n*k*7919 + n*(n-1)/2*104729)
			if uint32(b[4*k])|uint32(b[4*k+1])<<8|uint32(b[4*k+2])<<16|uint32(b[4*k+3])<<24 != want {
				wrong++
			}
		}
	}
	return wrong
}

// passes returns the bytes that rank i of n sends in an all-reduce of count elements of 4 bytes.
func passes(i, n, count int) (bytes uint64) {
	chunk := func(c int) uint64 {
		k := count / n
		if c%n < count%n {
			k++
		}
		return uint64(4 * k)
	}
	for c := range n {
		bytes += 2 * chunk(c)
	}
	return bytes - chunk(i+1) - chunk(i+2)
}

// Invariant: collective: by the meters of NICs with peer-to-peer, exactly the bytes that a rank
// sends are in device memory on both sides, apart from the greeting.
func TestMeters(t *testing.T) {
	testkit.Slow(t)
	for _, c := range []struct {
		name  string
		ranks int
		set   []string
	}{
		{"2", 2, nil},
		{"3", 3, nil},
		{"4", 4, nil},
		{"one without peer to peer", 3, []string{"nic port1 p2p=off"}},
		{"loss", 3, []string{"link port0 loss=1%", "link port1 loss=1%", "link port2 loss=1%"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, list := newMembers(t, c.ranks, c.name == "loss", testkit.Patience)
			for _, set := range c.set {
				testkit.OK(t, l.Apply(testkit.Must(lab.ParseChange(set))(t)))
			}
			const count = 1e6 + 1
			if wrong := sums(t, list, count); wrong > 0 {
				t.Errorf("%d elements are wrong", wrong)
			}
			for i, m := range list {
				testkit.Eventually(t, fmt.Sprintf("rank %d: what it passes on is counted", i), func() bool {
					x := m.traffic(t, m.out, false)
					return x.device+x.host-x.again == passes(i, c.ranks, count)+helloBytes
				})
				testkit.Eventually(t, fmt.Sprintf("rank %d: what comes is counted", i), func() bool {
					x := m.traffic(t, m.in, true)
					return x.device+x.host-x.again == passes((i+c.ranks-1)%c.ranks, c.ranks, count)+helloBytes
				})
				out, in := m.traffic(t, m.out, false), m.traffic(t, m.in, true)
				t.Logf("rank %d: out %+v, in %+v", i, out, in)
				off, lossy := c.name == "one without peer to peer" && i == 1, c.name == "loss"
				switch {
				case off && (out.bounced != out.host-helloBytes || in.bounced != in.host || in.device != helloBytes),
					!off && (out.bounced > 0 || in.host > 0), !off && !lossy && out.host-helloBytes > out.again,
					lossy && out.again == 0:
					t.Errorf("rank %d: out %+v, in %+v", i, out, in)
				}
			}
		})
	}
}

// Each rank has two NICs that reach one GPU.
//
// Invariant: collective: channels share an operation's elements; each rail carries exactly its
// part.
func TestRails(t *testing.T) {
	testkit.LeavesNothing(t)
	const ranks, rails, count = 3, 2, 100_001
	var d lab.Description
	for i := range ranks {
		below := lab.Slot{Below: "switch"}
		g := lab.Guest{Sockets: []lab.Socket{{Name: "socket"}}, GPUs: []lab.GPU{{Memory: 16 << 20, Slot: below}},
			Switches: []lab.Switch{{Name: "switch", Slot: lab.Slot{Below: "socket"}}}}
		for k := range rails {
			g.NICs = append(g.NICs, lab.NIC{Name: fmt.Sprintf("g%d.nic%d", i, k), Model: lab.Virtio, QueuePairs: 2,
				Slot: below})
		}
		d.Guests = append(d.Guests, g)
	}
	l := testkit.Must(lab.Open(d, lab.Options{Log: labtest.Log(t)}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	port := func(rank, rail int) *lab.Port { return l.Machine(rank).Ports[rail] }
	addr := func(rank, rail int, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(l.Machine(rank % ranks).Ports[rail].Addr4.Addr(), port)
	}
	var channels [ranks][rails]collective.Channel
	var out [ranks][rails]uint32
	var work sync.WaitGroup
	for i := range ranks {
		for k := range rails {
			p := port(i, k)
			nic := testkit.Must(p.InProcess(driver.Options{QueuePairs: 2, HostQueues: 1}))(t)
			s := testkit.Must(stack.New(nic, nic.Control(), stack.Options{Addresses: []netip.Prefix{p.Addr4},
				MinRTO: 20 * time.Second}))(t)
			t.Cleanup(func() { testkit.OK(t, s.Close()) })
			gpu := p.GPUs[0].ID()
			register := func(off, size uint64) devmem.Buffer { return testkit.Must(s.Register(gpu, off, size))(t) }
			buf := uint64(data + k*4<<20) // offset of pool and scratch memory
			out[i][k] = testkit.Must(p.NIC().AddFlowCounter(control.FlowCounter{Proto: 6, Local: addr(i, k, 5202),
				Remote: addr(i+1, k, 5201)}))(t)
			c := collective.Config{Rank: i, Ranks: ranks, Device: s, Memory: engine.New(nic.Control(), nic), GPU: gpu, Queue: 1,
				Pool: register(buf, 2<<20), Scratch: register(buf+2<<20, 2<<20), Listen: addr(i, k, 5201), From: addr(i, k, 5202),
				Next: addr(i+1, k, 5201), Timeout: testkit.Patience}
			channels[i][k].Buffer = register(0, data)
			work.Go(func() {
				var err error
				if channels[i][k].Ring, err = collective.Join(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
	}
	work.Wait()
	var all [ranks]*collective.Channels
	b := make([]byte, 4*count)
	for i := range ranks {
		all[i] = testkit.Must(collective.NewChannels(channels[i][:]...))(t)
		t.Cleanup(func() { testkit.OK(t, all[i].Close()) })
		for k := range count {
			binary.LittleEndian.PutUint32(b[4*k:], uint32(k*7919+i*104729))
		}
		testkit.Must(unix.Pwrite(port(i, 0).GPUs[0].GPU.FD(), b, 0))(t)
	}
	for i := range ranks {
		work.Go(func() {
			if err := all[i].AllReduce(t.Context(), devmem.Int32, 0, count); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	wrong := 0
	for i := range ranks {
		testkit.Must(unix.Pread(port(i, 0).GPUs[0].GPU.FD(), b, 0))(t)
		for k := range count {
			if binary.LittleEndian.Uint32(b[4*k:]) != uint32(ranks*k*7919+ranks*(ranks-1)/2*104729) {
				wrong++
			}
		}
	}
	testkit.Equal(t, "wrong elements", wrong, 0)
	for i := range ranks {
		for k := range rails {
			_, n := collective.Part(k, rails, count)
			testkit.Eventually(t, fmt.Sprintf("rank %d, rail %d: its part is counted", i, k), func() bool {
				c, _ := port(i, k).NIC().ReadFlowCounter(out[i][k])
				x := c.Tx
				return x.DeviceBytes-x.RetransBytes == passes(i, ranks, int(n)) && x.HostBytes == helloBytes
			})
		}
	}
	testkit.ErrorIs(t, testkit.Err(collective.NewChannels()), syscall.EINVAL)
	testkit.ErrorIs(t, testkit.Err(collective.NewChannels(channels[0][0], channels[1][1])), syscall.EINVAL)
	testkit.ErrorIs(t, all[0].AllReduce(t.Context(), 9, 0, 1), syscall.EINVAL)
	testkit.ErrorIs(t, all[0].Broadcast(t.Context(), devmem.Int32, 0, 1, ranks), syscall.EINVAL)
	testkit.ErrorIs(t, all[0].AllReduce(t.Context(), devmem.Int32, 0, data), syscall.EFAULT)
}

// Invariant: collective: if a rank's host is gone, its neighbours name it; the others end too.
func TestHostThatIsGone(t *testing.T) {
	testkit.Slow(t)
	l, list := newMembers(t, 5, false, 4*time.Second)
	testkit.OK(t, l.Apply(testkit.Must(lab.ParseChange("link port2 state=down"))(t)))
	errs := each(list, func(_ int, m *member) error {
		return m.ring.AllReduce(t.Context(), devmem.Int32, m.data, 0, 1000)
	})
	for i, err := range errs {
		t.Logf("rank %d: %v", i, err)
		e, stall := (*collective.Error)(nil), (*devmem.StallError)(nil)
		if !errors.As(err, &e) {
			t.Errorf("rank %d: %v", i, err)
			continue
		}
		switch i {
		case 1, 3:
			if e.Rank != 2 || !errors.As(err, &stall) {
				t.Errorf("rank %d: %v", i, err)
			}
		case 0, 4:
			if errors.As(err, &stall) {
				t.Errorf("rank %d has waited in vain, beside one that is gone: %v", i, err)
			}
		}
	}
}
