package putget

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab"
)

// Report is the result of `vnic rdma`, and its --json.
type Report struct {
	Schema int `json:"schema"` // 1
	guests.Info
	Op     string  `json:"op"` // Put or Get
	Size   uint64  `json:"size"`
	Block  uint64  `json:"block_bytes"`
	Depth  int     `json:"depth"`
	QPs    int     `json:"qps"`
	Rounds int     `json:"rounds"`
	Loss   float64 `json:"loss"`
	Seed   uint64  `json:"seed"`
	Runs   []Run   `json:"runs"`

	guests.Captured
}

// Run is all rounds with a kind of memory.
type Run struct {
	Memory    string  `json:"mr"`
	PathMTU   int     `json:"path_mtu"`
	Rounds    int     `json:"rounds"`
	Bytes     uint64  `json:"bytes"`
	Seconds   float64 `json:"seconds"` // by the requester's clock; with RAM without the engines' copies
	Requests  uint64  `json:"work_requests"`
	Requester End     `json:"requester"`
	Responder End     `json:"responder"`
	// Verified says that every byte was compared, and was right.
	Verified     bool   `json:"verified"`
	Pages        *Pages `json:"pages,omitempty"`         // of OnDemand
	Error        string `json:"error,omitempty"`         // the first byte that was wrong
	SourceSHA256 string `json:"source_sha256,omitempty"` // of the last round
	SHA256       string `json:"sha256,omitempty"`
}

// End is what a guest's NIC counts in all rounds: the requester's of its requests, the responder's of its answers.
type End struct {
	Guest   string `json:"guest"`
	NIC     string `json:"nic"` // model
	P2P     bool   `json:"p2p"`
	Device  uint64 `json:"device"`   // payload in registered buffers of a GPU
	GPUFile uint64 `json:"gpu_file"` // elsewhere in a GPU's memory
	Host    uint64 `json:"host"`     // in host memory
	Bounced uint64 `json:"bounced"`  // of Host: on its way to a GPU, or from one, that the NIC does not reach
	Again   uint64 `json:"again"`    // of all payload: moved again
	// Packets of requests and of their answers.
	RequestPackets  uint64 `json:"request_packets"`
	ResponsePackets uint64 `json:"response_packets"`
	AgainPackets    uint64 `json:"again_packets"` // sent again, or seen before
	Sequence        uint64 `json:"sequence_naks"`
	NotReady        uint64 `json:"not_ready_naks"`
	Errors          uint64 `json:"error_naks"`
	Timeouts        uint64 `json:"timeouts"`
	ICRC            uint64 `json:"icrc_errors"`
	// CPU seconds of the guest for each 10^9 bytes; null: it shares this process
	CPUPerGB *float64 `json:"guest_cpu_seconds_per_gb"`
}

func newEnd(g *guests.Node) End {
	return End{Guest: g.Name, NIC: g.Port.Model.Name, P2P: g.P2P, CPUPerGB: new(float64)}
}

// add adds what was counted since before.
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

