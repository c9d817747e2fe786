package rdma

import (
	"fmt"
	"io"
	"strings"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/session"
)

// Report is the result of `vnic rdma`, as --json prints it.
type Report struct {
	Schema int `json:"schema"`
	session.Info
	Op     string  `json:"op"`
	Size   uint64  `json:"size"`
	Block  uint64  `json:"block_bytes"`
	Depth  int     `json:"depth"`
	QPs    int     `json:"qps"`
	Rounds int     `json:"rounds"`
	Loss   float64 `json:"loss"`
	Seed   uint64  `json:"seed"`
	Runs   []Run   `json:"runs"`

	session.Captured
}

// Run has the results of the rounds with a kind of memory.
type Run struct {
	Memory    string  `json:"mr"`
	PathMTU   int     `json:"path_mtu"`
	Rounds    int     `json:"rounds"`
	Bytes     uint64  `json:"bytes"`
	Seconds   float64 `json:"seconds"` // by the requester's clock; for RAM without the copies of the GPUs' engines
	Requests  uint64  `json:"work_requests"`
	Requester End     `json:"requester"`
	Responder End     `json:"responder"`
	// every byte was compared and was right
	Verified     bool   `json:"verified"`
	Pages        *Pages `json:"pages,omitempty"`         // for OnDemand
	Error        string `json:"error,omitempty"`         // what was found wrong first
	SourceSHA256 string `json:"source_sha256,omitempty"` // digest of the last round's source; "": not computed
	SHA256       string `json:"sha256,omitempty"`
}

// End has the counters of a guest's NIC over all rounds: of the requester's requests and of the answers to them, with
// OnDemand in the direction of Op only.
type End struct {
	Guest           string `json:"guest"`
	NIC             string `json:"nic"`
	P2P             bool   `json:"p2p"`
	Device          uint64 `json:"device"`   // payload in registered buffers of a GPU, or pages on demand in it
	GPUFile         uint64 `json:"gpu_file"` // payload elsewhere in a GPU's memory
	Host            uint64 `json:"host"`     // payload in host memory
	Bounced         uint64 `json:"bounced"`  // part of Host: to or from a GPU that the NIC does not reach
	Again           uint64 `json:"again"`    // part of the payload: moved more than once
	RequestPackets  uint64 `json:"request_packets"`
	ResponsePackets uint64 `json:"response_packets"`
	AgainPackets    uint64 `json:"again_packets"` // sent or received again
	Sequence        uint64 `json:"sequence_naks"`
	NotReady        uint64 `json:"not_ready_naks"`
	Errors          uint64 `json:"error_naks"`
	Timeouts        uint64 `json:"timeouts"`
	ICRC            uint64 `json:"icrc_errors"`
	// CPU seconds of the guest for each 10^9 bytes; null: it shares this process
	CPUPerGB *float64 `json:"guest_cpu_seconds_per_gb"`
}

func newEnd(g *session.Node) End {
	return End{Guest: g.Name, NIC: g.Port.Model.Name, P2P: g.P2P, CPUPerGB: new(float64)}
}

// add adds what the NIC counted between two readings. gb is the data of all rounds, in 10^9 bytes; cpu is in
// seconds.
func (e *End) add(now, before *control.RDMACounts, gb, cpu float64) {
	e.Device += now.DeviceBytes - before.DeviceBytes
	e.GPUFile += now.GPUFileBytes - before.GPUFileBytes
	e.Host += now.HostBytes - before.HostBytes
	e.Bounced += now.BouncedBytes - before.BouncedBytes
	e.Again += now.AgainBytes - before.AgainBytes
	e.RequestPackets += now.Requests - before.Requests
	e.ResponsePackets += now.Responses - before.Responses
	e.AgainPackets += now.AgainPackets - before.AgainPackets
	e.Sequence += now.Sequence - before.Sequence
	e.NotReady += now.NotReady - before.NotReady
	e.Errors += now.Errors - before.Errors
	e.Timeouts += now.Timeouts - before.Timeouts
	*e.CPUPerGB += cpu / gb
}

func (e *End) payload() uint64 { return e.Device + e.GPUFile + e.Host }

