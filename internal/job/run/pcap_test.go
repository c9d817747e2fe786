package run

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"vnic.dev/vnic/internal/report/pcap"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire/capture"
	"vnic.dev/vnic/splitter"
)

type captured struct {
	iface   string
	comment string
	splitter.Headers
	payload []byte
	lost    [][2]uint32 // sequence numbers [from, to) of payload that the link lost, as the packet's comment says
}

// capturedRun runs the first mode of o with a capture. payload is how many bytes of each packet's payload the capture
// has at most. capturedRun returns the report and the captured frames.
func capturedRun(t *testing.T, o Options, payload int) (*Report, []captured) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "run.pcapng")
	o.Modes = o.Modes[:1]
	rep := doCaptured(t, o, pcap.Options{File: name, Payload: payload, Ends: true})
	f := testkit.Must(os.Open(name))(t)
	defer f.Close()
	ng := testkit.Must(pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions))(t)
	var frames []captured
	for {
		data, info, opts, err := ng.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.OK(t, err)
		i := testkit.Must(ng.Interface(info.InterfaceIndex))(t)
		c := captured{iface: i.Name, comment: strings.Join(opts.Comments, "\n")}
		if err := splitter.Parse(data, uint32(info.Length), &c.Headers); err != nil || c.Class == splitter.Malformed {
			t.Fatalf("%v: %+v", err, c.Headers)
		}
		c.payload = data[c.HdrLen:]
		if c.Class == splitter.TCP {
			c.findLost(t)
		}
		frames = append(frames, c)
	}
	if rep.Pcap == nil || rep.Pcap.Packets != uint64(len(frames)) || rep.Pcap.Missed != 0 || rep.Pcap.Error != "" {
		t.Fatalf("%d frames: %+v", len(frames), rep.Pcap)
	}
	return rep, frames
}

func doCaptured(t *testing.T, o Options, what pcap.Options) *Report {
	t.Helper()
	testkit.LeavesNothing(t)
	p := testkit.Must(pcap.Start(what, o.Tell))(t)
	o.Services = append(o.Services, p.Service)
	rep := testkit.Must(Do(t.Context(), o))(t)
	rep.Pcap = p.Report()
	validReport(t, rep)
	var table strings.Builder
	if err := rep.Table(&table); err != nil || !strings.Contains(table.String(), "\npcap: "+what.File+", ") {
		t.Errorf("%v: %s", err, &table)
	}
	return rep
}

func (c *captured) findLost(t *testing.T) {
	n := c.FrameLen - uint32(c.HdrLen)
	_, text, some := strings.Cut(c.comment, "lost on the link")
	list, segments := strings.CutPrefix(text, ", segment")
	list = strings.TrimPrefix(list, "s")
	switch {
	case n == 0 || !some:
		return
	case !segments:
		c.lost = append(c.lost, [2]uint32{c.Seq, c.Seq + n})
		return
	}
	mss := uint32(0)
	if _, err := fmt.Sscanf(c.comment[strings.Index(c.comment, "segments of"):], "segments of %d", &mss); err != nil {
		t.Fatalf("%q: %v", c.comment, err)
	}
	list, _, _ = strings.Cut(list, " of ")
	for _, r := range strings.Split(list, ", ") {
		var from, to uint32
		if k, _ := fmt.Sscanf(r, "%d-%d", &from, &to); k == 0 {
			t.Fatalf("%q", c.comment)
		} else if k == 1 {
			to = from
		}
		c.lost = append(c.lost, [2]uint32{c.Seq + (from-1)*mss, c.Seq + min(n, to*mss)})
	}
}

