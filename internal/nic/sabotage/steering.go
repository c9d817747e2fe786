package sabotage

import (
	"slices"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
)

func next(s *control.State, queue uint16) uint16 { return (queue + 1) % uint16(len(s.Splits)) }

func turnKey(f *nic.Sabotage) {
	f.Steering = func(s control.State) control.State {
		first := s.RSS.Key[0]
		copy(s.RSS.Key[:], s.RSS.Key[1:])
		s.RSS.Key[len(s.RSS.Key)-1] = first
		return s
	}
}

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

func shiftRules(f *nic.Sabotage) {
	f.Steering = func(s control.State) control.State {
		s.Rules = slices.Clone(s.Rules)
		for i := range s.Rules {
			s.Rules[i].Queue = next(&s, s.Rules[i].Queue)
		}
		return s
	}
}
