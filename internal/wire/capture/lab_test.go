package capture

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const gpuSize = 1 << 20

// host is a port that reports the placement of packets.
type host struct {
	t     testing.TB
	name  string
	mac   wire.MAC
	w     *wire.Worker
	sw    *wire.Switch
	link  *wire.Link
	gpu   *dma.Region // its GPU's memory
	mem   []byte      // the initial bytes of gpu and ram
	ram   *dma.Region
	came  atomic.Int64
	busy  bool
	noGSO bool
	seg   [1]dma.Segment
	// place, if set, decides Deliver's verdict and placement.
	place func(p *wire.Packet) (wire.Verdict, wire.Placement)
}

var broadcast = wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func newSwitch(t testing.TB) *wire.Switch {
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { testkit.OK(t, sw.Close()) })
	return sw
}

// newHost makes host n; the first half of GPU n's memory is registered.
func newHost(t testing.TB, sw *wire.Switch, n int, o wire.LinkOptions) *host {
	t.Helper()
	h := &host{t: t, name: string(rune('A' + n)), mac: wire.MAC{2, 0, 0, 0, 0, byte(n)}, w: wire.NewWorker(),
		sw: sw}
	file, err := dma.NewFiles().Open(int(testkit.Memfd(t, gpuSize).Fd()), gpuSize)
	testkit.OK(t, err)
	t.Cleanup(file.Close)
	file.SetGPU(n)
	testkit.OK(t, file.Register(0, gpuSize/2))
	h.gpu, err = file.Region(0, gpuSize)
	testkit.OK(t, err)
	fill := make([]byte, gpuSize)
	for i := range fill {
		fill[i] = byte(i*7 + i>>8*13 + n)
	}
	_, err = h.w.Copier.Write([]dma.Segment{h.gpu.Segment(0, gpuSize)}, fill)
	testkit.OK(t, err)
	h.mem = fill
	h.ram = dma.NewBuffer(bytes.Clone(fill), dma.Host)
	h.link, err = sw.Attach(h, o)
	testkit.OK(t, err)
	return h
}

func (h *host) Name() string      { return h.name }
func (h *host) ReportsPlacement() {}
func (h *host) Limits() wire.Limits {
	if h.noGSO {
		return wire.Limits{}
	}
	return wire.Limits{Csum: true, GSO: wire.GSO(splitter.GSOTCPv4)}
}

// Deliver copies TCP payload to offset 0x80000-64 of the GPU's memory: all but its first 64 bytes lie outside of the
// registered buffer. If busy or place is set, Deliver copies nothing.
func (h *host) Deliver(w *wire.Worker, batch []*wire.Packet) {
	tap := h.link.Tap()
	for _, p := range batch {
		if h.busy {
			p.Verdict = wire.Verdict{Kind: wire.Busy}
			continue
		}
		h.came.Add(1)
		if h.place != nil {
			var place wire.Placement
			if p.Verdict, place = h.place(p); tap != nil {
				tap.Received(w, p, place)
			}
			continue
		}
		p.Verdict = wire.Verdict{Kind: wire.Taken}
		place := wire.Placement{Queue: 3}
		if p.Meta.Headers.Class == splitter.TCP && p.PayloadLen > 0 {
			h.seg[0] = h.gpu.Segment(gpuSize/2-64, p.PayloadLen)
			place.Split, place.HeaderLen, place.Payload = true, uint32(len(p.Header)), h.seg[:]
			if _, err := w.Copier.Copy(place.Payload, p.Payload); err != nil {
				p.Verdict = wire.Drop(wire.DropFault)
			}
		}
		if tap != nil {
			tap.Received(w, p, place)
		}
	}
}

func (h *host) send(ps ...*wire.Packet) { h.link.Deliver(h.w, ps) }

func pair(t testing.TB) (a, b *host) {
	t.Helper()
	sw := newSwitch(t)
	a, b = newHost(t, sw, 0, wire.LinkOptions{}), newHost(t, sw, 1, wire.LinkOptions{})
	hello(a, b)
	return a, b
}

