package wire

import (
	"encoding/binary"
	"log/slog"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// host is a machine on the switch: its memory is a memfd, and its port copies the frames that it receives.
type host struct {
	t     testing.TB
	mac   MAC
	link  *Link
	w     *Worker
	space *dma.Space
	file  *os.File // the memfd
	ram   []byte   // the same memory, mapped for the test

	mu      sync.Mutex
	limits  Limits
	buffers int
	sizes   []int
	got     []received
	wakers  []Waker
	slow    func()
	arrived chan struct{}
}

type received struct {
	frame []byte
	meta  splitter.Meta
	wire  bool // the payload's first segment lay in a buffer of the wire (dma.Wire)
	from  uint32
}

const ramSize = 1 << 18

// pattern[n:] is the initial content of the memory of host n.
var pattern = func() []byte {
	b := make([]byte, ramSize+256)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13)
	}
	return b
}()

var quiet = slog.New(slog.DiscardHandler)

func newSwitch(t testing.TB) *Switch {
	s := NewSwitch(quiet)
	t.Cleanup(func() {
		testkit.OK(t, s.Close())
	})
	return s
}

func newHost(t testing.TB, s *Switch, n byte, opts LinkOptions) *host {
	t.Helper()
	h := &host{t: t, mac: MAC{2, 0, 0, 0, 0, n}, w: NewWorker(), buffers: -1, arrived: make(chan struct{}, 1)}
	h.file = testkit.Memfd(t, ramSize)
	fd := int(h.file.Fd())
	var err error
	h.ram, err = unix.Mmap(fd, 0, ramSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	testkit.OK(t, err)
	copy(h.ram, pattern[n:])
	h.space = dma.NewSpace(h.Name(), dma.NewFiles())
	testkit.OK(t, h.space.Add(dma.Map{Size: ramSize, FD: fd}))
	t.Cleanup(func() {
		testkit.OK(t, h.space.Close())
		testkit.NoError(t, unix.Munmap(h.ram))
	})
	h.link, err = s.Attach(h, opts)
	testkit.OK(t, err)
	return h
}

func pair(t testing.TB) (a, b *host) {
	t.Helper()
	s := newSwitch(t)
	a, b = newHost(t, s, 1, LinkOptions{}), newHost(t, s, 2, LinkOptions{})
	meet(a, b)
	return a, b
}

func three(t testing.TB) (a, b, c *host) {
	t.Helper()
	a, b = pair(t)
	c = newHost(t, a.link.sw, 3, LinkOptions{})
	meet(c)
	a.take()
	b.take()
	return a, b, c
}

// badPair makes two hosts whose links impair frames from a to b: a's link by up, b's by down. It puts b's MAC into the
// switch's table without a frame.
func badPair(t testing.TB, s *Switch, up, down Impairment) (a, b *host) {
	t.Helper()
	a, b = newHost(t, s, 1, LinkOptions{Up: up}), newHost(t, s, 2, LinkOptions{Down: down})
	s.table.learn(b.mac.key(), b.link.id)
	return a, b
}

func taken(t testing.TB, p *Packet) {
	t.Helper()
	if p.Verdict.Kind != Taken {
		t.Fatalf("%+v", p.Verdict)
	}
}

func dropped(t testing.TB, p *Packet, want DropReason) {
	t.Helper()
	if p.Verdict != Drop(want) {
		t.Fatalf("%+v", p.Verdict)
	}
}

func (h *host) Name() string { return "host" + string('0'+rune(h.mac[5])) }

func (h *host) Limits() Limits {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.limits
}

func (h *host) setLimits(l Limits) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limits = l
}

func (h *host) post(n int) {
	h.mu.Lock()
	h.buffers = n
	ws := h.wakers
	h.wakers = nil
	h.mu.Unlock()
	for _, w := range ws {
		w.Wake()
	}
}

func (h *host) Arm(w Waker) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.buffers != 0 {
		return false
	}
	h.wakers = append(h.wakers, w)
	return true
}

