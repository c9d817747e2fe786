package machines_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/driver"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/machines"
	"vnic.dev/vnic/lab/machines/machinetest"
	"vnic.dev/vnic/stack"
)

// side is a NIC of the guest with two, its GPU and the stream that goes over it.
type side struct {
	device  string // for devmem -f
	pattern int    // for devmem -v: another on each
	bytes   uint64
	port    *lab.Port
	gpu     *lab.GPUMemory
	conn    devmem.Conn                         // the peer's end
	again   func(*testing.T) control.FlowCounts // of the stream, as the peer's NIC saw it
}

// A guest has a gve NIC under its kernel's driver and a virtio NIC under ours, and a GPU behind
// each. Streams of device memory run over both at once, first to the guest, then from it; each is
// counted on its own NIC and lies in its own GPU.
func TestGuestWithTwoModelsAndTwoGPUs(t *testing.T) {
	im := machinetest.Images(t, []string{lab.GVE, lab.Virtio}, guestimages.Options{Applets: []string{"devmem"}})
	l := machinetest.Lab(t, lab.Description{Guests: []lab.Guest{
		{Name: "two", NICs: []lab.NIC{{Model: lab.GVE, GPUs: []int{0}}, {Model: lab.Virtio, GPUs: []int{1}}},
			GPUs: []lab.GPU{{Memory: 128 << 20}, {Memory: 128 << 20}}},
		{Name: "peer", NICs: []lab.NIC{{Model: lab.Virtio}}},
	}}, nil)
	peer := stackOf(t, l.Port(2))
	g := machinetest.Boot(t, im, l.Machine(0), machines.Config{RAMSize: 256 << 20})
	gpus := l.Machine(0).GPUs
	sides := []*side{
		{device: "eth0", pattern: 7, bytes: 6 << 20, port: l.Port(0), gpu: gpus[0]},
		{device: "virtio", pattern: 9, bytes: 4 << 20, port: l.Port(1), gpu: gpus[1]},
	}
	to := l.Port(2).Addr4.Addr()

	t.Run("receive", func(t *testing.T) {
		tools := start(t, g, sides, func(s *side) []string {
			return []string{"recv", "-f", s.device, "-s", s.port.Addr4.String(), "-p", "5201",
				"-v", fmt.Sprint(s.pattern), "-L"}
		})
		for i, s := range sides {
			from := netip.AddrPortFrom(to, uint16(6201+i))
			s.meter(t, l.Port(2), from, 5201)
			s.dial(t, peer, from)
		}
		testkit.NoError(t, lockstep(sides, func(s *side, b []byte) error { _, err := s.conn.Write(b); return err }))
		for _, s := range sides {
			testkit.OK(t, s.conn.Close())
		}
		tools.wait(t, func(s *side, r agent.ExecResult) bool {
			return strings.Contains(r.Stdout, "Validated buffer") &&
				strings.Contains(r.Stderr, fmt.Sprintf("total_received=%d\n", s.bytes)) &&
				strings.Contains(r.Stderr, "linear_received=0\n")
		})
		for _, s := range sides {
			c, _ := s.port.NIC().PortCounters()
			s.counted(t, "received", c.Rx, s.again(t).Tx)
		}
		for i, s := range sides {
			other := sides[1-i]
			if own, foreign := s.found(t, s.pattern), s.found(t, other.pattern); own == 0 || foreign != 0 {
				t.Errorf("GPU %d: %d pieces of its own stream, %d of the other's", i, own, foreign)
			}
		}
	})
	t.Run("send", func(t *testing.T) {
		var ls []devmem.Listener
		for i := range sides {
			ln := testkit.Must(peer.Listen(netip.AddrPortFrom(to, uint16(5301+i))))(t)
			defer ln.Close()
			ls = append(ls, ln)
			sides[i].meter(t, l.Port(2), ln.Addr().(*net.TCPAddr).AddrPort(), uint16(5301+i)) // devmem's own port is the same
		}
		i := -1
		tools := start(t, g, sides, func(s *side) []string {
			i++
			return []string{"send", "-f", s.device, "-s", to.String(), "-c", s.port.Addr4.String(),
				"-p", fmt.Sprint(5301 + i), "-v", fmt.Sprint(s.pattern), "-b", fmt.Sprint(s.bytes)}
		})
		for i, s := range sides {
			c := testkit.Must(ls[i].AcceptConn())(t)
			defer c.Close()
			s.conn = c
			_ = c.SetDeadline(time.Now().Add(time.Minute))
		}
		got := make([]byte, chunk)
		testkit.NoError(t, lockstep(sides, func(s *side, want []byte) error {
			b := got[:len(want)]
			if _, err := io.ReadFull(s.conn, b); err != nil {
				return err
			}
			if string(b) != string(want) {
				return errors.New("bytes are not as sent")
			}
			return nil
		}))
		tools.wait(t, func(*side, agent.ExecResult) bool { return true })
		for _, s := range sides {
			c, _ := s.port.NIC().PortCounters()
			s.counted(t, "sent", c.Tx, s.again(t).Rx)
		}
	})
	testkit.OK(t, g.PowerOff(t.Context()))
}

