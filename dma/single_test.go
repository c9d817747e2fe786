package dma

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Nobody pays for counters that nobody asked for.
func TestCountsBeginWithTheFirstCall(t *testing.T) {
	c, buf := NewCopier(), NewBuffer(make([]byte, page), Host)
	for _, want := range []uint64{0, 10} {
		testkit.Must(c.Write([]Segment{buf.Segment(0, 100)}, make([]byte, 10)))(t)
		testkit.Equal(t, "bytes written", c.Counts().Bytes(Private, Host, -1), want)
	}
}

// What one segment takes from a GPU's is that GPU's, as where there are several.
func TestOneSegmentIsCountedByItsGPU(t *testing.T) {
	f := openFile(t, page)
	f.SetGPU(3)
	testkit.OK(t, f.Register(0, page))
	gpu := testkit.Must(f.Region(0, page))(t)
	host := NewBuffer(make([]byte, page), Host)
	c := NewCopier()
	counts := c.Counts()
	n, err := c.CopyBehind([]Segment{host.Segment(0, 100)}, make([]byte, 10), []Segment{gpu.Segment(50, 200)})
	testkit.OK(t, err)
	testkit.Equal(t, "bytes", n, 100)
	testkit.Equal(t, "bytes from GPU 3", counts.Bytes(GPU, Host, 3), 90)
	testkit.Equal(t, "bytes of the head", counts.Bytes(Private, Host, -1), 10)
}
