package bench

import (
	"slices"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// BenchmarkCoalescing measures a connection from GPU to GPU without TSO, with and without the receiver's
// coalescing in turn. It reports the medians of GB/s and of their ratios, and the mean number of frames in a merged
// packet.
func BenchmarkCoalescing(b *testing.B) {
	const pairs, each = 15, 200 * time.Millisecond
	f := hot
	l := testkit.Must(f.open(1500, nil))(b)
	r := new(rig)
	r.undo.Add(l.Close)
	defer func() { testkit.OK(b, r.undo.All()) }()
	testkit.OK(b, f.connectStacks(b.Context(), l, stack.Options{NoGSO: true}, r))
	port := l.Port(1).NIC()
	run := func(on bool) float64 {
		port.SetCoalescing(on)
		w, err := r.ours(b.Context(), each)
		testkit.OK(b, err)
		return w.value(GBps)
	}
	run(true)
	for b.Loop() {
		var on, off, ratio []float64
		for range pairs {
			x, y := run(true), run(false)
			on, off, ratio = append(on, x), append(off, y), append(ratio, x/y)
		}
		for unit, list := range map[string][]float64{"on-GB/s": on, "off-GB/s": off, "on/off": ratio} {
			slices.Sort(list)
			b.ReportMetric(list[pairs/2], unit)
		}
	}
	frames, packets := port.Coalesced()
	b.ReportMetric(float64(frames)/float64(packets), "frames/packet")
}
