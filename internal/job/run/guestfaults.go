package run

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/transfer"
)

// ErrRemoved means that a user or the lab file's script removed a NIC or a GPU from its guest while a transfer used
// it, for example with the command "nic a.nic0 remove".
var ErrRemoved = errors.New("removed while it was used")

// removed lists the stream's NICs and GPUs on this host that have been removed or are being removed. If there are
// none, it lists removed ones among the other GPUs that the NICs reach: a NIC stops if such a GPU is removed after the
// NIC has used it for another transfer.
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

// blameRemoval puts the names of the removed devices before an error, if there are any and the error
// is not an ErrRemoved yet.
func (s *stream) blameRemoval(err error) error {
	if list := s.removed(); len(list) > 0 && !errors.Is(err, ErrRemoved) {
		return fmt.Errorf("%s: %w: %w", strings.Join(list, ", "), ErrRemoved, err)
	}
	return err
}

// lateTokens returns a guest's lab.GuestFaults.LateTokens: a function that makes the ends at NIC i
// return the tokens of received fragments with a delay. The guest must have set up the ends' NICs
// before a call of the function.
func lateTokens(ends ...*end) func(i int, by time.Duration) error {
	return func(i int, by time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), limits.Ask.Here())
		defer cancel()
		var errs []error
		for _, e := range ends {
			if e.Port == e.HW.Ports[i] {
				errs = append(errs, transfer.LateTokens(ctx, e.Ops, by))
			}
		}
		return errors.Join(errs...)
	}
}
