package capture

import (
	"bytes"
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"pgregory.net/rapid"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

type contents struct {
	section    pcapgo.NgSectionInfo
	interfaces []pcapgo.NgInterface
	packets    []packet
	statistics []pcapgo.NgInterfaceStatistics
}

type packet struct {
	Info gopacket.CaptureInfo
	Opts pcapgo.NgPacketOptions
	Data []byte
}

func contentsOf(t rapid.TB, file []byte) (c contents) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, info, opts, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		info.AncillaryData = nil
		c.packets = append(c.packets, packet{info, opts, data})
	}
	c.section = r.SectionInfo()
	for i := range r.NInterfaces() {
		about, err := r.Interface(i)
		if err != nil {
			t.Fatal(err)
		}
		c.statistics = append(c.statistics, about.Statistics)
		about.Statistics = pcapgo.NgInterfaceStatistics{}
		c.interfaces = append(c.interfaces, about)
	}
	return c
}

// TestFileIsAsGopacketWritesAndReadsIt tests that gopacket reads each field of a file as it was written, and writes the
// same bytes.
func TestFileIsAsGopacketWritesAndReadsIt(t *testing.T) {
	text := rapid.OneOf(rapid.Just(""), rapid.String(), rapid.StringN(-1, -1, 300))
	rapid.Check(t, func(t *rapid.T) {
		var file bytes.Buffer
		c := &Capture{out: &file, comment: text.Draw(t, "comment"), payload: rapid.IntRange(0, MaxPayload).Draw(t, "payload"),
			start: time.Unix(0, rapid.Int64Min(0).Draw(t, "start"))}
		for range rapid.IntRange(0, 4).Draw(t, "interfaces") {
			c.add(text.Draw(t, "name"), text.Draw(t, "about"), rapid.Bool().Draw(t, "rx"))
		}
		w := &writer{c: c, sink: newSink(&file)}
		w.try(w.sync)
		var want contents
		for range min(len(c.ifaces), 1) * rapid.IntRange(0, 8).Draw(t, "packets") {
			r := drawRecord(t, c)
			want.packets = append(want.packets, packetOf(r))
			w.take(r)
		}
		w.try(w.finish)
		if c.err != nil {
			t.Fatal(c.err)
		}

		got := contentsOf(t, file.Bytes())
		want.section = pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "vnic",
			Comment: c.comment}
		described := c.ifaces
		if len(described) == 0 {
			described = []*iface{{name: "none", about: "no port was attached"}}
		}
		for _, i := range described {
			want.interfaces = append(want.interfaces, pcapgo.NgInterface{Name: i.name, Description: i.about, OS: runtime.GOOS,
				LinkType: layers.LinkTypeEthernet, SnapLength: uint32(recordSize(c.payload)), TimestampResolution: 9})
			var s pcapgo.NgInterfaceStatistics // without a port the file has no statistics
			if len(c.ifaces) > 0 {
				now := got.statistics[i.id].LastUpdate
				if since := time.Since(now); since < 0 || since > testkit.Patience {
					t.Errorf("statistics of %v", now)
				}
				s = pcapgo.NgInterfaceStatistics{LastUpdate: now, StartTime: c.start.UTC(), EndTime: now,
					PacketsReceived: i.seen.Load(), PacketsDropped: i.missed.Load()}
			}
			want.statistics = append(want.statistics, s)
		}
		equal(t, "section", got.section, want.section)
		equal(t, "interfaces", got.interfaces, want.interfaces)
		equal(t, "packets", got.packets, want.packets)
		equal(t, "statistics", got.statistics, want.statistics)
		if theirs := gopacketFile(t, want, len(c.ifaces) > 0); !bytes.Equal(file.Bytes(), theirs) {
			t.Errorf("these are not the bytes that gopacket writes:\n%x\n%x", file.Bytes(), theirs)
		}
	})
}

func drawRecord(t *rapid.T, c *Capture) *record {
	i := rapid.SampledFrom(c.ifaces).Draw(t, "interface")
	i.seen.Add(1)
	i.missed.Add(rapid.SampledFrom([]uint64{0, 0, 1, math.MaxUint32}).Draw(t, "missed"))
	data := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "data")
	if len(data) > 6 {
		data[0] = rapid.SampledFrom([]byte{0, 1, 0xff}).Draw(t, "first byte")
		if rapid.Bool().Draw(t, "broadcast") {
			copy(data, bytes.Repeat([]byte{0xff}, 6))
		}
	}
	r := &record{iface: i, when: rapid.Int64Min(0).Draw(t, "when"), data: data, n: len(data),
		length: rapid.Uint32Min(uint32(len(data))).Draw(t, "length"), payload: rapid.Uint32().Draw(t, "bytes"),
		segments: rapid.Uint32().Draw(t, "segments"), queue: rapid.IntRange(-1, math.MaxUint16).Draw(t, "queue"),
		verdict: rapid.SampledFrom([]wire.VerdictKind{wire.Taken, wire.Dropped}).Draw(t, "verdict")}
	return r
}

