package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrMemory is the error of a frontend whose memory occupies more than Options.FrontendMemory.
var ErrMemory = errors.New("too much memory")

// memoryPause is how often it is looked at what a frontend's memory occupies. In between its NIC fills as much of it as
// is sent to it.
const memoryPause = 500 * time.Millisecond

// FrontendMemory is how many bytes the memory occupies that the port's frontend shares, holes left out; false: nobody
// counts it (Options.FrontendMemory).
func (p *Port) FrontendMemory() (bytes uint64, counted bool) {
	if p.lab.opt.FrontendMemory == 0 {
		return 0, false
	}
	return p.Space().Occupied(), true
}

// boundMemory ends a connection, by cancel, when its frontend's memory occupies too much. stop waits for the end of it,
// after that of ctx.
func (p *Port) boundMemory(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	most := p.lab.opt.FrontendMemory
	if most == 0 {
		return func() {}
	}
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
				cancel(fmt.Errorf("%w: what the frontend shares occupies %s, more than %s (--frontend-memory)", ErrMemory,
					FormatBytes(n), FormatBytes(most)))
				return
			}
		}
	})
	return func() { end(); wg.Wait() }
}
