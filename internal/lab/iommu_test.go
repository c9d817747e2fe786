package lab_test

import (
	"encoding/json"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: lab: Behind an IOMMU, commands of a guest's programs use physical addresses, and
// packets use mapped addresses.
func TestMemoryBehindAnIOMMU(t *testing.T) {
	testkit.LeavesNothing(t)
	d := lab.Uniform(1, lab.NIC{Model: lab.GVE}, 2<<20)
	ram := int(testkit.Memfd(t, 4<<20).Fd())
	for _, iommu := range []bool{true, false} {
		d.Guests[0].IOMMU = iommu
		l := testkit.Must(lab.Open(d, lab.Options{}))(t)
		m, p := l.Machine(0), l.Port(0)
		testkit.Equal(t, "IOMMU", m.IOMMU, iommu)
		if p.Translated() {
			t.Error("translated, with nothing mapped")
		}
		gpu := int(m.GPUs[0].File.Fd())
		testkit.OK(t, m.SetMemory([]dma.Map{{Size: 4 << 20, FD: ram}, {IOVA: 4 << 20, Size: 2 << 20, FD: gpu}}))
		testkit.OK(t, p.Space().Add(dma.Map{IOVA: 0xfff00000, Size: 4096, FD: ram}))
		if !p.Translated() {
			t.Error("not translated")
		}
		maps := testkit.Must(p.NIC().GPUMaps())(t)
		want := "[]"
		if iommu {
			want = `[{"ID":1,"GPU":0,"IOVA":4194304,"Off":0,"Size":2097152}]`
		}
		b := testkit.Must(json.Marshal(maps))(t)
		if maps == nil {
			b = []byte("[]")
		}
		testkit.Equal(t, "GPU memory", string(b), want)
		testkit.OK(t, p.Space().Add(dma.Map{Size: 1 << 20, FD: ram})) // as QEMU maps RAM without translation
		if p.Translated() {
			t.Error("translated, with RAM at 0")
		}
		testkit.OK(t, l.Close())
	}
}
