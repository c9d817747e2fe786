package run

import (
	"cmp"
	_ "embed" // the schema

	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/report/pcap"
)

// Schema is the JSON schema of a Report.
//
//go:embed schema.json
var Schema string

// Report is the result of `vnic run`, which --json prints (schema.json).
type Report struct {
	Schema int   `json:"schema" jsonschema:"enum=1"`
	Runs   []Run `json:"runs"` // one for each mode; with rails their sum
	// with --rails: each direction of each rail, in each mode; runs has their sums and the longest
	// time
	Rails []Rail `json:"rails,omitempty"`
	// rate of devmem divided by that of copy, null when only one mode ran or copy's rate is 0; a ratio of
	// the emulation, no performance claim
	Ratio *float64 `json:"ratio" jsonschema:"nullable"`
	// models of the guests' NICs: virtio, with our driver and TCP stack, or gve, with the kernel's;
	// gve+virtio: a guest has both; where the guests differ, the sender's, a comma and the receiver's
	NIC string `json:"nic" jsonschema:"pattern=^(virtio|gve|gve[+]virtio)(.(virtio|gve|gve[+]virtio))?$"`
	// receive queues that are bound to GPU memory in mode devmem
	BindQueues int     `json:"bind_queues" jsonschema:"minimum=1"`
	QEMU       string  `json:"qemu"`
	Kernel     string  `json:"kernel"`
	Accel      string  `json:"accel" jsonschema:"enum=tcg,enum=kvm,enum=none"`
	Guest      string  `json:"guest" jsonschema:"enum=qemu,enum=inproc"`
	P2P        bool    `json:"p2p"`
	MTU        int     `json:"mtu"`
	Family     int     `json:"family" jsonschema:"enum=4,enum=6"`
	Loss       float64 `json:"loss"`
	Reorder    float64 `json:"reorder"`
	Seed       uint64  `json:"seed"`
	Scale      float64 `json:"scale,omitempty"` // how many times slower than the lab file says links were
	// what sha256 of a run is. pieces: the SHA-256 of the SHA-256s, 32 bytes each, of the pieces of
	// 1 MiB (the last piece may be shorter); sha256: of all bytes
	Digest      string   `json:"digest" jsonschema:"enum=pieces,enum=sha256"`
	Untested    []string `json:"untested,omitempty"`
	BootSeconds float64  `json:"boot_seconds,omitempty"`

	// set if only one guest was on this host: runs and rails have what this host counted
	Half *Half        `json:"half,omitempty"`
	Pcap *pcap.Report `json:"pcap,omitempty"` // what --pcap has written
}

// Rail is the result of one direction of a rail in one mode.
type Rail struct {
	Rail    int    `json:"rail"`     // its number, that of the NICs in their guests
	From    string `json:"from"`     // the NIC that sends: guest and NIC
	FromGPU string `json:"from_gpu"` // the GPU that it sends from
	To      string `json:"to"`       // the NIC that receives
	ToGPU   string `json:"to_gpu"`   // the GPU that it receives into
	// distance between NIC and GPU, the larger of both ends, as nvidia-smi topo names it
	Path string `json:"path" jsonschema:"enum=PIX,enum=PXB,enum=PHB,enum=NODE,enum=SYS"`
	P2P  bool   `json:"p2p"` // the NICs on this host reach their GPU's memory without a detour
	// part of the links' rates that the transfer got, if the links have rates
	Share *Share `json:"share,omitempty"`
	Run
}

