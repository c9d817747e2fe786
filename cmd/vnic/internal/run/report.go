package run

import (
	_ "embed" // the schema

	"vnic.dev/vnic/cmd/vnic/internal/pcap"
)

// Schema is the JSON schema of a Report.
//
//go:embed schema.json
var Schema string

// Report is the result of `vnic run`, and its --json (schema.json).
type Report struct {
	Schema int   `json:"schema"`
	Runs   []Run `json:"runs"` // of all rails together, if there are any
	// by mode, then by rail, then by direction
	Rails []Rail `json:"rails,omitempty"`
	// rate of devmem over rate of copy, null when one did not run; emulation's, no performance claim
	Ratio       *float64 `json:"ratio"`
	NIC         string   `json:"nic"` // "virtio" or "gve"
	BindQueues  int      `json:"bind_queues"`
	QEMU        string   `json:"qemu"`
	Kernel      string   `json:"kernel"`
	Accel       string   `json:"accel"`
	Guest       string   `json:"guest"` // "qemu" or "inproc"
	P2P         bool     `json:"p2p"`
	MTU         int      `json:"mtu"`
	Family      int      `json:"family"`
	Loss        float64  `json:"loss"`
	Reorder     float64  `json:"reorder"`
	Seed        uint64   `json:"seed"`
	Scale       float64  `json:"scale,omitempty"` // how many times slower than they say the lab's links were
	Digest      string   `json:"digest"`          // what sha256 of the runs is: DigestPieces or DigestSHA256
	Untested    []string `json:"untested,omitempty"`
	BootSeconds float64  `json:"boot_seconds,omitempty"`

	Half *Half        `json:"half,omitempty"` // one guest only was here
	Pcap *pcap.Report `json:"pcap,omitempty"` // set by the caller, which captured
}

// Rail is what a transfer of one direction of a rail has done.
type Rail struct {
	Rail    int    `json:"rail"` // from 0
	From    string `json:"from"` // NIC, as a.nic0
	FromGPU string `json:"from_gpu"`
	To      string `json:"to"`
	ToGPU   string `json:"to_gpu"`
	Path    string `json:"path"`            // the worse of both ends' between NIC and GPU: PIX, PXB, PHB, NODE, SYS
	P2P     bool   `json:"p2p"`             // both ends' NICs reach their GPU's memory themselves
	Share   *Share `json:"share,omitempty"` // of its links, where these have rates
	Run
}

// Run is one mode's transfer, all rounds together.
type Run struct {
	Mode        string  `json:"mode"`
	Bytes       uint64  `json:"bytes"`
	Seconds     float64 `json:"seconds"`
	SHA256Match bool    `json:"sha256_match"`
	// of the destination; of several rounds, of their digests one after the other
	SHA256             string      `json:"sha256"`
	PayloadBytesDevice uint64      `json:"payload_bytes_device"`
	PayloadBytesHost   uint64      `json:"payload_bytes_host"`
	LinearBytes        uint64      `json:"linear_bytes"`
	HeaderBytes        uint64      `json:"header_bytes"`
	CopyEngineBytes    uint64      `json:"copy_engine_bytes"`
	RetransmittedBytes uint64      `json:"retransmitted_bytes"`
	DroppedPackets     uint64      `json:"dropped_packets"`
	GuestCPUSeconds    *float64    `json:"guest_cpu_seconds"` // null: in-process guests share our CPU time; and of rails
	GuestCPU           *CPU        `json:"guest_cpu,omitempty"`
	TX                 Where       `json:"tx"`
	RX                 Where       `json:"rx"`
	Seed               uint64      `json:"seed"`
	Rounds             int         `json:"rounds"`
	Fragments          uint64      `json:"fragments"`
	BouncedBytes       uint64      `json:"bounced_bytes"`
	Audit              *AuditCount `json:"audit,omitempty"`
	Hold               *Hold       `json:"hold,omitempty"`
	LateTokens         *LateTokens `json:"late_tokens,omitempty"`
	Links              []Link      `json:"links,omitempty"` // of a lab, the most loaded one first
	// of a lab in mode copy: beside Links, and in none of them
	StackCopies []StackCopies `json:"stack_copies,omitempty"`
}

// Where is payload by the kind of memory that the NIC read it from (tx) or wrote it to (rx).
type Where struct {
	Device uint64 `json:"device"` // registered GPU buffers
	Host   uint64 `json:"host"`   // everything else
}

// CPU is the guests' CPU time, in seconds, idle polling excluded.
type CPU struct {
	User   float64 `json:"user"`
	System float64 `json:"system"`
	IRQ    float64 `json:"irq"`
}

// Hold is what a receiver with --hold-tokens did.
type Hold struct {
	Tokens uint64 `json:"tokens"` // the most that it held
	Stalls uint64 `json:"stalls"` // how often nothing came any more, and it gave them back
}

// LateTokens is what came of tokens that a receiver gave back late, as it was told to.
type LateTokens struct {
	Tokens uint64 `json:"tokens"` // the most at a time that were to go back later
	// how often frames found no buffer at the receiving NIC, from the transfer's begin to its end, whosever they were
	NoBuffer uint64 `json:"no_buffer"`
}

// AuditCount is what a scan of the guests' RAM found: 64-byte windows of the payload, at any alignment.
type AuditCount struct {
	HitsSender   int    `json:"hits_sender"`
	HitsReceiver int    `json:"hits_receiver"`
	BytesFound   uint64 `json:"bytes_found"`
	BytesScanned uint64 `json:"bytes_scanned"`
}

// Rate is bytes per second.
func (r *Run) Rate() float64 {
	if r.Seconds == 0 {
		return 0
	}
	return float64(r.Bytes) / r.Seconds
}

// add adds what another transfer at the same time has done, but for what is counted of whole NICs.
func (r *Run) add(x *Run) {
	r.Seconds, r.Rounds, r.SHA256Match = max(r.Seconds, x.Seconds), max(r.Rounds, x.Rounds), r.SHA256Match && x.SHA256Match
	if r.SHA256 != "" {
		r.SHA256 += ","
	}
	r.SHA256 += x.SHA256
	if x.Audit != nil && r.Audit == nil {
		r.Audit = &AuditCount{}
	}
	of := func(r *Run) []*uint64 {
		return []*uint64{&r.Bytes, &r.PayloadBytesDevice, &r.PayloadBytesHost, &r.LinearBytes, &r.HeaderBytes,
			&r.RetransmittedBytes, &r.Fragments, &r.BouncedBytes, &r.TX.Device, &r.TX.Host, &r.RX.Device, &r.RX.Host}
	}
	more := of(x)
	for i, n := range of(r) {
		*n += *more[i]
	}
	if x.Audit != nil {
		r.Audit.HitsSender += x.Audit.HitsSender
		r.Audit.HitsReceiver += x.Audit.HitsReceiver
		r.Audit.BytesFound += x.Audit.BytesFound
		r.Audit.BytesScanned += x.Audit.BytesScanned
	}
}

// Fairness is Jain's index of the rates of a mode's rails: 1 where all are the same, down to 1/n.
func (rep *Report) Fairness(mode string) float64 {
	var sum, squares, n float64
	for i := range rep.Rails {
		if x := rep.Rails[i].Rate(); rep.Rails[i].Mode == mode {
			sum, squares, n = sum+x, squares+x*x, n+1
		}
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (n * squares)
}
