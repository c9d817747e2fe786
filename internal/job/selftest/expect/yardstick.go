package expect

import (
	"slices"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

// Lag is a case that passes on QEMU's own NIC, and not on the device under test.
type Lag struct {
	Program string
	Column  results.Column
	Case    string
	Result  ktap.Result // the best one in the runs on the device under test; "": none
}

// Bad reports whether the case fails, or has no result, on the device under test.
func (l *Lag) Bad() bool { return l.Result != ktap.Skip && l.Result != ktap.XFail }

// Behind returns the cases that pass in the run of the yardstick, QEMU's own NIC, and in none of runs, if one
// of runs has their program in the same column. Of a program that ran several times in one of runs, the first results
// count.
func Behind(yardstick *results.Run, runs []*results.Run) (list []Lag) {
	for i := range yardstick.Programs {
		there := &yardstick.Programs[i]
		for k := range there.Cases {
			if there.Cases[k].Result != ktap.Pass {
				continue
			}
			lag := Lag{Program: there.Name, Column: there.Column, Case: there.Cases[k].Name}
			ran := false
			for _, r := range runs {
				p := r.Program(lag.Program, lag.Column)
				if p == nil {
					continue
				}
				ran = true
				c := p.Case(lag.Case)
				if c != nil && (lag.Result == "" ||
					slices.Index(ktap.Results, c.Result) < slices.Index(ktap.Results, lag.Result)) {
					lag.Result = c.Result
				}
			}
			if ran && lag.Result != ktap.Pass {
				list = append(list, lag)
			}
		}
	}
	return list
}
