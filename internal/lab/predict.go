package lab

import "math"

// MaxMin returns the transfers' max-min fair rates, in bytes of payload a second, and the edges that limit
// them. loads has the bytes on each edge per byte of payload. Without a limiting edge a rate is +Inf, and its
// edge nil.
func MaxMin(loads []map[*Edge]float64) (rates []float64, limits []*Edge) {
	rates, limits = make([]float64, len(loads)), make([]*Edge, len(loads))
	left := make(map[*Edge]float64) // the edges' unused rates
	for i, flow := range loads {
		rates[i] = math.Inf(1)
		for e := range flow {
			if e.Rate > 0 {
				left[e] = e.Rate
			}
		}
	}
	for {
		// The edge that is full first, and the rate of growing transfers then.
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
