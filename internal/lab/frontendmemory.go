package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrMemory reports that a frontend's memory occupies more than Options.FrontendMemory.
var ErrMemory = errors.New("too much memory")

// memoryPause is the interval at which boundMemory reads how much memory is occupied.
const memoryPause = 500 * time.Millisecond

// FrontendMemory returns how many bytes the files that the port's latest frontend has shared occupy. counted is
// false without Options.FrontendMemory.
func (p *Port) FrontendMemory() (bytes uint64, counted bool) {
	if p.lab.opt.FrontendMemory == 0 {
		return 0, false
	}
	return p.Space().Occupied(), true
}

// boundMemory starts a goroutine that calls cancel, with ErrMemory, when the frontend's memory occupies more than
// Options.FrontendMemory (0: never). The goroutine ends then, with ctx, or at stop, which waits for it.
func (p *Port) boundMemory(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	most := p.lab.opt.FrontendMemory
	if most == 0 {
		return func() {}
	}
	p.Space().CountMemory() // count from now on, without the files of earlier frontends
	ctx, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(memoryPause)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if n := p.Space().Occupied(); n > most {
				cancel(fmt.Errorf("%w: the files that the frontend has shared occupy %s, more than %s (--frontend-memory)",
					ErrMemory, FormatBytes(n), FormatBytes(most)))
				return
			}
		}
	})
	return func() { end(); wg.Wait() }
}
