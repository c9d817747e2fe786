package confine

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Support reports which parts of this package a machine supports.
type Support struct {
	Landlock  int  // version of the ABI; 0: none
	Seccomp   bool // filters
	Listeners bool // calls can be reported, unless the kernel is before 5.7 or the process has a filter with a listener
}

// Look returns the machine's support. It changes nothing.
func Look() Support {
	s := Support{Landlock: LandlockABI()}
	// PR_GET_SECCOMP is EINVAL without seccomp (prctl(2)).
	if _, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err != nil {
		return s
	}
	s.Seccomp = available(actionErrno)
	s.Listeners = s.Seccomp && available(actionNotify)
	return s
}

// String describes the support in English.
func (s Support) String() string {
	var words []string
	if s.Seccomp {
		words = append(words, "seccomp")
		if s.Listeners {
			words[0] += ", what is refused is counted"
		}
	}
	switch {
	case s.Landlock >= 6:
		words = append(words, "Landlock: files, TCP, abstract sockets")
	case s.Landlock >= 4:
		words = append(words, "Landlock: files, TCP")
	case s.Landlock > 0:
		words = append(words, "Landlock: files")
	}
	if len(words) == 0 {
		return "neither seccomp filters nor Landlock"
	}
	return strings.Join(words, "; ")
}
