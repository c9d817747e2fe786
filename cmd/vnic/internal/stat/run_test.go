package stat_test

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/cmd/vnic/internal/run"
	"vnic.dev/vnic/cmd/vnic/internal/stat"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
)

// What a run has counted is seen from outside, by either way, and it is what the run itself reports.
//
// Invariant: vnic stat: Counters seen from outside are those of the run's report.
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
	var text string
	o := run.Defaults()
	o.Size, o.Modes, o.GPUMemory, o.InProc = size, o.Modes[:1], 32<<20, true
	o.Log, o.Services = slog.New(slog.DiscardHandler), []lab.Service{s.Watch}
	o.Stage = func(step run.Step) {
		if step.Stage == "verify" { // all is there, and nothing is sent any more
			text = metrics()
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
	if left := metrics(); len(s.Snapshot().Ports) != 0 || strings.Contains(left, "vnic_port_info") {
		t.Errorf("after the run: %+v", s.Snapshot())
	}
}