func (e *End) wrong(memory string, bytes uint64) (f report.Findings) {
	f.If(e.payload()-e.Again != bytes, "%d bytes of payload, without %d that were moved again, and not %d",
		e.payload()-e.Again, e.Again, bytes)
	if memory == OnDemand { // pages may be in RAM or in the GPU
		f.If(e.GPUFile > 0, "%d bytes in GPU memory that is nobody's", e.GPUFile)
		f.If(!e.P2P && e.Device > 0, "without peer-to-peer %d bytes lay in the GPU", e.Device)
		f.If(e.Bounced > 0, "%d bytes were bounced, and pages should have come to RAM", e.Bounced)
		return f
	}
	gpu := memory != RAM
	f.If(gpu && e.P2P && (e.Host > 0 || e.GPUFile > 0),
		"%d bytes lay in host memory, and %d in GPU memory that is not registered", e.Host, e.GPUFile)
	f.If(gpu && !e.P2P && (e.Device > 0 || e.GPUFile > 0 || e.Bounced != e.Host),
		"without peer-to-peer %d bytes lay in device memory, and %d of %d were bounced", e.Device+e.GPUFile, e.Bounced,
		e.Host)
	f.If(!gpu && (e.Device > 0 || e.GPUFile > 0 || e.Bounced > 0), "%d bytes lay in device memory, %d were bounced",
		e.Device+e.GPUFile, e.Bounced)
	return f
}

// wrong lists what contradicts the proof; size is the bytes of a round.
func (r *Run) wrong(size uint64) (f report.Findings) {
	f.If(r.Error != "", "%s", r.Error)
	if p := r.Pages; p != nil {
		f.If(p.AfterAck > 0,
			"%d pages of the GPU were written to after the NIC had acknowledged that it has let go of them", p.AfterAck)
		f.If(p.Quarantined, "the NIC did not acknowledge an invalidation in time, and its memory region is in quarantine")
		f.If(!r.Responder.P2P && p.MapsP2P > 0, "without peer-to-peer the NIC got to know %d pages in the GPU", p.MapsP2P)
	}
	want := size * uint64(r.Rounds)
	f.If(r.Bytes != want, "%d bytes of %d", r.Bytes, want)
	requester := r.Memory
	if requester == OnDemand {
		requester = GPU // the requester's memory is pinned GPU memory
	}
	f.Within("guest "+r.Requester.Guest, r.Requester.wrong(requester, r.Bytes))
	f.Within("guest "+r.Responder.Guest, r.Responder.wrong(r.Memory, r.Bytes))
	return f
}

// check returns an ErrProof for results that contradict the proof.
func (r *Report) check() error {
	return report.Prove(ErrProof, r.Runs, func(x *Run) (string, report.Findings) {
		return "--mr " + x.Memory, x.wrong(r.Size)
	})
}

var columns = report.Columns[Run]{
	{Title: "mr", Text: func(r *Run) string { return r.Memory }},
	{Title: "bytes", Count: func(r *Run) *uint64 { return &r.Bytes }},
	{Title: "MB/s", Text: func(r *Run) string { return fmt.Sprintf("%.1f", report.PerSecond(r.Bytes, r.Seconds)/1e6) }},
	{Title: "work requests", Count: func(r *Run) *uint64 { return &r.Requests }},
	{Title: "path MTU", Text: func(r *Run) string { return fmt.Sprint(r.PathMTU) }},
	{Title: "packets", Text: func(r *Run) string {
		return report.Number(r.Requester.RequestPackets + r.Requester.ResponsePackets)
	}},
	{Title: "sent again", Count: func(r *Run) *uint64 { return &r.Requester.AgainPackets }},
	{Title: "NAKs", Text: func(r *Run) string {
		a := &r.Requester
		return report.Number(a.Sequence + a.NotReady + a.Errors)
	}},
	{Title: "timeouts", Count: func(r *Run) *uint64 { return &r.Requester.Timeouts }},
	{Title: "digest", Text: func(r *Run) string {
		switch {
		case r.Error != "":
			return "WRONG"
		case r.Verified && r.Rounds > 1:
			return "match, in all rounds"
		case r.Verified:
			return "match"
		}
		return "not compared"
	}},
}

type side struct {
	*End
	memory, role string
}

var endColumns = report.Columns[side]{
	{Title: "mr", Text: func(s *side) string { return s.memory }},
	{Title: "guest", Text: func(s *side) string { return s.Guest }},
	{Title: "is", Text: func(s *side) string { return s.role }},
	{Title: "NIC", Text: func(s *side) string { return s.NIC }},
	{Title: "p2p", Text: func(s *side) string { return map[bool]string{true: "on", false: "off"}[s.P2P] }},
	{Title: "device", Count: func(s *side) *uint64 { return &s.Device }},
	{Title: "GPU file", Count: func(s *side) *uint64 { return &s.GPUFile }},
	{Title: "host", Count: func(s *side) *uint64 { return &s.Host }},
	{Title: "bounced", Count: func(s *side) *uint64 { return &s.Bounced }},
	{Title: "moved again", Count: func(s *side) *uint64 { return &s.Again }},
	{Title: "guest CPU s/GB", Text: func(s *side) string { return session.Cost(s.CPUPerGB) }},
}

