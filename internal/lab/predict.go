package lab

import "math"

// MaxMin returns for each of several transfers its max-min fair rate, in bytes of payload a second,
// and the edge that limits it. It raises the rates of all transfers together; a transfer's rate
// stops when one of its edges is full. loads has the bytes that each transfer moves over each edge
// per byte of payload; edges without a rate are no limit. A transfer without a limiting edge has
// the rate +Inf and a nil edge.
func MaxMin(loads []map[*Edge]float64) (rates []float64, limits []*Edge) {
	rates, limits = make([]float64, len(loads)), make([]*Edge, len(loads))
	left := make(map[*Edge]float64) // rate of each edge that transfers do not use yet
	for i, flow := range loads {
		rates[i] = math.Inf(1)
		for e := range flow {
			if e.Rate > 0 {
				left[e] = e.Rate
			}
		}
	}
	for {
		// The edge that is full first, and the rate of the growing transfers at that point.
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
