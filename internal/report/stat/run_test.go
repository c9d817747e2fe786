package stat_test

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/job/run"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: vnic stat: Counters seen from outside equal the counters of the run's report.
func TestCountersOfARun(t *testing.T) {
	t.Setenv(stat.EnvDir, filepath.Join(t.TempDir(), "run"))
	s := testkit.Must(stat.Start(stat.Options{Command: "run"}))(t)
	defer s.Close()
	h := stat.MetricsHandler(s)
	metrics := func() string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	const size = 1 << 20
	var snap *stat.Snapshot
	var page *stat.Page
	var text string
	o := run.Defaults()
	o.Size, o.Modes, o.GPUMemory, o.InProc = size, o.Modes[:1], 32<<20, true
	o.Log, o.Services = slog.New(slog.DiscardHandler), []lab.Service{s.Watch}
	o.Stage = func(step run.Step) {
		if step.Stage == "verify" { // the payload has arrived, and no more is sent
			text, page = metrics(), s.Page()
			var err error
			if snap, err = stat.Read(t.Context(), os.Getpid()); err != nil {
				t.Error(err)
			}
		}
	}
	rep, err := run.Do(t.Context(), o)
	if err != nil || snap == nil {
		t.Fatal(snap, err)
	}
	if len(snap.Ports) != 2 || snap.Ports[0].Name != "A" || snap.Ports[1].Name != "B" ||
		snap.Ports[1].MAC != "02:76:6e:69:00:02" {
		t.Fatalf("%+v", snap.Ports)
	}
	var sent, received, host uint64
	for i, p := range snap.Ports {
		if p.Kind != lab.Virtio || len(p.Queues) != 2 || p.Link.Received == 0 || p.Link.Sent == 0 || p.Engine == nil ||
			p.Engine.Jobs == 0 ||
			len(p.GPUs) != 1 || p.GPUs[0].Bytes != 32<<20 || p.GPUs[0].Buffers == 0 || p.GPUs[0].Registered < size {
			t.Errorf("%+v", p)
		}
		for _, q := range p.Queues {
			sent, received = sent+q.TX.DeviceBytes, received+q.RX.DeviceBytes
			host += q.TX.HostBytes + q.RX.HostBytes
			for dir, d := range map[string]stat.Direction{"rx": q.RX, "tx": q.TX} {
				labels := fmt.Sprintf(`direction="%s",port="%s",queue="%d"`, dir, p.Name, q.Index)
				for _, line := range []string{
					fmt.Sprintf("vnic_packets_total{%s} %v\n", labels, float64(d.Packets)),
					fmt.Sprintf("vnic_header_bytes_total{%s} %v\n", labels, float64(d.HeaderBytes)),
					fmt.Sprintf(`vnic_payload_bytes_total{direction="%s",domain="device",port="%s",queue="%d"} %v`+"\n", dir, p.Name,
						q.Index, float64(d.DeviceBytes)),
				} {
					if !strings.Contains(text, line) {
						t.Errorf("no %s", line)
					}
				}
			}
		}
		if split := snap.Ports[i].Queues[1].Split; split != (p.Name == "B") {
			t.Errorf("%s: split %v", p.Name, split)
		}
	}
	if r := rep.Runs[0]; sent != r.TX.Device || received != r.RX.Device || sent != size || host != 0 {
		t.Errorf("sent %d, received %d of device memory, %d of host memory; the run: %+v", sent, received, host, r)
	}
	if snap.Links != nil || snap.Scale != nil || strings.Contains(text, "vnic_lab") {
		t.Errorf("links of a lab without described hardware: %+v", snap.Links)
	}
	checkFlows(t, snap.Flows, size)
	checkPage(t, page)
	if last := s.Last(); last == nil || len(last.Ports) != 2 || last.Flows == nil {
		t.Errorf("the counters at the end: %+v", last)
	}
	if left := metrics(); len(s.Snapshot().Ports) != 0 || strings.Contains(left, "vnic_port_info") {
		t.Errorf("after the run: %+v", s.Snapshot())
	}
}

