package guests

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

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// side is a NIC of the gve guest, its GPU, and its stream.
type side struct {
	device  string // for devmem -f
	pattern int    // for devmem -v
	bytes   uint64
	port    *lab.Port
	gpu     *lab.GPUMemory
	before  control.PortCounters
	conn    devmem.Conn                         // the peer's end of the stream
	again   func(*testing.T) control.FlowCounts // reads the peer NIC's flow counter of the stream
}

// twoModels receives and sends two streams at the same time: each must be counted by its own NIC, and a received one
// must lie in its own GPU.
func (w *guestLab) twoModels(t *testing.T) {
	gpus := w.lab.Machine(gveGuest).GPUs
	sides := []*side{
		{device: "eth0", pattern: 7, bytes: 6 << 20, port: w.ports[gvePort], gpu: gpus[0]},
		{device: "virtio", pattern: 9, bytes: 4 << 20, port: w.ports[oursPort], gpu: gpus[1]},
	}
	peer, to := w.ports[peerPort], w.ports[peerPort].Addr4.Addr()

	w.run(t, "receive", func(ctx context.Context, t *testing.T) {
		count(sides)
		tools := start(ctx, w.gve, sides, func(s *side) []string {
			return []string{"recv", "-f", s.device, "-s", s.port.Addr4.String(), "-p", "5201",
				"-v", fmt.Sprint(s.pattern), "-L"}
		})
		for i, s := range sides {
			from := netip.AddrPortFrom(to, uint16(6201+i))
			s.meter(t, peer, from, 5201)
			s.dial(ctx, t, w.peer, from)
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
			s.counted(t, "received", s.since().Rx, s.again(t).Tx)
		}
		for i, s := range sides {
			other := sides[1-i]
			if native, foreign := s.found(t, s.pattern), s.found(t, other.pattern); native == 0 || foreign != 0 {
				t.Errorf("GPU %d: %d pieces of its own stream, %d of the other's", i, native, foreign)
			}
		}
	})
	w.run(t, "send", func(ctx context.Context, t *testing.T) {
		count(sides)
		var ls []devmem.Listener
		for i := range sides {
			ln := testkit.Must(w.peer.Listen(netip.AddrPortFrom(to, uint16(5301+i))))(t)
			defer ln.Close()
			defer context.AfterFunc(ctx, func() { _ = ln.Close() })() // a tool that never connects must not block
			ls = append(ls, ln)
			sides[i].meter(t, peer, ln.Addr().(*net.TCPAddr).AddrPort(), uint16(5301+i)) // devmem uses the same port number
		}
		i := -1
		tools := start(ctx, w.gve, sides, func(s *side) []string {
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
			s.counted(t, "sent", s.since().Tx, s.again(t).Rx)
		}
	})
}

type tools struct {
	eg   errgroup.Group
	all  []*side
	ends []agent.ExecResult
}

func start(ctx context.Context, g *machine.Guest, sides []*side, args func(*side) []string) *tools {
	x := &tools{all: sides, ends: make([]agent.ExecResult, len(sides))}
	for i, s := range sides {
		a := append([]string{"/bin/devmem"}, args(s)...)
		x.eg.Go(func() (err error) { x.ends[i], err = agent.Run.Call(ctx, g.Agent(), agent.Exec{Args: a}); return err })
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

func (s *side) dial(ctx context.Context, t *testing.T, peer *stack.Stack, from netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
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

// lockstep moves a chunk of each stream in turn, so all run until the shortest has ended.
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

// fill writes the pattern from off on: the bytes 1 to N-1 and a newline, repeated, where N is s.pattern.
func (s *side) fill(b []byte, off uint64) {
	for i := range b {
		if b[i] = byte((off + uint64(i) + 1) % uint64(s.pattern)); b[i] == 0 {
			b[i] = '\n'
		}
	}
}

// meter adds a flow counter at the peer's NIC. An emulated guest may retransmit bytes that were not lost; only a flow
// counter tells how many.
func (s *side) meter(t *testing.T, peer *lab.Port, local netip.AddrPort, port uint16) {
	t.Helper()
	id := testkit.Must(peer.NIC().AddFlowCounter(control.FlowCounter{Proto: 6, Local: local,
		Remote: netip.AddrPortFrom(s.port.Addr4.Addr(), port)}))(t)
	s.again = func(t *testing.T) control.FlowCounts {
		t.Helper()
		return testkit.Must(peer.NIC().ReadFlowCounter(id))(t)
	}
}

func count(sides []*side) {
	for _, s := range sides {
		s.before, _ = s.port.NIC().PortCounters()
	}
}

func (s *side) since() control.PortCounters {
	c, _ := s.port.NIC().PortCounters()
	c.Rx, c.Tx = minus(c.Rx, s.before.Rx), minus(c.Tx, s.before.Tx)
	return c
}

// counted checks that all payload was in registered memory of the only GPU that the NIC can address.
func (s *side) counted(t *testing.T, what string, c, peer control.DirCounters) {
	t.Helper()
	if peer.Packets == 0 || c.DeviceBytes-peer.RetransBytes != s.bytes ||
		c.GPUFileBytes != 0 || c.HostBytes != 0 || c.BouncedBytes != 0 {
		t.Errorf("%s %s: %d bytes: %+v, at the peer %+v", s.device, what, s.bytes, c, peer)
	}
}

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
			i := bytes.IndexByte(want[:pattern], b[p])
			if i >= 0 && bytes.Equal(b[p:p+piece], want[i:i+piece]) {
				n++
			}
		}
	}
	return n
}
