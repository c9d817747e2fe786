package run

import "sync"

// progress returns a function that adds up the progress of n transfers, and passes the sum to Options.Progress, if that
// is set. The caller of moved says how many bytes transfer i has moved so far.
func (o *Options) progress(mode string, n int) (moved func(i int, bytes uint64)) {
	var mu sync.Mutex
	done, sum := make([]uint64, n), uint64(0)
	return func(i int, bytes uint64) {
		mu.Lock()
		defer mu.Unlock()
		sum += bytes - done[i]
		done[i] = bytes
		if o.Progress != nil {
			o.Progress(mode, sum, o.Size*uint64(n))
		}
	}
}
