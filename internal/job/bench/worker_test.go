package bench

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// BenchmarkWorker measures a worker's processor time, for profiling: `go test -bench Worker/64 -cpuprofile
// F`, then `go tool pprof -focus Sender..Round`. The first may end with FAIL: testkit.Main reports
// F if it is still open.
func BenchmarkWorker(b *testing.B) {
	for _, size := range []int{64, 1514, 64 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			benchRounds(b, shape{ports: 2, queues: 1, frame: size, mtu: jumboMTU})
		})
	}
}

func benchRounds(b *testing.B, s shape) {
	n := testkit.Must(newNetwork(s, slog.New(slog.DiscardHandler)))(b)
	n.endWorkers()
	run := byRounds(n, n.batch*len(n.flows), s.frame)
	b.ReportAllocs()
	b.ResetTimer()
	w := testkit.Must(run(b.Context(), time.Duration(b.N)*time.Microsecond))(b)
	b.StopTimer()
	b.ReportMetric(float64(w.spent)/float64(w.frames), "ns/frame")
	testkit.OK(b, n.close())
}

// BenchmarkScale measures the network of shape base (the first one here) and larger ones separately, for profiling and
// for the minimum of many runs.
func BenchmarkScale(b *testing.B) {
	for _, s := range []shape{{ports: 2, queues: 1, rules: 1}, {ports: 64, queues: 1, rules: 1},
		{ports: 2, queues: 8, rules: 1}, {ports: 2, queues: 1, rules: 1024}} {
		b.Run(fmt.Sprintf("ports-%d/queues-%d/rules-%d", s.ports, s.queues, s.rules), func(b *testing.B) {
			s.frame, s.mtu = 64, jumboMTU
			benchRounds(b, s)
		})
	}
}
