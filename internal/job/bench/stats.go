package bench

import (
	"math"
	"slices"
)

// doubt is the largest chance that the true median is outside of its interval.
const doubt = 0.05

// Interval has the median of measured values, and the interval in which the true median lies with a
// confidence of at least 95 %.
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// summarize sorts MinPairs to MaxPairs values, and returns their median and its interval, by order
// statistics.
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

// outside returns how many of n values lie below the interval; as many lie above it. It is the confidence interval of
// the median by order statistics, as in the sign test (Conover, Practical Nonparametric Statistics, 3.2): the number of
// values below the true median has a binomial distribution.
func outside(n int) int {
	log := -float64(n) * math.Ln2 // the logarithm of the chance that exactly k values are below the true median
	sum, k := 0.0, 0
	for ; k < n/2; k++ {
		if sum += math.Exp(log); 2*sum > doubt {
			break
		}
		log += math.Log(float64(n-k) / float64(k+1))
	}
	return max(k-1, 0)
}
