package assets

import "fmt"

// Progress is one step of a fetch.
type Progress struct {
	Step        string // "wait", "update", "download", "unpack", "build"
	What        string // "qemu", "kernel", or a suite's name
	Done, Total int64  // bytes; if Total is 0, the total is unknown, and Done counts steps of a build
}

// String returns the step and its progress: "download qemu, 45 %".
func (p Progress) String() string {
	s := p.Step + " " + p.What
	switch {
	case p.Total > 0:
		return fmt.Sprintf("%s, %d %%", s, 100*p.Done/p.Total)
	case p.Done > 0:
		return fmt.Sprintf("%s, %d steps", s, p.Done)
	}
	return s
}
