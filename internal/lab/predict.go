package lab

import "math"

// MaxMin returns the max-min fair rates of transfers, in bytes of payload a second, and the edge that limits each.
// loads has for each transfer the bytes on each edge per byte of payload. An edge whose Rate is unknown limits nothing.
// Without a limiting edge a transfer's rate is +Inf, and its edge nil.
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
		// The edge that is full first when all transfers without a limit yet have the same rate, and that rate.
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