// wrong says what of an end's counters is not as it must be.
func (e *End) wrong(memory string, bytes uint64) (list []string) {
	is := func(bad bool, format string, args ...any) {
		if bad {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	is(e.payload()-e.Again != bytes, "%d bytes of payload, without %d that were moved again, and not %d",
		e.payload()-e.Again, e.Again, bytes)
	if memory == OnDemand { // wherever its pages are
		is(e.GPUFile > 0, "%d bytes in GPU memory that is nobody's", e.GPUFile)
		is(!e.P2P && e.Device > 0, "without peer-to-peer %d bytes lay in the GPU", e.Device)
		is(e.Bounced > 0, "%d bytes were bounced, and pages should have come to RAM", e.Bounced)
		return list
	}
	gpu := memory != RAM
	is(gpu && e.P2P && (e.Host > 0 || e.GPUFile > 0),
		"%d bytes lay in host memory, and %d in GPU memory that is not registered", e.Host, e.GPUFile)
	is(gpu && !e.P2P && (e.Device > 0 || e.GPUFile > 0 || e.Bounced != e.Host),
		"without peer-to-peer %d bytes lay in device memory, and %d of %d were bounced", e.Device+e.GPUFile, e.Bounced,
		e.Host)
	is(!gpu && (e.Device > 0 || e.GPUFile > 0 || e.Bounced > 0), "%d bytes lay in device memory, %d were bounced",
		e.Device+e.GPUFile, e.Bounced)
	return list
}

// check holds the report against what it must prove.
func (r *Report) check() error {
	var errs []error
	for i := range r.Runs {
		x := &r.Runs[i]
		says := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("--mr %s: "+format, append([]any{x.Memory}, args...)...))
		}
		if x.Error != "" {
			says("%s", x.Error)
		}
		if p := x.Pages; p != nil {
			if p.AfterAck > 0 {
				says("%d pages of the GPU were written to after the NIC had acknowledged that it has let go of them", p.AfterAck)
			}
			if p.Quarantined {
				says("the NIC did not acknowledge an invalidation in time, and its memory region is in quarantine")
			}
			if e := &x.Responder; !e.P2P && p.MapsP2P > 0 {
				says("without peer-to-peer the NIC got to know %d pages in the GPU", p.MapsP2P)
			}
		}
		if want := r.Size * uint64(x.Rounds); x.Bytes != want {
			says("%d bytes of %d", x.Bytes, want)
		}
		for _, e := range []*End{&x.Requester, &x.Responder} {
			memory := x.Memory
			if e == &x.Requester && memory == OnDemand {
				memory = GPU // its own is pinned
			}
			for _, wrong := range e.wrong(memory, x.Bytes) {
				says("guest %s: %s", e.Guest, wrong)
			}
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w:\n%w", ErrProof, errors.Join(errs...))
	}
	return nil
}

// Table prints the report for people.
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
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	n := func(v uint64) string { return humanize.Comma(int64(v)) }
	fmt.Fprintln(tw, "mr\tbytes\tMB/s\twork requests\tpath MTU\tpackets\tsent again\tNAKs\ttimeouts\tdigest")
	for i := range r.Runs {
		x := &r.Runs[i]
		rate := 0.0
		if x.Seconds > 0 {
			rate = float64(x.Bytes) / x.Seconds / 1e6
		}
		digest := "not compared"
		switch {
		case x.Error != "":
			digest = "WRONG"
		case x.Verified && x.Rounds > 1:
			digest = "match, in all rounds"
		case x.Verified:
			digest = "match"
		}
		a := &x.Requester
		fmt.Fprintf(tw, "%s\t%s\t%.1f\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", x.Memory, n(x.Bytes), rate, n(x.Requests), x.PathMTU,
			n(a.RequestPackets+a.ResponsePackets), n(a.AgainPackets), n(a.Sequence+a.NotReady+a.Errors), n(a.Timeouts), digest)
	}
	_ = tw.Flush() // a strings.Builder takes all
	fmt.Fprintln(tw, "\nmr\tguest\tis\tNIC\tp2p\tdevice\tGPU file\thost\tbounced\tmoved again\tguest CPU s/GB")
	for i := range r.Runs {
		x := &r.Runs[i]
		for _, e := range []struct {
			*End
			is string
		}{{&x.Requester, "requester"}, {&x.Responder, "responder"}} {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Memory, e.Guest, e.is, e.NIC,
				map[bool]string{true: "on", false: "off"}[e.P2P], n(e.Device), n(e.GPUFile), n(e.Host), n(e.Bounced), n(e.Again),
				guests.Cost(e.CPUPerGB))
		}
	}
	_ = tw.Flush()
	for i := range r.Runs {
		if p := r.Runs[i].Pages; p != nil {
			b.WriteByte('\n')
			p.table(&b, tw)
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
	fmt.Fprintf(&b, "guests: %v; seed %d\n", &r.Info, r.Seed)
	if r.Pcap != nil {
		fmt.Fprintln(&b, r.Pcap)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table prints what became of pages.
func (p *Pages) table(b *strings.Builder, tw *tabwriter.Writer) {
	n := func(v uint64) string { return humanize.Comma(int64(v)) }
	fmt.Fprintln(tw, "pages\tpage requests\tP2P maps\thost maps\tP2P bytes\thost bytes\tto GPU\tto RAM\ttouched")
	fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", n(p.Pages), n(p.Requests), n(p.MapsP2P), n(p.MapsHost),
		n(p.BytesP2P), n(p.BytesRAM), n(p.ToGPU), n(p.ToRAM), n(p.Touched))
	_ = tw.Flush()
	b.WriteByte('\n')
	fmt.Fprintln(tw, "invalidations\tp50 us\tp99 us\tidle wake-up p99 us\tparked\tretried\tDMA after acknowledgement")
	fmt.Fprintf(tw, "%s\t%.0f\t%.0f\t%.0f\t%s\t%s\t%s of %s pages\n", n(p.Invalidations), p.P50, p.P99, p.IdleP99,
		n(p.Parked), n(p.Retried), n(p.AfterAck), n(p.Looked))
	_ = tw.Flush()
}
