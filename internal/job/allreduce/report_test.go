package allreduce

import (
	"fmt"
	"math"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// busbw divided by algbw is nccl-tests' factor (PERFORMANCE.md), and, if the ranks divide the elements, equals the
// bytes of the busiest link divided by the operation's bytes.
func TestBusBandwidthIsTheBusiestLinks(t *testing.T) {
	factors := map[string]func(n float64) float64{
		"all_reduce":     func(n float64) float64 { return 2 * (n - 1) / n },
		"reduce_scatter": func(n float64) float64 { return (n - 1) / n },
		"all_gather":     func(n float64) float64 { return (n - 1) / n },
		"broadcast":      func(float64) float64 { return 1 },
		"reduce":         func(float64) float64 { return 1 },
	}
	const count = 840 // a multiple of each number of ranks
	for _, op := range Ops {
		for n := 2; n <= 8; n++ {
			x := expected{op: op, t: devmem.Float32, ranks: n, count: count, parts: 1}
			busiest := uint64(0)
			for rank := range n {
				busiest = max(busiest, x.passes(rank))
			}
			got, ring := bus(op, n), float64(busiest)/float64(count*x.t.Size())
			if want := factors[op](float64(n)); math.Abs(got-want) > 1e-9 || math.Abs(got-ring) > 1e-9 {
				t.Errorf("%s of %d ranks: %v, nccl-tests say %v, and the busiest link carries %v", op, n, got, want, ring)
			}
		}
	}
}

func TestReportHasBusBandwidth(t *testing.T) {
	for _, op := range Ops {
		o := options(t, 3, 12_000)
		o.Op = op
		rep, err := do(t, &o)
		testkit.OK(t, err)
		for i, h := range []Half{rep.Modes[0].Rows[0].OutOfPlace, rep.Modes[0].Rows[0].InPlace} {
			if got := h.Bus / h.Alg; math.Abs(got-bus(op, 3)) > 1e-9 {
				t.Error(fmt.Sprint(op, " ", i, ": busbw is algbw times ", got))
			}
		}
	}
}
