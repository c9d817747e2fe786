package bench

import (
	"math"
	"slices"
)

// doubt is the chance that a median lies outside of its interval, at most.
const doubt = 0.05

// Interval is a median of measured values, and where it lies with a confidence of 95 %.
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// summarize gives the median of MinPairs to MaxPairs values and its interval, by order statistics: nothing is assumed
// of how the values are distributed. It sorts the values.
func summarize(values []float64) *Interval {
	slices.Sort(values)
	n := len(values)
	k := outside(n)
	return &Interval{
		Median: values[(n-1)/2]/2 + values[n/2]/2,
		Low:    values[k],
		High:   values[n-1-k],
	}
}

// outside gives how many of n values are below the interval, and as many are above it: the largest number for which
// the median is outside of the interval with a chance of at most doubt. Each value is below the true median with a
// chance of one half, so the number of values below it has a binomial distribution: the interval is the sign test's
// (Conover, Practical Nonparametric Statistics, 3.2).
func outside(n int) int {
	sum, k := 0.0, 0
	for ; k < n/2; k++ {
		sum += math.Exp(logChoose(n, k) - float64(n)*math.Ln2)
		if 2*sum > doubt {
			break
		}
	}
	return max(k-1, 0)
}

// logChoose is the logarithm of how many sets of k there are among n.
func logChoose(n, k int) float64 {
	all, _ := math.Lgamma(float64(n + 1))
	total, _ := math.Lgamma(float64(k + 1))
	rest, _ := math.Lgamma(float64(n - k + 1))
	return all - total - rest
}
