package boot

import (
	"fmt"
	"os"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

// runAlone is process 1 of a guest without a results channel: another process runs the console's
// program. It prints setUp's error and runs the program in any case: the program may not need the
// missing part, or may report it.
func runAlone(setUp error) {
	say := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "vnic-guest: init:", err)
		}
	}
	say(setUp)
	p, err := os.StartProcess("/proc/self/exe", []string{agent.ConsoleApplet}, &os.ProcAttr{
		Env: append([]string{"PATH=/bin:/sbin", "HOME=/root"}, limits.Environ()...), Dir: "/",
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		say(err)
		return
	}
	pid := p.Pid
	_ = p.Release()
	_, err = reap(pid)
	say(err)
}
