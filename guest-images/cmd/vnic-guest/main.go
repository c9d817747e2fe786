// Command vnic-guest is the one program of vnic's guests.
//
// As /init (process 1) it mounts, loads modules, opens the results channel, starts itself again as the agent and powers
// off when that has ended: so an agent that dies still leaves somebody to say so. Under the name of an applet it is that
// applet.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/transfer"
)

// agentName is argv[0] of the agent's process.
const agentName = "vnic-agent"

func main() {
	transfer.Ops()
	name := filepath.Base(os.Args[0])
	if applet, ok := agent.LookupApplet(name); ok {
		os.Exit(applet(os.Args[1:]))
	}
	switch {
	case name == agentName:
		if err := runAgent(); err != nil {
			fmt.Fprintln(os.Stderr, "vnic-guest: agent:", err)
			os.Exit(1)
		}
	case os.Getpid() == 1:
		runInit()
	default:
		fmt.Fprintf(os.Stderr, "vnic-guest: no applet %q; it is the /init of vnic's guests\n", name)
		os.Exit(2)
	}
}
