package bench

import (
	"context"
	"errors"
	"log/slog"
)

// scale measures what a frame of 64 bytes costs the sender's workers where there is more of something, against the
// same where there is little: nothing should be the dearer for it.
func scale(name, about, yardstick string, many, few shape) Measurement {
	return Measurement{Name: name, Unit: NsFrame, About: about, Yardstick: yardstick,
		open: func(_ context.Context, log *slog.Logger) (*rig, error) {
			var nets [2]*network
			end := func() (err error) {
				for _, n := range nets {
					if n != nil {
						err = errors.Join(err, n.close())
					}
				}
				return err
			}
			var runs [2]runFunc
			for i, s := range []shape{many, few} {
				s.frame, s.mtu = 64, jumboMTU
				n, err := newNetwork(s, log)
				if err != nil {
					return nil, errors.Join(err, end())
				}
				nets[i] = n
				n.endWorkers()
				runs[i] = byRounds(n, n.batch*len(n.flows), s.frame-tcpHeader)
			}
			return &rig{ours: runs[0], yardstick: runs[1], counted: nets[0].received, close: end}, nil
		}}
}
