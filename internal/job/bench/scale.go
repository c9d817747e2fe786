package bench

import (
	"context"
	"log/slog"
)

// scale measures the processor time of the sender's workers for a frame of 64 bytes in a network of shape many; the
// yardstick is the same in one of shape base: two ports, one queue, one rule.
func scale(many shape) openFunc {
	return func(_ context.Context, log *slog.Logger, r *rig) error {
		var nets [2]*network
		var runs [2]runFunc
		for i, s := range []shape{many, base} {
			s.frame, s.mtu = 64, jumboMTU
			n, err := newNetwork(s, log)
			if err != nil {
				return err
			}
			r.undo.Add(n.close)
			n.endWorkers()
			nets[i], runs[i] = n, byRounds(n, n.batch*len(n.flows), s.frame-tcpHeader)
		}
		r.ours, r.yardstick, r.counted = runs[0], runs[1], nets[0].received
		return nil
	}
}