// checkFlows checks that the first flow moved size bytes from A's GPU memory to B's by a rule, that there are no hints,
// and that FlowTable shows the flow.
func checkFlows(t *testing.T, f *stat.Flows, size uint64) {
	t.Helper()
	if f == nil || len(f.List) == 0 {
		t.Fatalf("%+v", f)
	}
	big := f.List[0]
	if big.Proto != "tcp" || len(big.TX) != 1 || len(big.RX) != 1 || big.TX[0].Port != "A" || big.RX[0].Port != "B" ||
		big.TX[0].Device < size || big.RX[0].Device != size || big.RX[0].Host != 0 || big.RX[0].Rule == 0 ||
		big.RX[0].Queues[0] != 1 || len(big.RX[0].Bound) != 1 || big.RX[0].Bound[0] != 1 || big.RX[0].Header == 0 ||
		big.RX[0].Again != 0 || big.TX[0].First.IsZero() || big.TX[0].Last.Before(big.TX[0].First) {
		t.Errorf("%+v", big)
	}
	if len(f.Hints) > 0 {
		t.Errorf("hints about a good run: %q", f.Hints)
	}
	var b strings.Builder
	testkit.OK(t, stat.FlowTable(&b, f))
	if text := b.String(); !strings.Contains(text, "who sent what to whom") || !strings.Contains(text, "1.0 MiB") {
		t.Error(text)
	}
}

// checkPage checks a page's hardware, ranges of GPU memory, and events of the set-up.
func checkPage(t *testing.T, p *stat.Page) {
	t.Helper()
	if len(p.Machines) != 2 || len(p.Machines[1].NICs) != 1 || len(p.Machines[1].GPUs) != 1 ||
		p.Machines[1].NICs[0].Name != "B" || !p.Machines[1].NICs[0].Paths[0].Direct || len(p.Machines[1].NICs[0].Addrs) != 2 {
		t.Errorf("%+v", p.Machines)
	}
	states := map[string]uint64{}
	for _, m := range p.Memory {
		end := uint64(0)
		for _, r := range m.Ranges {
			if r.Off < end || r.Len == 0 || r.Off+r.Len > m.Bytes || r.Binding == 0 || r.State == "posted" && r.Queue != 1 {
				t.Errorf("%+v", r)
			}
			end = r.Off + r.Len
			states[r.Port+" "+r.State] += r.Len
		}
	}
	if states["A send"] == 0 || states["B posted"] == 0 {
		t.Errorf("%v", states)
	}
	kinds := map[string]string{}
	for i, e := range p.Events {
		if e.Seq != uint64(i+1) || e.Time.IsZero() {
			t.Errorf("%+v", e)
		}
		kinds[e.Port+" "+e.Kind] += e.Text + "\n"
	}
	if !strings.Contains(kinds["B rule"], "tcp") || !strings.Contains(kinds["B rule"], "goes to queue 1") ||
		!strings.Contains(kinds["B binding"], "for receive queue 1") ||
		!strings.Contains(kinds["A binding"], "for transmit") ||
		!strings.Contains(kinds["B split"], "queue 1: headers are split from payload") {
		t.Errorf("%q", kinds)
	}
}

// Invariant: vnic stat: Losses and retransmitted bytes are shown for each connection.
func TestFlowsOfALossyRun(t *testing.T) {
	t.Setenv(stat.EnvDir, filepath.Join(t.TempDir(), "run"))
	s := testkit.Must(stat.Start(stat.Options{Command: "run"}))(t)
	defer s.Close()
	o := run.Defaults()
	o.Size, o.Modes, o.GPUMemory, o.InProc = 1<<20, o.Modes[:1], 32<<20, true
	o.Loss, o.Seed = 0.02, 7
	o.Log, o.Services = slog.New(slog.DiscardHandler), []lab.Service{s.Watch}
	testkit.Must(run.Do(t.Context(), o))(t)
	f := s.Last().Flows
	big := f.List[0]
	if big.TX[0].Again == 0 || len(f.Hints) == 0 || !strings.Contains(strings.Join(f.Hints, "\n"), "sent again") {
		t.Errorf("%+v, %q", big, f.Hints)
	}
}

