package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Invariant: wire/capture: A capture has all passed frames that it does not count as missed, in
// order, and no byte of payload that was not requested, except headers of RoCEv2.
func TestFileTellsWhatPassed(t *testing.T) {
	a, b := pair(t)
	name := filepath.Join(t.TempDir(), "x.pcapng")
	testkit.OK(t, os.WriteFile(name, bytes.Repeat([]byte("old"), 1000), 0o644))
	c := testkit.Must(Create(name, Options{Payload: MaxPayload, Comment: "a test", patience: testkit.Patience}))(t)
	c.Attach(a.link)
	c.Attach(b.link)
	payloads := map[string][]byte{}
	p := a.tcp(b.mac, a.gpu, 0x1f00, 1000, 0, 0)
	payloads["single"] = a.mem[0x1f00 : 0x1f00+1000]
	super := a.tcp(b.mac, a.ram, 0x2000, 10000, 1448, 1000)
	payloads["super"] = a.mem[0x2000 : 0x2000+10000]
	a.send(p, super)
	b.send(b.tcp(a.mac, nil, 0, 0, 0, 0))
	a.send(a.arp())
	a.send(a.tcp(a.mac, a.gpu, gpuSize/2, 100, 0, 0))
	b.busy = true
	a.send(p)
	b.busy = false
	a.send(p)
	testkit.OK(t, c.Close())
	testkit.OK(t, c.Close())
	a.send(p)

	f, err := os.Open(name)
	testkit.OK(t, err)
	defer f.Close()
	frames, stats := read(t, f)
	want := []struct {
		iface   string
		length  int
		comment string
		payload string
	}{
		{"A-tx", 1054, "1000 bytes of payload from GPU 0, frag 0x1f00+256, 0x2000+744; taken", "single"},
		{"A-tx", 10054, "super-packet of 7 segments of 1448 bytes; 10000 bytes of payload from host memory; taken", "super"},
		{"B-rx", 1054, "queue 3, split: 54 bytes in the header buffer; 1000 bytes of payload to " +
			"GPU 1, frag 0x7ffc0+64 and GPU 1 outside of registered buffers, frag 0x80000+936", "single"},
		{"B-rx", 10054,
			"super-packet of 7 segments of 1448 bytes; queue 3, split: 54 bytes in the header buffer; 10000 bytes of " +
				"payload to " +
				"GPU 1, frag 0x7ffc0+64 and GPU 1 outside of registered buffers, frag 0x80000+9936", "super"},
		{"B-tx", 54, "taken", ""},
		{"A-rx", 54, "queue 3, whole", ""},
		{"A-tx", 42, "taken", ""},
		{"B-rx", 42, "queue 3, whole", ""},
		{"A-tx", 154, "100 bytes of payload from GPU 0 outside of registered buffers, frag 0x80000+100; dropped: same-port",
			"-"},
		{"A-tx", 1054, "1000 bytes of payload from GPU 0, frag 0x1f00+256, 0x2000+744; taken", "single"},
		{"B-rx", 1054, "queue 3, split: 54 bytes in the header buffer; 1000 bytes of payload to " +
			"GPU 1, frag 0x7ffc0+64 and GPU 1 outside of registered buffers, frag 0x80000+936", "single"},
	}
	var last time.Time
	if len(frames) != len(want) {
		t.Fatalf("%d frames, want %d", len(frames), len(want))
	}
	for i, fr := range frames {
		w := want[i]
		if fr.iface != w.iface || fr.length != w.length || fr.comment != w.comment || len(fr.data) != w.length {
			t.Errorf("frame %d: %s, %d of %d bytes: %q\nwant %s, %d: %q", i, fr.iface, len(fr.data), fr.length, fr.comment,
				w.iface, w.length, w.comment)
		}
		if w.payload != "" && w.payload != "-" && !bytes.Equal(fr.data[54:], payloads[w.payload]) {
			t.Errorf("frame %d: the payload is another", i)
		}
		var h splitter.Headers
		if err := splitter.Parse(fr.data, uint32(fr.length), &h); err != nil || h.Class == splitter.Malformed ||
			h.FrameLen != uint32(fr.length) {
			t.Errorf("frame %d: %v: %+v", i, err, h)
		}
		rx := strings.HasSuffix(fr.iface, "-rx")
		if in := fr.opts.Flags.Direction == pcapgo.NgEpbFlagDirectionInbound; in != rx || rx != (fr.opts.Queue != nil) ||
			rx && *fr.opts.Queue != 3 {
			t.Errorf("frame %d: %+v", i, fr.opts)
		}
		if group := fr.opts.Flags.Reception == pcapgo.NgEpbFlagReceptionTypeBroadcast; group != (fr.length == 42) {
			t.Errorf("frame %d: %+v", i, fr.opts.Flags)
		}
		if fr.info.Timestamp.Before(last) {
			t.Errorf("frame %d came before the one before", i)
		}
		last = fr.info.Timestamp
	}
	for name, n := range map[string]uint64{"A-tx": 5, "A-rx": 1, "B-tx": 1, "B-rx": 4} {
		if s := stats[name]; s.PacketsReceived != n || s.PacketsDropped != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	testkit.Equal(t, "stats", c.Stats(), Stats{Packets: uint64(len(want))})
}

// Invariant: wire/capture: A capture has all passed frames that it does not count as missed, in
// order, and no byte of payload that was not requested, except headers of RoCEv2.
func TestHeadersOnly(t *testing.T) {
	for _, n := range []int{0, 1, 100, 5000} {
		a, b := pair(t)
		var out bytes.Buffer
		c := attached(t, &out, Options{Payload: n}, a, b)
		a.send(a.tcp(b.mac, a.gpu, 100, 2000, 0, 0))
		testkit.OK(t, c.Close())
		if k := min(n, 2000); !bytes.Contains(out.Bytes(), a.mem[100:100+k]) || k < 2000 &&
			bytes.Contains(out.Bytes(), a.mem[100:100+max(k+1, 4)]) {
			t.Errorf("%d bytes asked for: these are not what the file has", n)
		}
		frames, _ := read(t, &out)
		for _, f := range frames {
			if f.length != 2054 || len(f.data) != 54+min(n, 2000) {
				t.Errorf("%d bytes asked for: %d of %d", n, len(f.data), f.length)
			}
		}
		testkit.Equal(t, "frames", len(frames), 2)
	}
}

// With Payload 0, RoCEv2's headers are captured if BTH is complete, as far as they are present, and nothing after them.
func TestHeadersOfRoCE(t *testing.T) {
	for _, c := range []struct{ port, opcode, size, want int }{
		{4791, 0x06, 1056, 28}, {4791, 0x07, 1040, 12}, {4791, 0x0b, 60, 32}, {4791, 0x0c, 32, 28}, {4791, 0x0e, 1040, 12},
		{4791, 0x11, 20, 16}, {4791, 0x64, 100, 12}, {4791, 0xff, 100, 12}, {4791, 0x06, 11, 0}, {4791, 0x06, 14, 14},
		{4791, 0x06, 0, 0}, {4790, 0x06, 1056, 0},
	} {
		a, b := pair(t)
		var out bytes.Buffer
		conn := attached(t, &out, Options{}, a, b)
		mem := bytes.Clone(a.mem)
		mem[4094] = byte(c.opcode) // the headers cross from one segment of memory to the next
		p := a.tcp(b.mac, dma.NewBuffer(mem, dma.Host), 4094, c.size, 0, 0)
		p.Header = p.Header[:14+20+8]
		p.Header[14+9] = splitter.ProtoUDP
		binary.BigEndian.PutUint16(p.Header[14+2:], uint16(20+8+c.size))
		binary.BigEndian.PutUint16(p.Header[14+20+2:], uint16(c.port))
		binary.BigEndian.PutUint16(p.Header[14+20+4:], uint16(8+c.size))
		binary.BigEndian.PutUint16(p.Header[14+20+6:], 0)
		testkit.OK(t, splitter.Parse(p.Header, p.Len(), &p.Meta.Headers))
		a.send(p)
		testkit.OK(t, conn.Close())
		frames, _ := read(t, &out)
		testkit.Equal(t, "frames", len(frames), 2)
		for _, f := range frames {
			if got := len(f.data) - 14 - 20 - 8; got != c.want || !bytes.Equal(f.data[42:], mem[4094:4094+c.want]) {
				t.Errorf("%+v: %d bytes behind UDP's header", c, got)
			}
		}
	}
}

// If the sender's link loses segments, each segment of a packet has either arrived, or the packet's comment names it as
// lost.
//
// Invariant: wire/capture: A capture has all passed frames that it does not count as missed, in
// order, and no byte of payload that was not requested, except headers of RoCEv2.
func TestLostSegmentsAreNamed(t *testing.T) {
	for name, o := range map[string][2]wire.LinkOptions{
		"up":   {{Up: wire.Impairment{Seed: 4, Loss: 0.2}}, {}},
		"down": {{}, {Down: wire.Impairment{Seed: 4, Loss: 0.2}}},
	} {
		sw := newSwitch(t)
		a, b := newHost(t, sw, 0, o[0]), newHost(t, sw, 1, o[1])
		b.send(b.arp())
		var out bytes.Buffer
		c := attached(t, &out, Options{}, a, b)
		const segments, mss, packets = 12, 1000, 20
		for i := range packets {
			a.send(a.tcp(b.mac, a.gpu, 0, segments*mss, mss, uint32(i*segments*mss)))
		}
		testkit.OK(t, c.Close())
		frames, _ := read(t, &out)
		var sent, came [packets * segments]bool
		for _, f := range frames {
			var h splitter.Headers
			testkit.OK(t, splitter.Parse(f.data, uint32(f.length), &h))
			first, n := int(h.Seq)/mss, (f.length-54)/mss
			_, lost, some := strings.Cut(f.comment, "lost on the link")
			for i := first; i < first+n; i++ {
				if f.iface == "A-tx" {
					sent[i] = true
				} else if !some {
					came[i] = true
				}
			}
			if !some || f.iface != "A-tx" {
				continue
			}
			lost, _, _ = strings.Cut(strings.TrimLeft(lost, ", segmnt"), " of 12")
			for _, r := range strings.Split(lost, ", ") {
				from, to := 0, 0
				if k, _ := fmt.Sscanf(r, "%d-%d", &from, &to); k == 0 || from < 1 {
					t.Fatalf("%q", f.comment)
				} else if k == 1 {
					to = from
				}
				for i := first + from - 1; i < first+to; i++ {
					sent[i] = false
				}
			}
		}
		gone := 0
		for i := range came {
			if name == "up" && came[i] != sent[i] || !sent[i] && came[i] {
				t.Errorf("%s: segment %d: sent and not lost %v, came %v", name, i, sent[i], came[i])
			}
			if !came[i] {
				gone++
			}
		}
		n := a.link.Counters().Drops[wire.DropLinkLoss] + b.link.Counters().Drops[wire.DropLinkLoss]
		if gone == 0 || gone != int(n) {
			t.Errorf("%s: %d segments lost by the file, %d by the counters", name, gone, n)
		}
	}
}

func dump(r *record) string {
	var t text
	r.comment(&t)
	return string(t)
}

func TestCommentsOfWhatIsLostOrDropped(t *testing.T) {
	tx, rx := &iface{}, &iface{rx: true}
	r := record{iface: tx, queue: -1, segments: 1, verdict: wire.Dropped, reason: wire.DropLinkLoss}
	check := func(want string) {
		t.Helper()
		testkit.Equal(t, "comment", dump(&r), want)
	}
	check("lost on the receiver's link")
	merged := record{iface: rx, verdict: wire.Taken, queue: 1, split: true, merged: true}
	testkit.Equal(t, "comment", dump(&merged),
		"queue 1, split: 0 bytes in the header buffer, merged with others of its flow")
	r.losses, r.lost[0] = 1, run{0, 1}
	check("lost on the link")
	r.segments, r.mss, r.lost[0] = 12, 100, run{2, 2}
	r.verdict, r.reason = wire.Taken, 0
	check("super-packet of 12 segments of 100 bytes; lost on the link, segments 3-4 of 12; taken")
	r.lost[0].n = 1
	check("super-packet of 12 segments of 100 bytes; lost on the link, segment 3 of 12; taken")
	r.lost[0].n = 2
	r.held = 2
	check("super-packet of 12 segments of 100 bytes; lost on the link, segments 3-4 of 12; 2 of its segments held " +
		"back on the link; taken")
	r.held = 0
	r.losses, r.lost[1], r.lostMore = 2, run{7, 1}, true
	check("super-packet of 12 segments of 100 bytes; lost on the link, segments 3-4, 8 and more of 12; taken")
	r = record{iface: rx, queue: 2, segments: 1, verdict: wire.Dropped, reason: wire.DropTooBig, payload: 10}
	r.places.add(frag{gpu: -1, domain: dma.Host, len: 10})
	check("10 bytes of payload still in host memory; dropped: too-big, queue 2")
	// The copier refuses a segment outside of its region.
	r.places.set([]dma.Segment{{Region: dma.NewBuffer(make([]byte, 4), dma.Host), Off: 4, Len: 10}}, 10)
	check("10 bytes of payload still in host memory; dropped: too-big, queue 2")
	r = record{iface: rx, queue: 0, segments: 1, verdict: wire.Taken, unsplit: true, payload: 10, bounced: true}
	for i := range maxFrags + 2 {
		r.places.add(frag{gpu: 0, domain: dma.GPU, off: uint64(i) << 12, len: 1})
	}
	if got := dump(&r); !strings.HasPrefix(got,
		"queue 0, whole, as it cannot be split; 10 bytes of payload to GPU 0, frag 0x0+1, 0x1000+1, ") ||
		!strings.HasSuffix(got, " and 2 more, bounced through host memory") {
		t.Error(got)
	}
}

// load makes all hosts send at the same time, each some batches of 32 packets to the next host, and returns how many
// packets they sent together.
func load(t *testing.T, hosts []*host, batches int) (sent uint64) {
	t.Helper()
	var wg sync.WaitGroup
	for i, h := range hosts {
		to := hosts[(i+1)%len(hosts)]
		var batch []*wire.Packet
		for k := range 32 {
			batch = append(batch, h.tcp(to.mac, h.gpu, uint64(k)<<12, 1448, 0, 0))
		}
		wg.Go(func() {
			for range batches {
				for _, p := range batch {
					p.Prepare()
				}
				h.send(batch...)
			}
		})
	}
	wg.Wait()
	return uint64(len(hosts) * batches * 32)
}

func eight(t *testing.T) (hosts []*host) {
	sw := newSwitch(t)
	for i := range 8 {
		hosts = append(hosts, newHost(t, sw, i, wire.LinkOptions{}))
	}
	hello(hosts...)
	for _, h := range hosts {
		h.came.Store(0)
	}
	return hosts
}

// Invariant: wire/capture: A writer that blocks or fails delays no packet.
func TestBlockedWriterHoldsNobodyUp(t *testing.T) {
	for _, freed := range []bool{false, true} {
		hosts := eight(t)
		r, w, err := os.Pipe()
		testkit.OK(t, err)
		var failed atomic.Int32
		patience := time.Minute
		if !freed {
			patience = 50 * time.Millisecond
		}
		c := attached(t, w, Options{patience: patience, Failed: func(error) { failed.Add(1) }}, hosts...)
		const batches = 200
		sent := load(t, hosts, batches)
		for _, h := range hosts {
			testkit.Equal(t, "frames that came to "+h.name, h.came.Load(), batches*32)
		}
		if s := c.Stats(); s.Missed == 0 {
			t.Errorf("nothing is missed: %+v", s)
		}
		var frames []frame
		var stats map[string]pcapgo.NgInterfaceStatistics
		var reading sync.WaitGroup
		if freed {
			reading.Go(func() { frames, stats = read(t, r) })
		}
		err = c.Close()
		_ = w.Close()
		reading.Wait()
		_ = r.Close()
		s := c.Stats()
		if got := s.Packets + s.Missed; got != 2*sent {
			t.Errorf("%d captured and %d missed, of %d sent and received", s.Packets, s.Missed, 2*sent)
		}
		if !freed {
			if !errors.Is(err, ErrStuck) || failed.Load() != 1 {
				t.Errorf("%v, told %d times", err, failed.Load())
			}
			continue
		}
		testkit.OK(t, err)
		var reported, seen uint64
		for _, st := range stats {
			reported, seen = reported+st.PacketsDropped, seen+st.PacketsReceived
		}
		if uint64(len(frames)) != s.Packets || reported != s.Missed || seen != 2*sent {
			t.Errorf("the file has %d packets and tells of %d missed and %d seen: %+v", len(frames), reported, seen, s)
		}
	}
}

// stuckWriter blocks in Write until a value arrives or it is closed, writes nothing and returns an error.
type stuckWriter chan struct{}

func (w stuckWriter) Write([]byte) (int, error) {
	<-w
	return 0, unix.EIO
}

// Invariant: wire/capture: A writer that blocks or fails delays no packet.
func TestWriterThatNeverEndsIsLeft(t *testing.T) {
	hosts := eight(t)
	w := make(stuckWriter)
	c := attached(t, w, Options{patience: 10 * time.Millisecond}, hosts...)
	sent := load(t, hosts, 5)
	if err := c.Close(); !errors.Is(err, ErrStuck) {
		t.Error(err)
	}
	testkit.Equal(t, "stats", c.Stats(), Stats{Missed: 2 * sent})
	close(w)
	<-c.done
	testkit.Equal(t, "stats in the end", c.Stats(), Stats{Missed: 2 * sent})
}

type shortWriter struct {
	bytes.Buffer
	room int
}

func (w *shortWriter) Write(b []byte) (int, error) {
	n := min(len(b), w.room-w.Len())
	w.Buffer.Write(b[:n])
	if n < len(b) {
		return n, unix.ENOSPC
	}
	return n, nil
}

// Invariant: wire/capture: Each packet is completely in the file, or counted as missed.
func TestWhatIsCapturedIsInTheFile(t *testing.T) {
	hosts := eight(t)
	w := &shortWriter{room: 100_000}
	c := attached(t, w, Options{Records: 1 << 14}, hosts...)
	sent := load(t, hosts, 20)
	if err := c.Close(); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	s := c.Stats()
	if s.Packets == 0 || s.Packets+s.Missed != 2*sent {
		t.Errorf("%+v of %d", s, 2*sent)
	}
	r, err := pcapgo.NewNgReader(&w.Buffer, pcapgo.NgReaderOptions{})
	testkit.OK(t, err)
	var n uint64
	for ; ; n++ {
		if _, _, err = r.ReadPacketData(); err != nil {
			break
		}
	}
	if n != s.Packets {
		t.Errorf("the file has %d packets, then %v; told were %d", n, err, s.Packets)
	}
}

// TestNothingIsMissedWhenThereIsRoom is the negative control of the tests that miss packets. It also tests that no
// packet is in the file as received before it is there as sent.
func TestNothingIsMissedWhenThereIsRoom(t *testing.T) {
	hosts := eight(t)
	var out bytes.Buffer
	c := attached(t, &out, Options{Records: 1 << 14}, hosts...)
	sent := load(t, hosts, 20)
	testkit.OK(t, c.Close())
	testkit.Equal(t, "stats", c.Stats(), Stats{Packets: 2 * sent})
	frames, _ := read(t, &out)
	var tx, rx [8]int
	for i, f := range frames {
		from := int(f.data[11])
		if strings.HasSuffix(f.iface, "tx") {
			tx[from]++
		} else if rx[from]++; rx[from] > tx[from] {
			t.Fatalf("frame %d came before it was sent", i)
		}
	}
}

// Invariant: wire/capture: A writer that blocks or fails delays no packet.
func TestWriteErrorStopsCapture(t *testing.T) {
	hosts := eight(t)
	var failed atomic.Int32
	called := make(chan struct{})
	c, err := Create("/dev/full", Options{patience: testkit.Patience, Failed: func(err error) {
		if failed.Add(1) == 1 {
			close(called)
		}
	}})
	testkit.OK(t, err)
	for _, h := range hosts {
		c.Attach(h.link)
	}
	<-called
	sent := load(t, hosts, 20)
	for _, h := range hosts {
		testkit.Equal(t, "frames that came to "+h.name, h.came.Load(), 20*32)
	}
	if err := c.Close(); !errors.Is(err, unix.ENOSPC) || failed.Load() != 1 {
		t.Errorf("%v, told %d times", err, failed.Load())
	}
	testkit.Equal(t, "stats", c.Stats(), Stats{Missed: 2 * sent})
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	testkit.OK(t, unix.Mkfifo(fifo, 0o600))
	for name, o := range map[string]Options{dir: {}, filepath.Join(dir, "none", "x"): {}, fifo: {},
		filepath.Join(dir, "x"): {Payload: MaxPayload + 1}} {
		if c, err := Create(name, o); err == nil {
			t.Errorf("%s: no error", name)
			_ = c.Close()
		} else {
			t.Log(err)
		}
	}
}

func TestNoPortIsAFileToo(t *testing.T) {
	var out bytes.Buffer
	c := testkit.Must(New(&out, Options{patience: testkit.Patience}))(t)
	testkit.OK(t, c.Close())
	if frames, _ := read(t, &out); len(frames) != 0 {
		t.Errorf("%d frames", len(frames))
	}
	sw := newSwitch(t)
	a := newHost(t, sw, 0, wire.LinkOptions{})
	c.Attach(a.link)
	hello(a)
	if a.link.Tap() != nil {
		t.Error("a capture that has ended watches")
	}
}
