package lab

import (
	"math"
	"testing"
)

// MaxMin solves a textbook's example, in which one of three transfers crosses both links. Two more transfers load no
// edge with a rate, and have no limit.
func TestMaxMin(t *testing.T) {
	one, two, unknown := &Edge{Name: "one", Rate: 1}, &Edge{Name: "two", Rate: 2}, &Edge{Name: "unknown"}
	rates, limits := MaxMin([]map[*Edge]float64{{one: 1, two: 1}, {one: 1}, {two: 1, unknown: 5}, {unknown: 1}, {two: 0}})
	for i, want := range []struct {
		rate float64
		edge *Edge
	}{{0.5, one}, {0.5, one}, {1.5, two}, {math.Inf(1), nil}, {math.Inf(1), nil}} {
		if rates[i] != want.rate || limits[i] != want.edge {
			t.Errorf("transfer %d: %v, limited by %+v", i, rates[i], limits[i])
		}
	}
	// A transfer with twice the bytes on the link per byte of payload gets the same rate of payload.
	rates, _ = MaxMin([]map[*Edge]float64{{two: 2}, {two: 1}})
	if math.Abs(rates[0]-2./3) > 1e-9 || rates[0] != rates[1] {
		t.Errorf("%v", rates)
	}
}
