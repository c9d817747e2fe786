package nvmetcp

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/block"
)

// BenchmarkRead reads operations of three lengths; with copy=true (Config.Copy) their data goes through host memory.
func BenchmarkRead(b *testing.B) {
	for _, bs := range []uint64{4 << 10, 128 << 10, 1 << 20} {
		for _, copies := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/copy=%v", bs, copies), func(b *testing.B) {
				r := newRig(b, script{})
				r.conf.Copy = copies
				d := r.open(b)
				b.SetBytes(int64(bs))
				b.ResetTimer()
				n := 0
				err := d.Do(b.Context(), 32, func() (block.Op, bool) {
					n++
					return block.Op{Off: uint64(n) % 7 * bs, Len: bs, Mem: uint64(n) % 64 * bs}, n <= b.N
				}, func(x block.Done) {
					if x.Err != nil {
						b.Error(x.Err)
					}
				})
				if err != nil {
					b.Fatal(err)
				}
				s := d.Stats()
				b.ReportMetric(float64(s.Looked)/float64(s.Read)*100, "%looked")
				b.ReportMetric(float64(s.Looks)/float64(b.N), "looks/op")
			})
		}
	}
}
