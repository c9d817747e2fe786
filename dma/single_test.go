package dma

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Counting begins with the first call of Counts.
func TestCountsBeginWithTheFirstCall(t *testing.T) {
	c, buf := NewCopier(), NewBuffer(make([]byte, page), Host)
	for _, want := range []uint64{0, 10} {
		testkit.Must(c.Write([]Segment{buf.Segment(0, 100)}, make([]byte, 10)))(t)
		testkit.Equal(t, "bytes written", c.Counts().Bytes(Private, Host, -1), want)
	}
}

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

// Neighbouring segments of a file do not overlap.
func TestOverlapIsOfBytesOfOneFile(t *testing.T) {
	f := openFile(t, 4*page)
	g := testkit.Must(NewFiles().Open(memfd(t, 4*page), 0))(t)
	t.Cleanup(g.Close)
	low, high := testkit.Must(f.Region(0, 3*page))(t), testkit.Must(f.Region(page, 3*page))(t)
	other := testkit.Must(g.Region(0, 3*page))(t)
	buf := NewBuffer(make([]byte, page), Host)
	for _, tt := range []struct {
		name string
		a, b Segment
		want bool
	}{
		{"the same", low.Segment(100, 50), low.Segment(100, 50), true},
		{"the first's last byte", low.Segment(100, 50), low.Segment(149, 50), true},
		{"neighbors", low.Segment(100, 50), low.Segment(150, 50), false},
		{"inside", low.Segment(100, 50), low.Segment(120, 1), true},
		{"by two regions", low.Segment(page+100, 50), high.Segment(149, 50), true},
		{"neighbors by two regions", low.Segment(page+100, 50), high.Segment(150, 50), false},
		{"of another file", low.Segment(100, 50), other.Segment(100, 50), false},
		{"of no file", low.Segment(100, 50), buf.Segment(100, 50), false},
		{"both of no file", buf.Segment(0, 50), buf.Segment(100, 50), true},
	} {
		if got := overlap(&tt.a, &tt.b); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
		if got := overlap(&tt.b, &tt.a); got != tt.want {
			t.Errorf("%s, the other way: %v", tt.name, got)
		}
	}
	if overlap(&Segment{Region: low, Len: 1}, &Segment{}) {
		t.Error("with a segment without a region")
	}
}