// Table prints the report as text.
func (r *Report) Table(w io.Writer) error {
	var b strings.Builder
	what := map[string]string{Put: "guest0's NIC writes guest1's memory", Get: "guest0's NIC reads guest1's memory"}[r.Op]
	if len(r.Runs) > 0 {
		what = strings.NewReplacer("guest0", r.Runs[0].Requester.Guest, "guest1", r.Runs[0].Responder.Guest).Replace(what)
	}
	fmt.Fprintf(&b, "%s: %s", what, lab.ShowBytes(r.Size))
	if r.Rounds > 1 {
		fmt.Fprintf(&b, ", %d times", r.Rounds)
	}
	pairs := "a queue pair"
	if r.QPs > 1 {
		pairs = fmt.Sprintf("each of %d queue pairs", r.QPs)
	}
	fmt.Fprintf(&b, "\nwork requests of %s, %d at a time on %s; rates are the emulation's\n\n", lab.ShowBytes(r.Block),
		r.Depth, pairs)
	_ = columns.Table(&b, r.Runs)
	var sides []side
	for i := range r.Runs {
		x := &r.Runs[i]
		sides = append(sides, side{&x.Requester, x.Memory, "requester"}, side{&x.Responder, x.Memory, "responder"})
	}
	b.WriteByte('\n')
	_ = endColumns.Table(&b, sides)
	for i := range r.Runs {
		if p := r.Runs[i].Pages; p != nil {
			b.WriteByte('\n')
			p.table(&b)
		}
	}
	b.WriteByte('\n')
	for i := range r.Runs {
		x := &r.Runs[i]
		if x.Error != "" {
			fmt.Fprintf(&b, "--mr %s: %s\n", x.Memory, x.Error)
		}
		if x.SHA256 != "" {
			fmt.Fprintf(&b, "sha256, --mr %s: %s\n", x.Memory, x.SHA256)
		}
	}
	return r.End(w, &b, &r.Info, "", r.Seed)
}

var pageColumns = report.Columns[Pages]{
	{Title: "pages", Count: func(p *Pages) *uint64 { return &p.Pages }},
	{Title: "page requests", Count: func(p *Pages) *uint64 { return &p.Requests }},
	{Title: "P2P maps", Count: func(p *Pages) *uint64 { return &p.MapsP2P }},
	{Title: "host maps", Count: func(p *Pages) *uint64 { return &p.MapsHost }},
	{Title: "P2P bytes", Count: func(p *Pages) *uint64 { return &p.BytesP2P }},
	{Title: "host bytes", Count: func(p *Pages) *uint64 { return &p.BytesRAM }},
	{Title: "to GPU", Count: func(p *Pages) *uint64 { return &p.ToGPU }},
	{Title: "to RAM", Count: func(p *Pages) *uint64 { return &p.ToRAM }},
	{Title: "touched", Count: func(p *Pages) *uint64 { return &p.Touched }},
}

var invalidationColumns = report.Columns[Pages]{
	{Title: "invalidations", Count: func(p *Pages) *uint64 { return &p.Invalidations }},
	{Title: "p50 us", Text: func(p *Pages) string { return fmt.Sprintf("%.0f", p.P50) }},
	{Title: "p99 us", Text: func(p *Pages) string { return fmt.Sprintf("%.0f", p.P99) }},
	{Title: "idle wake-up p99 us", Text: func(p *Pages) string { return fmt.Sprintf("%.0f", p.IdleP99) }},
	{Title: "parked", Count: func(p *Pages) *uint64 { return &p.Parked }},
	{Title: "retried", Count: func(p *Pages) *uint64 { return &p.Retried }},
	{Title: "DMA after acknowledgement", Text: func(p *Pages) string {
		return report.Number(p.AfterAck) + " of " + report.Number(p.Looked) + " pages"
	}},
}

func (p *Pages) table(b *strings.Builder) {
	_ = pageColumns.Table(b, []Pages{*p})
	b.WriteByte('\n')
	_ = invalidationColumns.Table(b, []Pages{*p})
}
