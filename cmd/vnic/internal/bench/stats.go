package bench

import "golang.org/x/perf/benchmath"

// confidence is that of the intervals.
const confidence = 0.95

// Interval is a median of measured values, and where it lies with a confidence of 95 %.
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// summarize gives the median of at least MinPairs values and its interval, by order statistics: nothing is assumed of
// how the values are distributed.
func summarize(values []float64) *Interval {
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(values, &benchmath.DefaultThresholds), confidence)
	return &Interval{Median: s.Center, Low: s.Lo, High: s.Hi}
}
