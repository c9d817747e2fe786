package bench

import (
	"fmt"
	"os/exec"
)

// external is a row for a program that a user would pick instead. Where it is not installed the row says so. Driving
// one that is needs an open function that makes a rig of it, as the other measurements have: until there is one, the
// row says that as well, and has no numbers.
func external(name, unit, about string, programs ...string) Measurement {
	return Measurement{Name: name, Unit: unit, About: about, Yardstick: "ours, by the same frontend", find: func() string {
		for _, p := range programs {
			if path, err := exec.LookPath(p); err == nil {
				return fmt.Sprintf("%s is installed, and vnic bench cannot drive it yet", path)
			}
		}
		return "not installed"
	}}
}