// Nearly all segments that the packets' comments mark as lost are sent again.
//
// Invariant: wire/capture: A capture has all passed frames that it does not count as missed, in
// order, and no byte of payload that was not requested, except headers of RoCEv2.
func TestCaptureOfALossyRun(t *testing.T) {
	testkit.Slow(t)
	o := options(4 << 20)
	o.Loss = 0.02
	rep, frames := capturedRun(t, o, 0)
	lost, again := 0, 0
	first := uint32(0)
	came := make([]bool, o.Size)
	for i, c := range frames {
		n := c.FrameLen - uint32(c.HdrLen)
		if c.Class == splitter.TCP && c.TCPFlags&splitter.SYN != 0 && c.iface == "A-tx" {
			first = c.Seq + 1
		}
		if c.Class != splitter.TCP || n == 0 {
			continue
		}
		if len(c.payload) != 0 {
			t.Fatalf("frame %d: %d bytes of payload that nobody asked for", i, len(c.payload))
		}
		if want := map[string]string{"A-tx": "of payload from GPU 0, frag 0x",
			"B-rx": "of payload to GPU 1, frag 0x"}[c.iface]; !strings.Contains(c.comment, want) {
			t.Errorf("frame %d, %s: %q", i, c.iface, c.comment)
		}
		if c.iface == "B-rx" {
			for k := range n {
				came[c.Seq-first+k] = true
			}
		}
		for _, l := range c.lost {
			lost++
			if slices.ContainsFunc(frames[i+1:], func(d captured) bool {
				m := d.FrameLen - uint32(d.HdrLen)
				return d.iface == c.iface && d.Flow == c.Flow && int32(d.Seq-l[1]) < 0 && int32(d.Seq+m-l[0]) > 0
			}) {
				again++
			}
		}
	}
	if i := slices.Index(came, false); i >= 0 {
		t.Errorf("byte %d never came", i)
	}
	// A needless retransmission may be lost, and is not repeated.
	if lost == 0 || again < lost*9/10 || rep.Runs[0].RetransmittedBytes == 0 {
		t.Errorf("%d runs of segments lost, of which %d were sent again; %d bytes again", lost, again,
			rep.Runs[0].RetransmittedBytes)
	}
}

// Joined by sequence numbers, the captured payload has the digest of the run's.
//
// Invariant: wire/capture: A capture has all passed frames that it does not count as missed, in
// order, and no byte of payload that was not requested, except headers of RoCEv2.
func TestCaptureHasThePayload(t *testing.T) {
	for _, loss := range []float64{0, 0.01} {
		o := options(1 << 20) // fits the capture's queue, even if its writer is slow
		o.Loss, o.Digest = loss, DigestSHA256
		rep, frames := capturedRun(t, o, capture.MaxPayload)
		for _, iface := range []string{"A-tx", "B-rx"} {
			data := make([]byte, o.Size)
			first := uint32(0)
			for i, c := range frames {
				if c.iface != iface || c.Class != splitter.TCP || c.Flow.DstPort != basePort {
					continue
				}
				if c.TCPFlags&splitter.SYN != 0 {
					first = c.Seq + 1
				}
				if pos := c.Seq - first; len(c.payload) > 0 &&
					(uint64(pos) >= o.Size || copy(data[pos:], c.payload) != len(c.payload)) {
					t.Fatalf("%s, frame %d: %d bytes at %d of %d", iface, i, len(c.payload), pos, o.Size)
				}
			}
			if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != rep.Runs[0].SHA256 {
				t.Errorf("%s, loss %v: the payload in the file is another", iface, loss)
			}
		}
	}
}

// A capture that cannot be written does not fail the run.
func TestRunGoesOnWithoutItsCapture(t *testing.T) {
	o := options(1 << 20)
	notes := make(chan string, 10)
	o.Note = func(format string, args ...any) { notes <- fmt.Sprintf(format, args...) }
	rep := doCaptured(t, o, pcap.Options{File: "/dev/full"})
	if rep.Pcap.Packets != 0 || rep.Pcap.Missed == 0 || !strings.Contains(rep.Pcap.Error, "no space left") {
		t.Errorf("%+v", rep.Pcap)
	}
	if n := len(notes); n != 1 {
		t.Fatalf("%d notes", n)
	}
	if s := <-notes; !strings.Contains(s, "--pcap /dev/full: nothing more is captured") {
		t.Error(s)
	}
}
