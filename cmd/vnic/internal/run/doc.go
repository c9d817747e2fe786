// Package run is `vnic run`: two guests, one transfer from GPU to GPU in each mode, and the proof of where its bytes went.
//
// A lab is the emulated world: two GPUs, two NICs on one switch, and two guests, in QEMU or in this process. The host
// orders the guests about, meters the measured connection on both NICs, digests the destination itself, and believes
// nothing that a guest says about payload.
package run

import (
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"vnic.dev/vnic/qemu"
)

// Options are the flags of `vnic run`.
type Options struct {
	Size      uint64 // bytes to transfer, in each mode
	Modes     []string
	MTU       int
	Loss      float64 // probability that a segment is lost, in each direction
	Reorder   float64
	Family    int // 4 or 6
	Memory    uint64
	GPUMemory uint64
	P2P       bool
	Audit     bool
	Seed      uint64
	InProc    bool
	Keep      bool   // keep the guests' consoles and the counters
	KeepDir   string // where
	Pause     string // stop for ever at this stage (tests)
	StallSecs int

	Fetch qemu.Options
	Log   *slog.Logger

	Stage    func(name string)                     // a new stage begins
	Progress func(mode string, done, total uint64) // during a transfer
	Note     func(format string, args ...any)      // what a user should know
}

// Stages, in order: what a user sees, and where an interruption is tested.
var Stages = []string{"fetch", "gpu-memory", "boot", "setup", "prepare", "connect", "transfer", "verify"}

const (
	page      = 4096
	poolShare = 8 // the page pool of the receiver is this part of GPU memory
	basePort  = 5201
)

// plan is how a size is cut into rounds.
type plan struct {
	pool, round uint64
	rounds      []uint64
}

func (o *Options) plan() (p plan, err error) {
	if o.Size == 0 {
		return p, errors.New("--size is 0: nothing to transfer")
	}
	p.pool = min(o.GPUMemory/poolShare, 64<<20) / page * page
	if p.pool < 4<<20 {
		return p, fmt.Errorf("--gpu-memory %d MiB is too small: 32 MiB at least", o.GPUMemory>>20)
	}
	p.round = (o.GPUMemory - p.pool) / page * page
	for left := o.Size; left > 0; {
		n := min(left, p.round)
		p.rounds = append(p.rounds, n)
		left -= n
	}
	return p, nil
}

// Check says what is wrong with the options.
func (o *Options) Check() error {
	switch {
	case o.Family != 4 && o.Family != 6:
		return fmt.Errorf("--family %d: 4 or 6", o.Family)
	case o.MTU < 576 || o.MTU > 65535-14 || o.Family == 6 && o.MTU < 1280:
		return fmt.Errorf("--mtu %d: 576 (IPv6: 1280) to %d", o.MTU, 65535-14)
	case o.GPUMemory&(o.GPUMemory-1) != 0:
		return errors.New("--gpu-memory: not a power of two, as a PCI BAR must be")
	case o.Memory < 192<<20 || o.Memory%(2<<20) != 0:
		return errors.New("--memory: at least 192M, in steps of 2M")
	case o.Fetch.Modules != "" && o.Fetch.Kernel == "":
		return errors.New("--modules without --kernel")
	case o.Pause != "" && !slices.Contains(Stages, o.Pause):
		return fmt.Errorf("--pause-at %s: none of %v", o.Pause, Stages)
	}
	_, err := o.plan()
	return err
}

// lossy says whether the link loses or reorders segments.
func (o *Options) lossy() bool { return o.Loss > 0 || o.Reorder > 0 }

// Schema is the JSON schema of a Report.
//
//go:embed schema.json
var Schema string

func up(n uint64) uint64 { return (n + page - 1) / page * page }

// Report is the result of `vnic run`, and its --json (schema.json).
type Report struct {
	Schema      int      `json:"schema"`
	Runs        []Run    `json:"runs"`
	Ratio       float64  `json:"ratio,omitempty"` // rate of devmem over rate of copy; emulation's, no performance claim
	QEMU        string   `json:"qemu"`
	Kernel      string   `json:"kernel"`
	Accel       string   `json:"accel"`
	Guest       string   `json:"guest"` // "qemu" or "inproc"
	P2P         bool     `json:"p2p"`
	MTU         int      `json:"mtu"`
	Family      int      `json:"family"`
	Loss        float64  `json:"loss"`
	Seed        uint64   `json:"seed"`
	Untested    []string `json:"untested,omitempty"`
	BootSeconds float64  `json:"boot_seconds,omitempty"`
}

// Run is one mode's transfer, all rounds together.
type Run struct {
	Mode               string      `json:"mode"`
	Bytes              uint64      `json:"bytes"`
	Seconds            float64     `json:"seconds"`
	SHA256Match        bool        `json:"sha256_match"`
	SHA256             string      `json:"sha256"` // of the destination; of several rounds, of their digests one after the other
	PayloadBytesDevice uint64      `json:"payload_bytes_device"`
	PayloadBytesHost   uint64      `json:"payload_bytes_host"`
	LinearBytes        uint64      `json:"linear_bytes"`
	HeaderBytes        uint64      `json:"header_bytes"`
	CopyEngineBytes    uint64      `json:"copy_engine_bytes"`
	RetransmittedBytes uint64      `json:"retransmitted_bytes"`
	DroppedPackets     uint64      `json:"dropped_packets"`
	GuestCPUSeconds    *float64    `json:"guest_cpu_seconds"` // null: in-process guests share our CPU time
	GuestCPU           *CPU        `json:"guest_cpu,omitempty"`
	TX                 Where       `json:"tx"`
	RX                 Where       `json:"rx"`
	Seed               uint64      `json:"seed"`
	Rounds             int         `json:"rounds"`
	Fragments          uint64      `json:"fragments"`
	BouncedBytes       uint64      `json:"bounced_bytes"`
	Audit              *AuditCount `json:"audit,omitempty"`
}

// Where is payload by the domain it was read from (tx) or written to (rx) by the NIC.
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

// ErrProof says that a transfer ended, but not as it must.
var ErrProof = errors.New("the transfer does not prove what it should")