// stackOf is a guest in this process.
func stackOf(t *testing.T, p *lab.Port) *stack.Stack {
	t.Helper()
	n := testkit.Must(p.InProcess(driver.Options{QueuePairs: 1}))(t)
	// A guest that is emulated is late, and nothing is lost here.
	s, err := stack.New(n, n.Control(), stack.Options{Addresses: []netip.Prefix{p.Addr4, p.Addr6},
		MinRTO: 3 * time.Second})
	if err != nil {
		t.Fatal(errors.Join(err, n.Close()))
	}
	t.Cleanup(func() { testkit.OK(t, s.Close()) })
	return s
}

// tools are devmem programs that run in the guest, one for each side.
type tools struct {
	eg   errgroup.Group
	all  []*side
	ends []agent.ExecResult
}

func start(t *testing.T, g *machines.Guest, sides []*side, args func(*side) []string) *tools {
	x := &tools{all: sides, ends: make([]agent.ExecResult, len(sides))}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	for i, s := range sides {
		a := append([]string{"/bin/devmem"}, args(s)...)
		x.eg.Go(func() error { return g.Agent().Call(ctx, "exec", agent.Exec{Args: a}, &x.ends[i]) })
	}
	return x
}

func (x *tools) wait(t *testing.T, good func(*side, agent.ExecResult) bool) {
	t.Helper()
	testkit.OK(t, x.eg.Wait())
	for i, r := range x.ends {
		if r.Status != 0 || !good(x.all[i], r) {
			t.Errorf("devmem on %s: %+v", x.all[i].device, r)
		}
	}
}

// dial connects as soon as the guest listens.
func (s *side) dial(t *testing.T, peer *stack.Stack, from netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		c, err := peer.Dial(ctx, from, netip.AddrPortFrom(s.port.Addr4.Addr(), 5201))
		if err == nil {
			s.conn = c
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: %v", s.device, err)
		}
	}
}

const chunk = 64 << 10

// lockstep moves a chunk of each stream in turn, so that all are under way until the shortest has
// ended.
func lockstep(sides []*side, move func(*side, []byte) error) error {
	b := make([]byte, chunk)
	for off, more := uint64(0), true; more; off += chunk {
		more = false
		for _, s := range sides {
			if off >= s.bytes {
				continue
			}
			s.fill(b, off)
			if err := move(s, b); err != nil {
				return fmt.Errorf("%s, at %d of %d bytes: %w", s.device, off, s.bytes, err)
			}
			more = true
		}
	}
	return nil
}

// fill writes the side's pattern from an offset of its stream on: the bytes 1 to N-1 and a newline.
func (s *side) fill(b []byte, off uint64) {
	for i := range b {
		if b[i] = byte((off + uint64(i) + 1) % uint64(s.pattern)); b[i] == 0 {
			b[i] = '\n'
		}
	}
}

// meter has the peer's NIC, which lives as long as the test, count the connection from the peer to the guest's port. A
// guest whose timers run late, as an emulated one's do, may send bytes again that nobody lost, and only a flow counter
// tells those from the stream's.
func (s *side) meter(t *testing.T, peer *lab.Port, local netip.AddrPort, port uint16) {
	t.Helper()
	id := testkit.Must(peer.NIC().AddFlowCounter(control.FlowCounter{Proto: 6, Local: local,
		Remote: netip.AddrPortFrom(s.port.Addr4.Addr(), port)}))(t)
	s.again = func(t *testing.T) control.FlowCounts {
		t.Helper()
		return testkit.Must(peer.NIC().ReadFlowCounter(id))(t)
	}
}

// counted holds the NIC's counters against the stream, of which some bytes may have come again: all of its payload in
// registered memory of the only GPU that the NIC can address, and the rest, which is no payload of it, nowhere.
func (s *side) counted(t *testing.T, what string, c, peer control.DirCounters) {
	t.Helper()
	if peer.Packets == 0 || c.DeviceBytes-peer.RetransBytes != s.bytes ||
		c.GPUFileBytes != 0 || c.HostBytes != 0 || c.BouncedBytes != 0 {
		t.Errorf("%s %s: %d bytes: %+v, at the peer %+v", s.device, what, s.bytes, c, peer)
	}
}

// found counts the pages of the side's GPU that begin with a pattern.
func (s *side) found(t *testing.T, pattern int) (n int) {
	t.Helper()
	const page, piece = 4096, 512
	b, want := make([]byte, 1<<20), make([]byte, pattern+piece)
	(&side{pattern: pattern}).fill(want, 0)
	for off := int64(0); off < int64(s.gpu.Size()); off += int64(len(b)) {
		if _, err := s.gpu.File.ReadAt(b, off); err != nil {
			t.Fatal(err)
		}
		for p := 0; p < len(b); p += page {
			at := bytes.IndexByte(want[:pattern], b[p])
			if at >= 0 && bytes.Equal(b[p:p+piece], want[at:at+piece]) {
				n++
			}
		}
	}
	return n
}
