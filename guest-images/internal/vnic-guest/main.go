// Command vnic-guest is /init of vnic's guests, their agent, and their applets. Package boot chooses by the name of the
// command, the process id and the arguments.
package main

import (
	"os"

	"vnic.dev/vnic/guest-images/internal/console"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/boot"
	"vnic.dev/vnic/internal/devmemtool"
	"vnic.dev/vnic/internal/gpusocket"
	"vnic.dev/vnic/internal/guestexec"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/guestnvme"
	"vnic.dev/vnic/internal/guestroot"
	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/guesttree"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/transfer"
)

func main() {
	transfer.Ops()
	guestexec.Ops()
	guestnet.Ops()
	guestnvme.Ops()
	guestroot.Ops()
	guesttools.Ops()
	guesttree.Ops()
	gpusocket.Ops()
	agent.RegisterApplet(agent.ConsoleApplet, console.Applet)
	agent.RegisterApplet(kernelnic.GuardName, kernelnic.Guard)
	agent.RegisterApplet(transfer.OwnerName, transfer.Owner)
	agent.RegisterApplet(gpusocket.Name, gpusocket.Applet)
	agent.RegisterApplet(devmemtool.Name, devmemtool.Applet)
	os.Exit(boot.Main(os.Args))
}
