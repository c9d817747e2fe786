package allreduce

import (
	"vnic.dev/vnic/internal/session"
)

// Report is the result of `vnic allreduce`, as --json prints it.
type Report struct {
	Schema int `json:"schema"`
	session.Info
	Op       string  `json:"op"`
	Type     string  `json:"type"`
	Ranks    int     `json:"ranks"`
	Channels int     `json:"channels"`
	Iters    int     `json:"iters"`
	Warmup   int     `json:"warmup_iters"`
	Root     int     `json:"root"` // rank; -1: the operation has no root
	Timeout  float64 `json:"timeout_seconds"`
	Loss     float64 `json:"loss"`
	Seed     uint64  `json:"seed"`
	Modes    []Mode  `json:"modes"`

	session.Captured
}

// Mode has the results of a mode.
type Mode struct {
	Mode  string  `json:"mode"` // transfer.Devmem or transfer.Copy
	Rows  []Row   `json:"rows"`
	Ranks []Rank  `json:"ranks"`
	Bus   float64 `json:"avg_bus_gbps"` // in 10^9 bytes a second: the mean over out of place and in place of all rows
	Wrong uint64  `json:"wrong"`
	// processor time of all guests, in seconds, for each 10^9 bytes that rank 0 must send; null: guests share
	// this process, or rank 0 sends nothing
	CPUPerGB *float64 `json:"guest_cpu_seconds_per_gb"`
}

// Row has the results for one size.
type Row struct {
	Bytes      uint64 `json:"bytes"`
	Count      uint64 `json:"count"`
	OutOfPlace Half   `json:"out_of_place"`
	InPlace    Half   `json:"in_place"`
}

// Half has the results for one size, out of place or in place.
type Half struct {
	Microseconds float64 `json:"us"`       // mean time of one operation, of the slowest rank
	Alg          float64 `json:"alg_gbps"` // bytes divided by time, in 10^9 bytes a second
	Bus          float64 `json:"bus_gbps"` // rate of the busiest link (nccl-tests, PERFORMANCE.md)
	Wrong        *uint64 `json:"wrong"`    // wrong elements of all ranks; null: not checked
}

// Rank has the payload that a rank sent and received in all operations of a mode, with warm-ups and checks;
// Out and In as its NIC counted it.
type Rank struct {
	Rank          int           `json:"rank"`
	Guest         string        `json:"guest"`
	NIC           string        `json:"nic"`
	P2P           bool          `json:"p2p"`
	Expected      Path          `json:"expected"` // payload that the operations require
	Out           session.Where `json:"out"`
	In            session.Where `json:"in"`
	Looked        uint64        `json:"looked_bytes"`
	Linear        uint64        `json:"linear_bytes"` // received in host memory without warm-ups, as the guest counted it
	Retransmitted uint64        `json:"retransmitted_segments"`
}

// Path has the bytes of payload that a rank sends and receives.
type Path struct {
	Out uint64 `json:"out"`
	In  uint64 `json:"in"`
}

// bus is the factor from algbw to busbw (nccl-tests, PERFORMANCE.md).
func bus(op string, ranks int) float64 {
	n := float64(ranks)
	switch op {
	case "all_reduce":
		return 2 * (n - 1) / n
	case "reduce_scatter", "all_gather":
		return (n - 1) / n
	}
	return 1
}