// Invariant: vnic stat: The tokens that a connection holds are shown if its stack is vnic's.
func TestTokensHeldAreTold(t *testing.T) {
	t.Setenv(stat.EnvDir, filepath.Join(t.TempDir(), "run"))
	s := testkit.Must(stat.Start(stat.Options{Command: "run"}))(t)
	defer s.Close()
	for _, hold := range []uint64{0, 100} { // the receiver gets more than 100 tokens
		o := run.Defaults()
		o.Size, o.Modes, o.GPUMemory, o.InProc, o.HoldTokens = 2<<20, o.Modes[:1], 32<<20, true, hold
		o.Log, o.Services = slog.New(slog.DiscardHandler), []lab.Service{s.Watch}
		held, table := -1, ""
		var memory []stat.GPUMap
		o.Stage = func(step run.Step) {
			if step.Stage == "connect" { // memory is bound, and no payload has arrived
				testkit.Eventually(t, "posted memory to be seen", func() bool { return stat.HasLooked(s) })
			}
			if step.Stage != "verify" {
				return
			}
			memory = s.Page().Memory
			now := s.Snapshot().Flows
			if rx := now.List[0].RX; len(rx) == 1 && rx[0].Held != nil {
				held = *rx[0].Held
			}
			var b strings.Builder
			testkit.NoError(t, stat.FlowTable(&b, now))
			table = b.String()
		}
		testkit.Must(run.Do(t.Context(), o))(t)
		testkit.Equal(t, "tokens held", held, int(hold))
		inMap := uint64(0)
		for _, m := range memory {
			for _, r := range m.Ranges {
				if r.State == "held" && r.Port == "B" {
					inMap += r.Len
				}
			}
		}
		if inMap < hold*4096*3/4 { // the payload of two tokens may be in one page
			t.Errorf("the map has %d bytes that are held, of %d tokens: %+v", inMap, hold, memory)
		}
		if !strings.Contains(table, "  TOKENS HELD  ") {
			t.Errorf("the table has no tokens: %s", table)
		}
	}
}

// Invariant: vnic stat: Links are shown for a lab whose hardware is described, and agree with the
// queues' counters.
func TestLinksOfARun(t *testing.T) {
	t.Setenv(stat.EnvDir, filepath.Join(t.TempDir(), "run"))
	s := testkit.Must(stat.Start(stat.Options{Command: "run"}))(t)
	defer s.Close()
	h := stat.MetricsHandler(s)
	const size = 1 << 20
	file := filepath.Join(t.TempDir(), "lab.yaml")
	testkit.OK(t, os.WriteFile(file, []byte(`guests:
  a: &a
    sockets: [{name: s0}]
    nics: [{name: nic0, below: s0, rate: 25Gbit}]
    gpus: [{name: gpu0, below: s0, link: gen4x16}]
  b: *a
`), 0o600))
	o := run.Defaults()
	l := testkit.Must(labfile.Load(file, nil))(t)
	l.Sow(7)
	o.Take(l, 1)
	o.Size, o.Modes, o.InProc = size, o.Modes[:1], true
	o.Log, o.Services = slog.New(slog.DiscardHandler), []lab.Service{s.Watch}
	seen := 0
	o.Stage = func(step run.Step) {
		if step.Stage != "verify" {
			return
		}
		seen++
		testkit.Eventually(t, "links' payload to equal the queues' counts", func() bool {
			snap, err := stat.Read(t.Context(), os.Getpid())
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			text := w.Body.String()
			if err != nil || snap.Scale == nil || *snap.Scale != 1 || !strings.Contains(text, "\nvnic_lab_scale 1\n") {
				t.Errorf("%v, %+v", err, snap)
				return true
			}
			links := make(map[string]stat.LabLink)
			for _, l := range snap.Links {
				links[l.Name] = l
			}
			same := true
			for _, p := range snap.Ports {
				var up, down uint64
				for _, q := range p.Queues {
					down += q.TX.DeviceBytes + q.TX.GPUFileBytes + q.TX.HostBytes
					up += q.RX.DeviceBytes + q.RX.GPUFileBytes + q.RX.HostBytes
				}
				for _, x := range []struct {
					name string
					n    uint64
					rate float64
				}{{" down", down, 0}, {" out", down, 25e9 / 8}, {" up", up, 0}, {" in", up, 25e9 / 8}} {
					l := links[p.Name+x.name]
					same = same && l.Payload == x.n && l.Bytes > l.Payload && l.Rate == x.rate && l.Busy > 0 == (x.rate > 0) &&
						strings.Contains(text, fmt.Sprintf("vnic_lab_link_payload_bytes_total{link=%q} %v\n", l.Name, float64(x.n))) &&
						strings.Contains(text, fmt.Sprintf("vnic_lab_link_rate_bytes{link=%q} %v\n", l.Name, x.rate)) == (x.rate > 0)
				}
			}
			return same && links["a.gpu0 up"].Payload >= size && links["a.s0 memory"].Payload >= 2*size
		})
	}
	testkit.OK(t, testkit.Err(run.Do(t.Context(), o)))
	testkit.Equal(t, "calls of Stage at verify", seen, 1)
	if now := s.Snapshot(); now.Links != nil || now.Scale != nil {
		t.Errorf("after the run: %+v", now)
	}
}