func (h *host) Disarm(Waker) {}

func (h *host) Deliver(w *Worker, batch []*Packet) {
	tok := h.space.Enter()
	defer h.space.Leave(tok)
	if h.slow != nil {
		h.slow()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sizes = append(h.sizes, len(batch))
	for _, p := range batch {
		if h.buffers == 0 {
			p.Verdict = Verdict{Kind: Busy, Queue: h}
			continue
		}
		b := make([]byte, p.Len())
		n := copy(b, p.Header)
		k, err := w.Copier.Read(b[n:], p.Payload)
		if err != nil || n+k != len(b) {
			p.Verdict = Drop(DropFault)
			continue
		}
		r := received{frame: b, meta: p.Meta, from: p.From}
		if len(p.Payload) > 0 {
			d, _ := p.Payload[0].MemKind()
			r.wire = d == dma.Wire
		}
		h.got = append(h.got, r)
		if h.buffers > 0 {
			h.buffers--
		}
		p.Verdict = Verdict{Kind: Taken}
	}
	select {
	case h.arrived <- struct{}{}:
	default:
	}
}

func (h *host) take() []received {
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got
	h.got, h.sizes = nil, nil
	return got
}

func (h *host) send(ps ...*Packet) {
	tok := h.space.Enter()
	defer h.space.Leave(tok)
	h.link.Deliver(h.w, ps)
}

func (h *host) sent(p *Packet) *Packet {
	h.send(p)
	return p
}

func (h *host) sendAll(ps ...*Packet) {
	for len(ps) > 0 {
		h.send(ps...)
		var again []*Packet
		for _, p := range ps {
			if p.Verdict.Kind == Busy {
				again = append(again, p)
			}
		}
		if len(again) > 0 {
			w := make(waker, 1)
			if again[0].Verdict.Queue.Arm(w) {
				<-w
			}
		}
		ps = again
	}
}

type waker chan struct{}

func (w waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

type spec struct {
	udp, v6 bool
	tags    int
	flags   uint8
	seq     uint32
	off     int // offset of the payload in the sender's memory
	n       int
	mss     uint16        // not 0: a GSO packet
	csum    splitter.Csum // unless it is CsumPartial the checksum is complete; a GSO packet has CsumPartial
	cut     []int         // lengths of the first payload segments; the rest is one
	sport   uint16
}

func (h *host) packet(to MAC, s spec) *Packet {
	h.t.Helper()
	p := &Packet{Header: header(h.mac, to, &s)}
	h.payload(p, s.off, s.n, s.cut)
	m := &p.Meta
	if err := splitter.Parse(p.Header, p.Len(), &m.Headers); err != nil || m.Headers.Class == splitter.Malformed {
		h.t.Fatalf("%v: %+v", err, m.Headers)
	}
	hd := &m.Headers
	splitter.FixIPv4(hd, p.Header)
	m.Csum = s.csum
	if s.mss != 0 {
		m.Csum, m.GSOSize = splitter.CsumPartial, s.mss
		switch {
		case s.udp:
			m.GSOType = splitter.GSOUDPL4
		case s.v6:
			m.GSOType = splitter.GSOTCPv6
		default:
			m.GSOType = splitter.GSOTCPv4
		}
	}
	if m.Csum == splitter.CsumPartial {
		splitter.FixPartial(hd, p.Header, p.PayloadLen)
		m.CsumStart, m.CsumOffset, _ = splitter.CsumPlace(hd)
	} else {
		splitter.FixL4(hd, p.Header, p.PayloadLen, splitter.Sum(h.ram[s.off:s.off+s.n], 0))
	}
	m.ECN = s.mss != 0 && s.flags&splitter.CWR != 0
	p.Prepare()
	return p
}

// payload gives a packet n bytes of h's memory from off on, in segments with the lengths in cut and one with the rest.
func (h *host) payload(p *Packet, off, n int, cut []int) {
	h.t.Helper()
	p.PayloadLen = uint32(n)
	tok := h.space.Enter()
	defer h.space.Leave(tok)
	pos, left := uint64(off), uint64(n)
	for _, c := range append(cut, n) {
		k := min(uint64(c), left)
		var err error
		if p.Payload, err = h.space.Translate(p.Payload, pos, k, dma.Read); k > 0 && err != nil {
			h.t.Fatal(err)
		}
		pos, left = pos+k, left-k
	}
}

func header(src, dst MAC, s *spec) []byte {
	be := binary.BigEndian
	b := append(append([]byte{}, dst[:]...), src[:]...)
	for range s.tags {
		b = be.AppendUint32(b, splitter.EtherTypeVLAN<<16|5)
	}
	l4 := make([]byte, 20)
	proto := byte(splitter.ProtoTCP)
	if s.udp {
		proto, l4 = splitter.ProtoUDP, make([]byte, 8)
		be.PutUint16(l4[4:], uint16(8+s.n))
	} else {
		be.PutUint32(l4[4:], s.seq)
		l4[12], l4[13] = 5<<4, s.flags|splitter.ACK
	}
	be.PutUint16(l4[0:], 1000+s.sport)
	be.PutUint16(l4[2:], 2000)
	if s.v6 {
		ip := make([]byte, 40)
		ip[0], ip[6], ip[7] = 0x60, proto, 64
		be.PutUint16(ip[4:], uint16(len(l4)+s.n))
		ip[8], ip[23], ip[24], ip[39] = 0xfd, src[5], 0xfd, dst[5]
		b = append(be.AppendUint16(b, splitter.EtherTypeIPv6), ip...)
	} else {
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, 64, proto
		be.PutUint16(ip[2:], uint16(20+len(l4)+s.n))
		copy(ip[12:], []byte{10, 0, 0, src[5], 10, 0, 0, dst[5]})
		b = append(be.AppendUint16(b, splitter.EtherTypeIPv4), ip...)
	}
	return append(b, l4...)
}

func (h *host) arp(to MAC) *Packet {
	b := append(append([]byte{}, to[:]...), h.mac[:]...)
	b = append(b, 0x08, 0x06)
	p := &Packet{Header: append(b, make([]byte, 28)...)}
	testkit.OK(h.t, splitter.Parse(p.Header, p.Len(), &p.Meta.Headers))
	p.Prepare()
	return p
}

var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func meet(hosts ...*host) {
	for _, h := range hosts {
		h.send(h.arp(broadcast))
	}
	for _, h := range hosts {
		h.take()
	}
}

// verify parses a frame, and returns its headers and payload. It checks that the headers are the ones in its Meta, and
// the checksums according to Meta.Csum.
func verify(t testing.TB, r *received) (h splitter.Headers, payload []byte) {
	t.Helper()
	if err := splitter.Parse(r.frame, uint32(len(r.frame)), &h); err != nil || h != r.meta.Headers {
		t.Fatalf("%v:\n in the frame %+v\n in its Meta %+v", err, h, r.meta.Headers)
	}
	hdr, payload := r.frame[:h.HdrLen], r.frame[h.HdrLen:max(h.FrameLen, uint32(h.HdrLen))]
	if !splitter.VerifyIPv4(&h, hdr) {
		t.Fatal("IPv4 checksum")
	}
	n := uint32(len(payload))
	if r.meta.Csum == splitter.CsumPartial {
		start, off, _ := splitter.CsumPlace(&h)
		l4 := uint32(h.HdrLen-h.L4Off) + n
		if start != r.meta.CsumStart || off != r.meta.CsumOffset ||
			binary.BigEndian.Uint16(hdr[start+off:]) != splitter.PseudoSum(&h, hdr, l4) {
			t.Fatalf("partial checksum: %+v", r.meta)
		}
	} else if c := splitter.VerifyL4(&h, hdr, n, splitter.Sum(payload, 0)); c == splitter.CsumBad {
		t.Fatalf("bad checksum: %+v", r.meta)
	}
	return h, payload
}
