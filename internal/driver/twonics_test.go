package driver

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/virtio"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

type station struct {
	nic *NIC
	gpu *gpumem.GPU
	mac [6]byte
}

func newStation(t testing.TB, sw *wire.Switch, files *dma.Files, i int) *station {
	t.Helper()
	s := &station{mac: [6]byte{2, 0, 0, 0, 0, byte(i + 1)}}
	log := slog.New(slog.DiscardHandler)
	var err error
	s.gpu, err = gpumem.NewGPU(files, i, 8<<20, gpumem.Options{})
	testkit.OK(t, err)
	dev, err := virtio.New(virtio.Config{Files: files, Port: nic.Config{
		Name: string(rune('A' + i)), MAC: s.mac, MTU: 9000, QueuePairs: 2, Log: log,
		GPUs: []nic.GPU{{GPU: s.gpu, Path: pcie.Path{Kind: pcie.Bus}}},
	}})
	testkit.OK(t, err)
	testkit.OK(t, dev.Port().Attach(sw, wire.LinkOptions{}))
	a, b := testkit.SocketPair(t)
	served := make(chan error, 1)
	dma.Go(func() { served <- dev.Serve(context.Background(), b) })
	s.nic, err = Attach(FrontendOptions{Conn: a, MAC: net.HardwareAddr(s.mac[:]), MTU: 9000,
		GPUs: []FrontendGPU{{ID: i, FD: s.gpu.FD(), Size: s.gpu.Size()}}})
	testkit.OK(t, err)
	t.Cleanup(func() {
		checkErr(t, "Close", s.nic.Close(), nil)
		checkErr(t, "Serve", <-served, nil)
		dev.Close()
		s.gpu.Close()
	})
	return s
}

func (s *station) mem(t testing.TB) []byte { return mapped(t, s.gpu.FD(), s.gpu.Size()) }

type sink struct {
	t     testing.TB
	gpu   []byte
	pool  *gpumem.Pool
	check bool
	bytes atomic.Uint64
	want  uint64
	done  chan struct{}
	off   uint64

	probes atomic.Uint64
}

const probeLen = 1 // bytes of payload of the frames with which newPair tests whether frames arrive

func (s *sink) Receive(frames []RxFrame) {
	for i := range frames {
		f := &frames[i]
		if !f.Split || f.PayloadLen == 0 {
			continue
		}
		if f.PayloadLen == probeLen {
			s.pool.Discard([]gpumem.Range{gpumem.Range(f.Payload[0])})
			s.probes.Add(1)
			continue
		}
		for _, p := range f.Payload {
			if b := s.gpu[p.Off : p.Off+uint64(p.Len)]; s.check && gpumem.MatchAt(b, 1, s.off) != len(b) {
				s.t.Errorf("payload at %d differs", s.off)
			}
			s.off += uint64(p.Len)
			s.pool.Discard([]gpumem.Range{gpumem.Range(p)})
		}
		if s.bytes.Add(uint64(f.PayloadLen)) >= s.want && s.want > 0 {
			s.want = 0
			close(s.done)
		}
	}
}
func (s *sink) Completed(int, []uint64) {}
func (s *sink) Wake()                   {}

type source struct{ room, came chan struct{} }

func (s *source) Receive([]RxFrame) { s.came <- struct{}{} }
func (s *source) Completed(int, []uint64) {
	select {
	case s.room <- struct{}{}:
	default:
	}
}
func (s *source) Wake() {}

// pair is two stations (NICs with a driver and a GPU) at a switch. Queue 1 of b is bound and gets TCP to port 2000.
type pair struct {
	a, b *station
	src  *source
	sink *sink
}

