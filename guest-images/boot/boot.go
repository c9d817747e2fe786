// Package boot is the frame of a guest's one program: process 1, the agent's process, and applets.
//
// As process 1 it mounts, loads modules, opens the results channel, starts itself again as the agent and powers off when
// that has ended: so an agent that dies still leaves somebody to say so. What the agent can do, its operations and
// applets, is registered with package agent before Main is called.
package boot

import (
	"fmt"
	"os"
	"path/filepath"

	"vnic.dev/vnic/guest-images/agent"
)

// agentName is argv[0] of the agent's process.
const agentName = "vnic-agent"

// Main is the program, and gives its exit status. As process 1 it does not return.
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
	case os.Getpid() == 1:
		runInit()
	}
	fmt.Fprintf(os.Stderr, "vnic-guest: no applet %q; it is the /init of vnic's guests\n", name)
	return 2
}
