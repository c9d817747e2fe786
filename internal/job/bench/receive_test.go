package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// testStream is a connection between two guests' stacks in this process. Work of the receiving stack has the
// label "side: receiver" in a CPU profile.
type testStream struct {
	lab      *lab.Lab
	stacks   [2]*stack.Stack
	from, to devmem.Conn
	tx       devmem.Binding
	f        footprint
	device   bool
	frags    []devmem.Frag
	linear   []byte
	tokens   devmem.Tokens
}

func asReceiver(ctx context.Context, f func() error) (err error) {
	pprof.Do(ctx, pprof.Labels("side", "receiver"), func(context.Context) { err = f() })
	return err
}

func newTestStream(b testing.TB, device bool, f footprint, links lab.Impairment, o stack.Options) *testStream {
	d := lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: gpuQueue + 1, NICOptions: lab.NICOptions{MTU: 1500}},
		uint64(max(f.source, f.pool)))
	d.Impair(links)
	l, err := lab.Open(d, lab.Options{})
	testkit.OK(b, err)
	s := &testStream{lab: l, f: f, device: device, frags: make([]devmem.Frag, 256), linear: make([]byte, chunkLen)}
	ctx := b.Context()
	o.RACK = links.Lossy()
	s.stacks[0], err = newStack(l.Port(0), o)
	testkit.OK(b, err)
	testkit.OK(b, asReceiver(ctx, func() (err error) { s.stacks[1], err = newStack(l.Port(1), o); return err }))
	from, to := s.stacks[0], s.stacks[1]
	addr := netip.AddrPortFrom(l.Port(1).Addr4.Addr(), tcpPort)
	source := testkit.Must(from.Register(l.Port(0).GPU().ID(), 0, uint64(f.source)))(b)
	s.tx = testkit.Must(from.BindTX(source))(b)
	if device {
		pool := testkit.Must(to.Register(l.Port(1).GPU().ID(), 0, uint64(f.pool)))(b)
		testkit.Must(to.BindRX(pool, gpuQueue))(b)
		testkit.Must(to.AddFlow(devmem.Flow{Dst: addr, Queue: gpuQueue}))(b)
	}
	s.from, s.to, err = connect(ctx, from, to, addr)
	testkit.OK(b, err)
	return s
}

func (s *testStream) close() error {
	return errors.Join(s.stacks[0].Close(), s.stacks[1].Close(), s.lab.Close())
}

func (s *testStream) move(ctx context.Context, chunks int) error {
	var g errgroup.Group
	g.Go(func() error {
		for i := range chunks {
			off := uint64(i * chunkLen % s.f.source)
			if n, err := s.from.SendDevmem(s.tx.ID(), []devmem.Range{{Off: off, Len: chunkLen}}); err != nil || n != chunkLen {
				return fmt.Errorf("sending: %d bytes, %w", n, err)
			}
		}
		return nil
	})
	err := asReceiver(ctx, func() error { return s.receive(chunks * chunkLen) })
	return errors.Join(err, g.Wait())
}

func (s *testStream) receive(n int) error {
	if !s.device {
		for n > 0 {
			k, err := io.ReadFull(s.to, s.linear[:min(n, len(s.linear))])
			if err != nil {
				return err
			}
			n -= k
		}
		return nil
	}
	for n > 0 {
		k, nf, _, err := s.to.RecvDevmem(s.frags, s.linear[:min(n, len(s.linear))], 0)
		if err != nil {
			return err
		}
		n -= k
		for _, f := range s.frags[:nf] {
			if f.Kind == devmem.Dmabuf {
				s.tokens.Add(f.Token)
			}
		}
		if err := s.tokens.GiveBack(s.to); err != nil {
			return err
		}
	}
	return nil
}

var receiverProfile = flag.String("receiver-profile", "", "file for the CPU profile of BenchmarkReceiver")

// BenchmarkReceiver measures a stream whose payload arrives in GPU memory (devmem) or in host memory (copy), and is
// sent in frames with 1448 bytes of it or in GSO packets. With -receiver-profile, `go tool pprof -tags` shows the
// receiver's part of the last measured stream's profile.
func BenchmarkReceiver(b *testing.B) {
	for _, size := range []string{"1448", "64k"} {
		for _, mode := range []string{"devmem", "copy"} {
			b.Run(mode+"-"+size, func(b *testing.B) {
				f := footprint{source: sourceHot, pool: 64 << 20}
				s := newTestStream(b, mode == "devmem", f, lab.Impairment{}, stack.Options{NoGSO: size == "1448"})
				testkit.OK(b, s.move(b.Context(), 16))
				b.SetBytes(chunkLen)
				if *receiverProfile != "" { // not -cpuprofile, which leaves its file open: testkit.Main may report that
					f, err := os.Create(*receiverProfile)
					testkit.OK(b, err)
					testkit.OK(b, pprof.StartCPUProfile(f))
					defer func() {
						pprof.StopCPUProfile()
						testkit.OK(b, f.Close())
					}()
				}
				b.ResetTimer()
				testkit.OK(b, s.move(b.Context(), b.N))
				b.StopTimer()
				testkit.OK(b, s.close())
			})
		}
	}
}

var lossyPairs = flag.Uint64("lossy-pairs", 15, "pairs of transfers of BenchmarkLossy")

// BenchmarkLossy compares receive coalescing on and off over equal links that lose or reorder frames, and reports
// medians of the ratios of time, segments from the receiver, and retransmissions.
func BenchmarkLossy(b *testing.B) {
	const chunks = 64
	type result struct{ seconds, acks, retransmits float64 }
	for name, links := range map[string]lab.Impairment{"loss": {Loss: 0.01}, "reorder": {Reorder: 0.02}} {
		one := func(seed uint64, on bool) (r result) {
			links.Seed = seed
			s := newTestStream(b, true, hot, links, stack.Options{NoGSO: true})
			defer func() { testkit.OK(b, s.close()) }()
			s.lab.Port(1).NIC().SetCoalescing(on)
			before := s.stacks[1].Stats().TxSegments
			start := time.Now()
			testkit.OK(b, s.move(b.Context(), chunks))
			r.seconds = time.Since(start).Seconds()
			r.acks = float64(s.stacks[1].Stats().TxSegments - before)
			r.retransmits = float64(s.stacks[0].Stats().Retransmits)
			return r
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				ratios := map[string][]float64{}
				for i := range *lossyPairs {
					first := i%2 == 0
					a, z := one(i+1, first), one(i+1, !first)
					on, off := a, z
					if !first {
						on, off = z, a
					}
					for what, v := range map[string][2]float64{"time": {on.seconds, off.seconds},
						"acks": {on.acks, off.acks}, "retransmits": {on.retransmits, off.retransmits}} {
						ratios[what] = append(ratios[what], (v[0]+1e-9)/(v[1]+1e-9))
					}
				}
				for what, list := range ratios {
					b.ReportMetric(summarize(list).Median, "on/off-"+what)
					b.Logf("ratios %s %s: %s", name, what, strings.Trim(fmt.Sprintf("%.4f", list), "[]"))
				}
			}
		})
	}
}
