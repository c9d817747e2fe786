package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// The device keeps state that was set over the in-band control channel (package control): split, rules, buffers,
// bindings. This state is lost when the device, or the backend behind it, is reset or restarted. The driver detects
// the loss by a new generation on the control channel, or by an unsplit frame on a bound queue, and then turns the
// split of the bound queues on again.

// setUpPause is the pause after a set-up that succeeds: a device that never splits would otherwise cause one set-up
// after another. Set-ups that fail in a row are followed by pauses of setUpPause, twice that, and so on, up to 3.2 s.
const setUpPause = 100 * time.Millisecond

func (n *NIC) onGeneration(old, generation uint32) {
	n.log.Warn("the network device lost its state", "generation", generation, "before", old)
	n.lost.Store(true)
	n.setUpAgain()
}

// setUpAgain starts setUp on a goroutine, unless one runs or Close was called. It does not block.
func (n *NIC) setUpAgain() {
	if n.settingUp.Swap(true) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life.Err() != nil { // Close was called, and waits only for a setUp that was started before
		return
	}
	n.background.Go(n.setUp)
}

// setUp asks for the generation and turns the split of bound queues on, and repeats that until it succeeds and n.lost
// is not set afterwards, or until the NIC stops.
func (n *NIC) setUp() {
	for pause := setUpPause; ; {
		ctx, cancel := context.WithTimeout(n.life, limits.Control.Here())
		err := n.setUpOnce(ctx)
		cancel()
		if err != nil && n.life.Err() == nil {
			n.log.Warn("setting bound queues up again", "error", err)
		}
		select {
		case <-n.failed: // closed by Close, too
			return
		case <-time.After(pause):
		}
		if err != nil {
			pause = min(2*pause, 32*setUpPause)
			continue
		}
		pause = setUpPause
		n.settingUp.Store(false)
		if !n.lost.Load() || n.settingUp.Swap(true) {
			return
		}
	}
}

func (n *NIC) setUpOnce(ctx context.Context) error {
	info, err := n.ctl.Hello(ctx)
	if err != nil {
		return fmt.Errorf("asking for the generation: %w", err)
	}
	lost := n.lost.Swap(false)
	var bound []int
	if err := n.do(func() error {
		for _, q := range n.rx {
			if q.split != nil && !q.split.draining {
				bound = append(bound, q.index)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	var errs []error
	for _, q := range bound {
		errs = append(errs, n.setSplit(ctx, q, true))
	}
	if err := errors.Join(errs...); err != nil {
		if lost {
			n.lost.Store(true)
		}
		return err
	}
	if lost {
		if n.opts.OnGeneration != nil {
			n.opts.OnGeneration(info.Generation)
		}
		n.wakePending.Store(true)
		n.wake()
	}
	return nil
}
