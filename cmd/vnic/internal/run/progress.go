package run

import "sync"

// progress adds up the progress of several transfers.
type progress struct {
	opt  *Options
	mode string
	mu   sync.Mutex
	done []uint64
}

func newProgress(o *Options, mode string, n int) *progress {
	return &progress{opt: o, mode: mode, done: make([]uint64, n)}
}

func (p *progress) set(i int, n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done[i] = n
	if p.opt.Progress == nil {
		return
	}
	sum := uint64(0)
	for _, d := range p.done {
		sum += d
	}
	p.opt.Progress(p.mode, sum, p.opt.Size*uint64(len(p.done)))
}
