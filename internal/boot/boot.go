// Package boot is the frame of a guest's one program: process 1, the agent's process, and applets.
//
// As process 1 the program sets the guest up, starts itself again as the agent, and powers off when the agent
// has ended, or if a step fails. It is another process than the agent so that it can report an agent that died. In a
// guest without a results channel (agent.Alone) it starts the console's applet instead of the agent. Operations and
// applets must be registered with package agent before [Main] is called.
package boot

import (
	"fmt"
	"os"
	"path/filepath"

	"vnic.dev/vnic/internal/agent"
)

const agentName = "vnic-agent"

// Main is the program's main function; it returns the exit status. As process 1, if args[0] names no applet, it does
// not return.
func Main(args []string) int {
	name := filepath.Base(args[0])
	if applet, ok := agent.LookupApplet(name); ok {
		return applet(args[1:])
	}
	switch {
	case name == agentName:
		if err := runAgent(); err != nil {
			fmt.Fprintln(os.Stderr, "vnic-guest: agent:", err)
			return 1
		}
		return 0
	case os.Getpid() == 1: // the arguments may come from the kernel's command line
		runInit()
	case len(args) > 1:
		if applet, ok := agent.LookupApplet(args[1]); ok {
			return applet(args[2:])
		}
	}
	return usage(args)
}

func usage(args []string) int {
	w, status := os.Stderr, 2
	if len(args) > 1 && (args[1] == "-h" || args[1] == "-help" || args[1] == "--help" || args[1] == "help") {
		w, status = os.Stdout, 0
	} else if len(args) > 1 {
		_, _ = fmt.Fprintf(w, "%s: no tool %q\n", filepath.Base(args[0]), args[1])
	}
	_, _ = fmt.Fprintln(w,
		"The tools of vnic's guests, and their /init. A tool is named by the first argument, or by a link of its name "+
			"to this program:")
	for _, t := range agent.Tools() {
		_, _ = fmt.Fprintf(w, "  %s    (%s %s -h)\n", t, args[0], t)
	}
	return status
}
