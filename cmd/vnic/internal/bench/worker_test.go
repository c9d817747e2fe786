package bench

import (
	"log/slog"
	"strconv"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// BenchmarkWorker is the worker rows of the table, to be profiled: `go test -bench Worker/64 -cpuprofile F`, then
// `go tool pprof -focus Sender..Round`. What the rings' other ends do is not in ns/frame.
func BenchmarkWorker(b *testing.B) {
	for _, size := range []int{64, 1514, 64 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			n := testkit.Must(newNetwork(shape{ports: 2, queues: 1, frame: size, mtu: jumboMTU},
				slog.New(slog.DiscardHandler)))(b)
			n.endWorkers()
			run := byRounds(n, n.batch, size)
			b.ReportAllocs()
			b.ResetTimer()
			w := testkit.Must(run(b.Context(), time.Duration(b.N)*time.Microsecond))(b)
			b.StopTimer()
			b.ReportMetric(float64(w.spent)/float64(w.frames), "ns/frame")
			testkit.OK(b, n.close())
		})
	}
}
