package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"vnic.dev/vnic/devmem"
)

const maxNamed = 16

// NoTXBinding returns the error of a send from an id that is not an open transmit binding's: EINVAL.
func (d Device) NoTXBinding(id uint32) error {
	for _, b := range d.Bindings {
		switch {
		case b.ID != id:
			continue
		case b.Closed && b.TX:
			return fmt.Errorf("binding %d is closed%s: %w", id, underWay(b.Sends), syscall.EINVAL)
		case !b.TX:
			return fmt.Errorf("binding %d is for receive, and SendDevmem wants one of BindTX%s: %w", id, list(d.Bindings),
				syscall.EINVAL)
		}
	}
	return fmt.Errorf("binding %d: there is no such TX binding%s: %w", id, list(d.Bindings), syscall.EINVAL)
}

// InUse returns the error of closing a bound buffer: EBUSY. bound has the buffer's bindings that
// are not done.
func InUse(bound []Binding) error {
	var words []string
	for _, b := range bound {
		state := "open"
		switch {
		case b.Sends > 0:
			state = times(b.Sends, "send") + " under way"
		case b.Held > 0:
			state = fmt.Sprintf("%d pages held by tokens", b.Held)
		case b.Closed:
			state = "closed, and not done"
		}
		words = append(words, fmt.Sprintf("binding %d (%s)", b.ID, state))
	}
	return fmt.Errorf("in use by %s: close its bindings and wait for Done: %w", some(words), syscall.EBUSY)
}

func underWay(sends int) string {
	if sends == 0 {
		return ""
	}
	return fmt.Sprintf(", with %s under way: its memory is in use until Done", times(sends, "send"))
}

func list(all []Binding) string {
	var words []string
	for _, b := range all {
		kind := "rx"
		if b.TX {
			kind = "tx"
		}
		if !b.Closed {
			words = append(words, fmt.Sprintf("%d (%s)", b.ID, kind))
		}
	}
	if len(words) == 0 {
		return "; none is open"
	}
	return "; open ones: " + some(words)
}

func some(words []string) string {
	if len(words) > maxNamed {
		words = append(words[:maxNamed], fmt.Sprintf("%d more", len(words)-maxNamed))
	}
	return strings.Join(words, ", ")
}

// Numbers formats numbers for a sentence: 1, 2, 3.
func Numbers[N any](list []N) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(list), "[]"), " ", ", ")
}

// NoFlow returns the error of deleting a rule that does not exist: ENOENT. It sorts all, the ids of the
// existing rules.
func NoFlow(id devmem.FlowID, all []devmem.FlowID) error {
	slices.Sort(all)
	there := "there is none"
	if len(all) > 0 {
		there = "there are " + Numbers(all[:min(len(all), maxNamed)])
	}
	return fmt.Errorf("flow %d: there is no such rule; %s: %w", id, there, syscall.ENOENT)
}

// NoQueue returns the message that a queue number is out of range, for a device with n queues.
func NoQueue(queue, n int) string {
	return fmt.Sprintf("there is no queue %d: the device has %d, 0 to %d", queue, n, n-1)
}

// QueueZero returns the message that queue 0 cannot be bound, for a device with n queues.
func QueueZero(n int) string {
	if n < 2 {
		return "queue 0 is for what cannot be split, and the device has no other"
	}
	return fmt.Sprintf("queue 0 is for what cannot be split: bind one of 1 to %d", n-1)
}

// PastEnd returns the message that memory ends past the end of a GPU of size bytes.
func PastEnd(size uint64) string {
	return fmt.Sprintf("ends past its %#x bytes (%d MiB)", size, size>>20)
}