// Run is the result of one mode, all rounds together: in a Rail of one direction of a rail, in Report.Runs of all
// transfers.
type Run struct {
	Mode  string `json:"mode" jsonschema:"enum=devmem,enum=copy"`
	Bytes uint64 `json:"bytes"` // bytes of the application, in all rounds
	// from the order to send until the bytes lie contiguous in the receiver's GPU memory, or, if the
	// receiver is on another host, until they are sent; by this host's clock; filling, poisoning and
	// digests are not included
	Seconds float64 `json:"seconds"`
	// every byte of the destination (of the source, if the receiver is on another host) is what the seed
	// generates, compared by the host, and the digests of both are equal
	SHA256Match bool `json:"sha256_match"`
	// digest of the destination (of the source, if the receiver is on another host), of the kind that
	// digest names; one for each round, with commas between
	SHA256             string `json:"sha256"`
	PayloadBytesDevice uint64 `json:"payload_bytes_device"` // rx.device
	PayloadBytesHost   uint64 `json:"payload_bytes_host"`   // rx.host
	// bytes that the receiver's devmem socket found in host memory
	LinearBytes uint64 `json:"linear_bytes"`
	// header bytes of the measured connection, both directions, at the sender's NIC, or at the receiver's
	// if the sender is on another host
	HeaderBytes uint64 `json:"header_bytes"`
	// bytes moved by the GPUs' copy engines: gather, D2H, H2D, and bounces; in a rail with --bidir of both directions
	CopyEngineBytes uint64 `json:"copy_engine_bytes"`
	// payload bytes that passed the sender's NIC more than once
	RetransmittedBytes uint64 `json:"retransmitted_bytes"`
	// by the NICs and the link, for any reason; in a rail with --bidir of both directions
	DroppedPackets uint64 `json:"dropped_packets"`
	// CPU time of both guests: user, system and irq, without idle polling; null for in-process guests
	// and with rails
	GuestCPUSeconds *float64 `json:"guest_cpu_seconds" jsonschema:"nullable"`
	GuestCPU        *CPU     `json:"guest_cpu,omitempty"`
	// payload of the measured connection, by the memory that the sender's NIC read
	TX Where `json:"tx"`
	// payload of the measured connection, by the memory that the receiver's NIC wrote
	RX        Where  `json:"rx"`
	Seed      uint64 `json:"seed"`
	Rounds    int    `json:"rounds" jsonschema:"minimum=1"`
	Fragments uint64 `json:"fragments"` // fragments that the devmem socket gave out
	// payload that went through host memory because the NIC could not reach the GPU
	BouncedBytes uint64 `json:"bounced_bytes"`
	// pieces of payload of 64 bytes or more found in the guests' RAM after each round
	Audit *AuditCount `json:"audit,omitempty"`
	Hold  *Hold       `json:"hold,omitempty"` // what the receiver did with --hold-tokens
	// effect of tokens that the receiver gave back late (nic tokens=TIME)
	LateTokens *LateTokens `json:"late_tokens,omitempty"`
	// with rails: the traffic of each direction of a link and of each memory in this mode, the most
	// loaded first
	Links []Link `json:"links,omitempty"`
	// with rails, in mode copy: bytes that the guests' processors copy for their stacks, computed from
	// the stacks' code and not measured; they are in no link
	StackCopies []StackCopies `json:"stack_copies,omitempty"`
}

// Where is payload by the kind of memory that the NIC read it from (tx) or wrote it to (rx).
type Where struct {
	Device uint64 `json:"device"` // payload bytes in registered GPU buffers
	Host   uint64 `json:"host"`   // payload bytes anywhere else
}

// CPU is the CPU time of both guests together, in seconds, idle polling excluded.
type CPU struct {
	User   float64 `json:"user"`
	System float64 `json:"system"`
	IRQ    float64 `json:"irq"`
}

// Hold is what a receiver with --hold-tokens did.
type Hold struct {
	Tokens uint64 `json:"tokens"` // the most that it held at the same time
	Stalls uint64 `json:"stalls"` // how often data stopped and the receiver gave its tokens back
}

// LateTokens is the effect of tokens that a receiver gave back late, as the fault tokens=TIME asks.
type LateTokens struct {
	Tokens uint64 `json:"tokens"` // the most that waited to be given back at the same time
	// how often frames found no buffer at the receiving NIC meanwhile
	NoBuffer uint64 `json:"no_buffer"`
}

// AuditCount is what scans of the guests' RAM found: pieces of the payload of 64 bytes or more, at any alignment.
type AuditCount struct {
	HitsSender   uint64 `json:"hits_sender"`
	HitsReceiver uint64 `json:"hits_receiver"`
	BytesFound   uint64 `json:"bytes_found"`
	BytesScanned uint64 `json:"bytes_scanned"`
}

// Rate returns Bytes per second; 0 if Seconds is 0.
func (r *Run) Rate() float64 { return report.PerSecond(r.Bytes, r.Seconds) }

// add adds the run of one direction of a rail to the sum of all, whose Seconds and Rounds are the largest of all.
func (rep *Report) add(sum, x *Run) {
	rep.columns().Add(sum, x)
	sum.Seconds, sum.Rounds = max(sum.Seconds, x.Seconds), max(sum.Rounds, x.Rounds)
	sum.SHA256Match = sum.SHA256Match && x.SHA256Match
	if sum.SHA256 != "" {
		sum.SHA256 += ","
	}
	sum.SHA256 += x.SHA256
	if x.Audit != nil {
		sum.Audit = cmp.Or(sum.Audit, &AuditCount{})
		sum.Audit.HitsSender += x.Audit.HitsSender
		sum.Audit.HitsReceiver += x.Audit.HitsReceiver
		sum.Audit.BytesFound += x.Audit.BytesFound
		sum.Audit.BytesScanned += x.Audit.BytesScanned
	}
}

// Fairness returns Jain's index of the rates of a mode's n entries in Rails: 1 if all are equal, down to 1/n; 0 without
// a rate.
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
