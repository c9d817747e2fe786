package bench

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// BenchmarkGPU measures the rows from GPU to GPU, for profiling: `go test -bench GPU/tcp-hot -cpuprofile F`, which
// writes the profile, but may end with FAIL: testkit.Main reports F if it is still open.
// It reports this process's processor time, too, because other work on the machine lowers GB/s.
func BenchmarkGPU(b *testing.B) {
	for _, m := range All() {
		if !slices.ContainsFunc([]string{"gpu", "mtu"}, m.matches) {
			continue
		}
		b.Run(m.Name, func(b *testing.B) {
			r := new(rig)
			testkit.OK(b, m.open(b.Context(), slog.New(slog.DiscardHandler), r))
			testkit.Must(r.ours(b.Context(), 100*time.Millisecond))(b)
			best := 0.0
			b.ResetTimer()
			before := spentCPU(b)
			var all work
			for b.Loop() {
				w := testkit.Must(r.ours(b.Context(), 200*time.Millisecond))(b)
				all.bytes, all.spent = all.bytes+w.bytes, all.spent+w.spent
				best = max(best, w.value(GBps))
			}
			cpu := spentCPU(b) - before
			b.StopTimer()
			b.ReportMetric(all.value(GBps), "GB/s")
			b.ReportMetric(best, "best-GB/s")
			b.ReportMetric(float64(cpu)/float64(all.bytes)*1024, "cpu-ns/KiB")
			b.ReportMetric(float64(cpu)/float64(all.spent), "cpus")
			testkit.OK(b, r.undo.All())
		})
	}
}

func spentCPU(b *testing.B) time.Duration {
	var u unix.Rusage
	testkit.OK(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