// attached starts a capture of the hosts' ports, with long patience unless o has one: a writer may get no CPU for a
// while.
func attached(t testing.TB, w io.Writer, o Options, hosts ...*host) *Capture {
	t.Helper()
	o.patience = cmp.Or(o.patience, testkit.Patience)
	c := testkit.Must(New(w, o))(t)
	for _, h := range hosts {
		c.Attach(h.link)
	}
	return c
}

func hello(hosts ...*host) {
	for _, h := range hosts {
		h.send(h.arp())
	}
}

// tcp makes a TCP packet with n bytes of payload, which lie from offset off on in a region. If mss is not 0, it is a
// GSO packet.
func (h *host) tcp(to wire.MAC, from *dma.Region, off uint64, n int, mss uint16, seq uint32) *wire.Packet {
	h.t.Helper()
	be := binary.BigEndian
	b := append(append([]byte{}, to[:]...), h.mac[:]...)
	ip := make([]byte, 40)
	ip[0], ip[8], ip[9] = 0x45, 64, splitter.ProtoTCP
	be.PutUint16(ip[2:], uint16(40+n))
	copy(ip[12:], []byte{10, 0, 0, h.mac[5], 10, 0, 0, to[5]})
	be.PutUint16(ip[20:], 1000)
	be.PutUint16(ip[22:], 2000)
	be.PutUint32(ip[24:], seq)
	ip[32], ip[33] = 5<<4, splitter.ACK
	p := &wire.Packet{Header: append(be.AppendUint16(b, splitter.EtherTypeIPv4), ip...), PayloadLen: uint32(n)}
	if n > 0 {
		cut := uint32(min(n, 4096-int(off%4096)))
		p.Payload = append(p.Payload, from.Segment(off, cut))
		if rest := uint32(n) - cut; rest > 0 {
			p.Payload = append(p.Payload, from.Segment(off+uint64(cut), rest))
		}
	}
	testkit.OK(h.t, splitter.Parse(p.Header, p.Len(), &p.Meta.Headers))
	splitter.FixIPv4(&p.Meta.Headers, p.Header)
	p.Meta.Csum = splitter.CsumGood
	if mss > 0 {
		p.Meta.GSOType, p.Meta.GSOSize, p.Meta.Csum = splitter.GSOTCPv4, mss, splitter.CsumPartial
		splitter.FixPartial(&p.Meta.Headers, p.Header, p.PayloadLen)
		p.Meta.CsumStart, p.Meta.CsumOffset, _ = splitter.CsumPlace(&p.Meta.Headers)
	}
	p.Prepare()
	return p
}

func (h *host) arp() *wire.Packet {
	b := append(append([]byte{}, broadcast[:]...), h.mac[:]...)
	p := &wire.Packet{Header: append(append(b, 8, 6), make([]byte, 28)...)}
	testkit.OK(h.t, splitter.Parse(p.Header, p.Len(), &p.Meta.Headers))
	p.Prepare()
	return p
}

type frame struct {
	iface   string
	data    []byte
	length  int
	comment string
	opts    pcapgo.NgPacketOptions
	info    gopacket.CaptureInfo
}

func read(t testing.TB, r io.Reader) (frames []frame, stats map[string]pcapgo.NgInterfaceStatistics) {
	t.Helper()
	stats = map[string]pcapgo.NgInterfaceStatistics{}
	var ng *pcapgo.NgReader
	ng, err := pcapgo.NewNgReader(r,
		pcapgo.NgReaderOptions{StatisticsCallback: func(i int, s pcapgo.NgInterfaceStatistics) {
			about := testkit.Must(ng.Interface(i))(t)
			stats[about.Name] = s
		}})
	testkit.OK(t, err)
	for {
		data, info, opts, err := ng.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return frames, stats
		}
		testkit.OK(t, err)
		about := testkit.Must(ng.Interface(info.InterfaceIndex))(t)
		if len(opts.Comments) != 1 || opts.Flags == nil || info.CaptureLength != len(data) {
			t.Fatalf("%+v: %+v", info, opts)
		}
		frames = append(frames, frame{about.Name, data, info.Length, opts.Comments[0], opts, info})
	}
}
