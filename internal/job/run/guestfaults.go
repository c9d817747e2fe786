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

// ErrRemoved means that a transfer did not succeed, and that its NIC or GPU, or another GPU that its NIC may address,
// has been removed from the guest or is being removed: for example by "nic a.nic0 remove".
var ErrRemoved = errors.New("removed while it was used")

// removed returns the names of the stream's NICs and GPUs on this host that are removed or being removed. If there
// are none, it returns the names of other such GPUs that its NICs may address: a NIC that has used one stops, too.
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

func (s *stream) blameRemoval(err error) error {
	if list := s.removed(); len(list) > 0 && !errors.Is(err, ErrRemoved) {
		return fmt.Errorf("%s: %w: %w", strings.Join(list, ", "), ErrRemoved, err)
	}
	return err
}

// lateTokens returns a function for lab.GuestFaults.LateTokens. It makes the ends at NIC i of their
// guest delay the return of the tokens of received data by the time given.
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