func newPair(t testing.TB, want uint64, check bool) *pair {
	t.Helper()
	testkit.CheckFDs(t)
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { sw.Close() })
	files := dma.NewFiles()
	p := &pair{a: newStation(t, sw, files, 0), b: newStation(t, sw, files, 1)}
	ctx := t.Context()
	p.src = &source{room: make(chan struct{}, 1), came: make(chan struct{}, 1)}
	testkit.OK(t, p.a.nic.Start(p.src))
	buf := testkit.Must(p.a.nic.Control().RegisterBuffer(ctx, 0, 0, p.a.gpu.Size()))(t)
	testkit.OK(t, errOf(p.a.nic.Control().BindTx(ctx, buf)))

	pool, err := gpumem.NewPool(1, 0, 4<<20, p.b.nic.Refill, func() {})
	testkit.OK(t, err)
	p.sink = &sink{t: t, pool: pool, done: make(chan struct{}), gpu: p.b.mem(t), want: want, check: check}
	testkit.OK(t, p.b.nic.Start(p.sink))
	ctl := p.b.nic.Control()
	buf, err = ctl.RegisterBuffer(ctx, 1, 0, 4<<20)
	testkit.OK(t, err)
	testkit.OK(t, p.b.nic.BindQueue(1, 1, pool))
	testkit.OK(t, errOf(ctl.BindRx(ctx, buf, 1)))
	testkit.OK(t, errOf(ctl.AddFlow(ctx, control.FlowRule{Proto: 6, DstPort: 2000, Queue: 1})))
	hello := tcpHeader(0)
	copy(hello[0:], p.a.mac[:])
	copy(hello[6:], p.b.mac[:])
	testkit.OK(t, errOf(p.b.nic.Transmit(0, []TxFrame{{Header: hello}})))
	<-p.src.came
	// A ring starts when the device reads its first kick: earlier frames are dropped.
	for p.sink.probes.Load() == 0 {
		f := p.frame(0, probeLen, 8960)
		f.Cookie = 1
		testkit.OK(t, errOf(p.a.nic.Transmit(0, []TxFrame{f})))
		<-p.src.room
	}
	return p
}

func (p *pair) frame(off uint64, n uint32, mss uint16) TxFrame {
	hdr := tcpHeader(int(n))
	copy(hdr[0:], p.b.mac[:])
	copy(hdr[6:], p.a.mac[:])
	f := TxFrame{Header: hdr, Device: []Range{{GPU: 0, Off: off, Len: n}}, NeedsCsum: true, CsumStart: 34, CsumOffset: 16}
	if n > uint32(mss) {
		f.GSOType, f.GSOSize = splitter.GSOTCPv4, mss
	}
	return f
}

func (p *pair) send(t testing.TB, count int, n uint32, mss uint16) {
	frames := make([]TxFrame, (1<<20)/n)
	for i := range frames {
		frames[i] = p.frame(uint64(i)*uint64(n), n, mss)
	}
	for next := 0; count > 0; {
		batch := frames[next:min(len(frames), next+count, next+16)]
		k := testkit.Must(p.a.nic.Transmit(0, batch))(t)
		if k < len(batch) {
			<-p.src.room
		}
		next, count = (next+k)%len(frames), count-k
	}
}

// Invariant: driver: From GPU to GPU over two NICs the receiver counts device memory only.
func TestGPUToGPUOverTwoNICs(t *testing.T) {
	p := newPair(t, 1<<20, true)
	mem := p.a.mem(t)
	gpumem.FillPattern(mem[:1<<20], 1, 0)
	p.send(t, 32, 32<<10, 8960)
	<-p.sink.done
	c := testkit.Must(p.b.nic.Control().PortCounters(t.Context()))(t)
	if c.Rx.DeviceBytes != 1<<20+probeLen*p.sink.probes.Load() || c.Rx.HostBytes != 0 || c.Rx.BouncedBytes != 0 {
		t.Errorf("counters: %+v", c.Rx)
	}
	testkit.NoError(t, p.b.nic.UnbindQueue(1))
	if s := p.sink.pool.Stats(); s.Free != s.Pages {
		t.Errorf("pool: %+v", s)
	}
}

func BenchmarkGPUToGPU(b *testing.B) {
	for _, c := range []struct {
		name string
		n    uint32
		mss  uint16
	}{{"64K", 62720, 8960}, {"8960", 8960, 8960}, {"1448", 1448, 8960}} {
		b.Run(c.name, func(b *testing.B) {
			p := newPair(b, uint64(b.N)*uint64(c.n), false)
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			b.ResetTimer()
			p.send(b, b.N, c.n, c.mss)
			<-p.sink.done
			b.StopTimer()
			took := b.Elapsed() / time.Duration(b.N)
			b.ReportMetric(float64(memcpy(p, b, int(c.n)))/float64(took), "of-memcpy")
			s := p.b.nic.Stats()
			b.ReportMetric(float64(s.Sleeps)/float64(b.N), "sleeps/op")
			b.ReportMetric(float64(s.Rx[1].Kicks)/float64(b.N), "rxkicks/op")
			b.ReportMetric(float64(p.a.nic.Stats().Tx[0].Kicks)/float64(b.N), "txkicks/op")
		})
	}
}

func memcpy(p *pair, b *testing.B, n int) time.Duration {
	src, dst := p.a.mem(b), p.sink.gpu[:4<<20]
	const rounds = 2000
	start := time.Now()
	for i := range rounds {
		from, to := i*n%(1<<20-n), i*n%(len(dst)-n)
		copy(dst[to:to+n], src[from:from+n])
	}
	return time.Since(start) / rounds
}
