package sabotage

import (
	"slices"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
)

// next returns the number of the next queue, modulo the number of queues.
func next(s *control.State, queue uint16) uint16 { return (queue + 1) % uint16(len(s.Splits)) }

// turnKey makes the NIC compute RSS hashes with a key rotated by one byte.
func turnKey(f *nic.Sabotage) {
	f.Steering = func(s control.State) control.State {
		first := s.RSS.Key[0]
		copy(s.RSS.Key[:], s.RSS.Key[1:])
		s.RSS.Key[len(s.RSS.Key)-1] = first
		return s
	}
}

// shiftTable makes the NIC use an RSS table in which every second entry names the next queue, if
// the table has several entries.
func shiftTable(f *nic.Sabotage) {
	f.Steering = func(s control.State) control.State {
		if s.RSS.Table = slices.Clone(s.RSS.Table); len(s.RSS.Table) > 1 {
			for i := int(f.Seed % 2); i < len(s.RSS.Table); i += 2 {
				s.RSS.Table[i] = next(&s, s.RSS.Table[i])
			}
		}
		return s
	}
}

// shiftRules makes the NIC send the frames of each flow rule to the next queue.
func shiftRules(f *nic.Sabotage) {
	f.Steering = func(s control.State) control.State {
		s.Rules = slices.Clone(s.Rules)
		for i := range s.Rules {
			s.Rules[i].Queue = next(&s, s.Rules[i].Queue)
		}
		return s
	}
}
