package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// The device keeps state that the driver and its user have set over the in-band control channel
// (package control): split, rules, buffers, bindings. This in-band state is lost when the device,
// or the backend behind it, is reset. The driver detects this by a reply of the control channel
// with a new generation, or by an unsplit frame on a bound queue. Then it turns the split of the
// bound queues on again, and leaves the rest to Options.OnGeneration.

// setUpPause limits how often the driver sets up a device that never splits.
const setUpPause = 100 * time.Millisecond

// The control client calls onGeneration, on the polling goroutine, when the device has lost its
// in-band state.
func (n *NIC) onGeneration(old, generation uint32) {
	n.log.Warn("the network device lost its state", "generation", generation, "before", old)
	n.lost.Store(true)
	n.setUpAgain()
}

// setUpAgain starts setUp unless it is running. It never blocks.
func (n *NIC) setUpAgain() {
	if n.settingUp.Swap(true) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life.Err() != nil { // Close has begun, and waits only for a setUp that is running already
		return
	}
	n.background.Go(n.setUp)
}

// setUp asks for the generation and turns the split of bound queues on. It repeats this as long as n.lost is
// set afterwards.
func (n *NIC) setUp() {
	for {
		ctx, cancel := context.WithTimeout(n.life, limits.Control.Here())
		err := n.setUpOnce(ctx)
		cancel()
		if err != nil && n.life.Err() == nil {
			n.log.Warn("setting bound queues up again", "error", err)
		}
		select {
		case <-n.life.Done():
			return
		case <-time.After(setUpPause):
		}
		n.settingUp.Store(false)
		if !n.lost.Load() || n.settingUp.Swap(true) {
			return
		}
	}
}

func (n *NIC) setUpOnce(ctx context.Context) error {
	info, err := n.ctl.Hello(ctx) // a new generation in the reply calls onGeneration
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