func packetOf(r *record) packet {
	p := packet{gopacket.CaptureInfo{Timestamp: time.Unix(0, r.when), CaptureLength: r.n, Length: int(r.length),
		InterfaceIndex: r.iface.id}, pcapgo.NgPacketOptions{Comments: []string{dump(r)}}, bytes.Clone(r.data)}
	p.Opts.Flags = &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound,
		Reception: pcapgo.NgEpbFlagReceptionTypeUnicast}
	if r.iface.rx {
		p.Opts.Flags.Direction = pcapgo.NgEpbFlagDirectionInbound
	}
	switch {
	case bytes.HasPrefix(r.data, broadcast[:]):
		p.Opts.Flags.Reception = pcapgo.NgEpbFlagReceptionTypeBroadcast
	case r.n >= 6 && r.data[0]&1 != 0:
		p.Opts.Flags.Reception = pcapgo.NgEpbFlagReceptionTypeMulticast
	}
	if n := r.iface.missed.Load() - r.iface.reported; n > 0 {
		p.Opts.DropCount = &n
	}
	if r.queue >= 0 {
		q := uint32(r.queue)
		p.Opts.Queue = &q
	}
	return p
}

func gopacketFile(t *rapid.T, c contents, statistics bool) []byte {
	var file bytes.Buffer
	w, err := pcapgo.NewNgWriterInterface(&file, c.interfaces[0], pcapgo.NgWriterOptions{SectionInfo: c.section})
	for _, i := range c.interfaces[1:] {
		_, e := w.AddInterface(i)
		err = errors.Join(err, e)
	}
	for _, p := range c.packets {
		err = errors.Join(err, w.WritePacketWithOptions(p.Info, p.Data, p.Opts))
	}
	for i, s := range c.statistics {
		if statistics {
			err = errors.Join(err, w.WriteInterfaceStats(i, s))
		}
	}
	if err = errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func equal(t rapid.TB, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(pcapgo.NgInterface{}), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s: gopacket reads (+), written was (-):\n%s", what, d)
	}
}

// A text is cut if an option's length, which has 16 bits, cannot hold its length.
func TestTextThatDoesNotFitIsCut(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
	}{
		{strings.Repeat("x", math.MaxUint16), math.MaxUint16},
		{strings.Repeat("x", math.MaxUint16+1), math.MaxUint16},
		{strings.Repeat("é", 40000), math.MaxUint16 - 1},
		{"x" + strings.Repeat("é", 40000), math.MaxUint16},
		{strings.Repeat("🦀", 20000), math.MaxUint16 - 3},
		{strings.Repeat("\x80", 70000), math.MaxUint16 - 4}, // not UTF-8
	} {
		var file bytes.Buffer
		testkit.OK(t, testkit.Must(New(&file, Options{Comment: c.text}))(t).Close())
		got := contentsOf(t, file.Bytes())
		if got.section.Comment != c.text[:c.want] || got.section.OS != runtime.GOOS || len(got.interfaces) != 1 {
			t.Errorf("%d bytes of %.8q: the file has %d", len(c.text), c.text, len(got.section.Comment))
		}
	}
}

func TestImpossibleFrameIsNotWritten(t *testing.T) {
	for name, r := range map[string]*record{
		"longer than the frame": {iface: &iface{}, data: make([]byte, 60), n: 60, length: 59},
		"no such interface":     {iface: &iface{id: 1}, data: make([]byte, 60), n: 60, length: 60},
	} {
		var file bytes.Buffer
		c := &Capture{out: &file}
		c.add("x", "", false)
		w := &writer{c: c, sink: newSink(&file)}
		w.try(w.sync)
		w.take(r)
		if c.err == nil || r.iface.missed.Load() != 1 {
			t.Errorf("%s: %v, %d missed", name, c.err, r.iface.missed.Load())
		}
		testkit.OK(t, w.flush())
		testkit.Equal(t, name+": packets", len(contentsOf(t, file.Bytes()).packets), 0)
	}
}
