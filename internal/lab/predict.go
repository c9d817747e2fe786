package lab

import "math"

// MaxMin gives each of several transfers its fair rate, in bytes of payload a second, and the edge that keeps it from
// more. All transfers grow at the same rate, until they cross an edge that is full. loads has the bytes
// that a transfer moves over each edge for a byte of payload; edges without a rate are no limit. A transfer that
// nothing limits has a rate of +Inf and no edge.
func MaxMin(loads []map[*Edge]float64) (rates []float64, limits []*Edge) {
	rates, limits = make([]float64, len(loads)), make([]*Edge, len(loads))
	left := make(map[*Edge]float64) // of the edges' rates
	for i, flow := range loads {
		rates[i] = math.Inf(1)
		for e := range flow {
			if e.Rate > 0 {
				left[e] = e.Rate
			}
		}
	}
	for {
		// What all that still grow can have, at most.
		var full *Edge
		most := math.Inf(1)
		for e, n := range left {
			sum := 0.
			for i, flow := range loads {
				if limits[i] == nil {
					sum += flow[e]
				}
			}
			if sum <= 0 {
				continue
			}
			if r := n / sum; r < most || r == most && (full == nil || e.Name < full.Name) {
				full, most = e, r
			}
		}
		if full == nil {
			return rates, limits
		}
		for i, flow := range loads {
			if limits[i] != nil || flow[full] <= 0 {
				continue
			}
			rates[i], limits[i] = most, full
			for e, b := range flow {
				if _, ok := left[e]; ok {
					left[e] = max(0, left[e]-b*most)
				}
			}
		}
	}
}
