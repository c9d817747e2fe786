package bench

import "os/exec"

// external is a row for a program that a user would pick instead and that vnic bench cannot drive: it has no numbers,
// and says why.
func external(name, unit, about, why string, programs ...string) Measurement {
	return Measurement{Name: name, Unit: unit, About: about, Yardstick: "ours", find: func() string {
		for _, p := range programs {
			if path, err := exec.LookPath(p); err == nil {
				return path + why
			}
		}
		return "not installed"
	}}
}
