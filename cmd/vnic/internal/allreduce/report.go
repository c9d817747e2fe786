package allreduce

import (
	"vnic.dev/vnic/cmd/vnic/internal/guests"
)

// Report is the result of `vnic allreduce`, and its --json.
type Report struct {
	Schema int `json:"schema"` // 1
	guests.Info
	Op       string  `json:"op"`
	Type     string  `json:"type"`
	Ranks    int     `json:"ranks"`
	Channels int     `json:"channels"`
	Iters    int     `json:"iters"`
	Warmup   int     `json:"warmup_iters"`
	Root     int     `json:"root"` // -1: the operation has none
	Timeout  float64 `json:"timeout_seconds"`
	Loss     float64 `json:"loss"`
	Seed     uint64  `json:"seed"`
	Modes    []Mode  `json:"modes"`

	guests.Captured
}

// Mode is a table.
type Mode struct {
	Mode  string  `json:"mode"` // transfer.Devmem or transfer.Copy
	Rows  []Row   `json:"rows"`
	Ranks []Rank  `json:"ranks"`
	Bus   float64 `json:"avg_bus_gbps"` // 10^9 bytes a second, mean of all rows' halves
	Wrong uint64  `json:"wrong"`
	// of all guests, for each 10^9 bytes that a rank passed on; null: guests share this process
	CPUPerGB *float64 `json:"guest_cpu_seconds_per_gb"`
}

// Row is a size.
type Row struct {
	Bytes      uint64 `json:"bytes"`
	Count      uint64 `json:"count"`
	OutOfPlace Half   `json:"out_of_place"` // the elements are copied first, by the GPU's engine
	InPlace    Half   `json:"in_place"`
}

// Half is how an operation went, out of place or in place.
type Half struct {
	Microseconds float64 `json:"us"`       // of one operation: the mean of all, at the slowest rank
	Alg          float64 `json:"alg_gbps"` // bytes by time, 10^9 a second
	Bus          float64 `json:"bus_gbps"` // what the busiest link carries of it (nccl-tests, PERFORMANCE.md)
	Wrong        *uint64 `json:"wrong"`    // elements, of all ranks; null: nobody looked
}

// Rank is what one passed on and got in all operations, warm-up and checks included, by its NIC's count.
type Rank struct {
	Rank          int          `json:"rank"`
	Guest         string       `json:"guest"`
	NIC           string       `json:"nic"` // model
	P2P           bool         `json:"p2p"`
	Expected      Path         `json:"expected"` // of one without loss: all in device memory
	Out           guests.Where `json:"out"`
	In            guests.Where `json:"in"`
	Looked        uint64       `json:"looked_bytes"`
	Linear        uint64       `json:"linear_bytes"` // came in host memory, as the guest says
	Retransmitted uint64       `json:"retransmitted_segments"`
}

// Path is bytes of payload.
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
