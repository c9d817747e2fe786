package run

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/transfer"
)

// ErrRemoved says that a NIC or a GPU was taken from its guest while a transfer used it (nic a.nic0 remove).
var ErrRemoved = errors.New("removed while it was used")

// removed lists the NICs and GPUs of the transfer that were taken away, or are about to be. Where there are none, these
// are other GPUs that its NICs reach: a NIC stops when one goes that it has used for another transfer.
func (s *stream) removed() (used []string) {
	var idle []string
	for _, e := range s.here() {
		if e.Port.Removed() {
			used = append(used, e.Port.Name)
		}
		for _, g := range e.Port.GPUs {
			switch {
			case !g.Removed():
			case g.GPU == e.GPU:
				used = append(used, g.Name)
			default:
				idle = append(idle, g.Name)
			}
		}
	}
	if len(used) == 0 {
		return idle
	}
	return used
}

// blameRemoval names what has been taken away, if that is behind an error.
func (s *stream) blameRemoval(err error) error {
	if list := s.removed(); len(list) > 0 && !errors.Is(err, ErrRemoved) {
		return fmt.Errorf("%s: %w: %w", strings.Join(list, ", "), ErrRemoved, err)
	}
	return err
}

// lateTokens has the transfers of a guest's ends, which are set up, give tokens back later.
func lateTokens(ends ...*end) lab.GuestFaults {
	return lab.GuestFaults{LateTokens: func(i int, by time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), limits.Ask.Here())
		defer cancel()
		var errs []error
		for _, e := range ends {
			if e.Port == e.HW.Ports[i] {
				errs = append(errs, transfer.LateTokens(ctx, e.Ops, by))
			}
		}
		return errors.Join(errs...)
	}}
}
