package page

import (
	"errors"
	"fmt"
)

const maxReport = 2_000_000

// Report returns the recorded counters as one HTML file, which needs no network and is below 2 MB. If the samples do
// not fit, it leaves some out; if the file is too large with one sample, Report returns an error.
func (r *Recorder) Report() ([]byte, error) {
	r.mu.Lock()
	s := State{Page: bounded(r.page, reportFlows), Report: true}
	if r.used != nil { // the last use, as GPU memory is usually free at the end of a run
		when := round(r.usedAt.Seconds())
		s.Page.Memory, s.Page.MemoryAt = memoryMaps(r.used), &when
	}
	r.mu.Unlock()
	samples := r.copy()
	for {
		s.Recording = record(samples)
		b := html(s.encode())
		if len(b) < maxReport {
			return b, nil
		}
		if len(samples) < 2 {
			return nil, fmt.Errorf("it would have %d bytes, more than %d: %w", len(b), maxReport, errTooLarge)
		}
		samples = thinned(samples)
	}
}

var errTooLarge = errors.New("the lab is too large for a report")
