// Command gatewayrows measures what three gateways of one guest do: vnic's, QEMU's slirp and passt.
// test/55-gateway.sh runs it in the guest and on this machine, and compares docs/gateway.md with what it prints
// (WRITE=yes: writes that page).
// The world is a network namespace that stands for the Internet behind this machine.
//
//	gatewayrows serve NETNS   runs the world's servers in that network namespace (what HTTP requests cause is done in
//	                          the current one), and prints each row that the guest has measured as a line of JSON
//	gatewayrows guest         runs in the guest: measures all rows but reset, and restarts the guest; then reset
//	gatewayrows table ROWS    prints the table of docs/gateway.md, and the checks of vnic alone, from the output of
//	                          serve; status 1: in a row other than the rates both other gateways are better than
//	                          vnic, such a check has failed, a row is missing, or another error
package main

import (
	"fmt"
	"os"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		err = serve(args[1])
	case len(args) == 1 && args[0] == "guest":
		err = guest()
	case len(args) == 2 && args[0] == "nic":
		err = probeAll(args[1])
	case len(args) == 2 && args[0] == "table":
		err = table(args[1])
	default:
		err = fmt.Errorf("usage: gatewayrows serve NETNS, guest, or table ROWS")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gatewayrows:", err)
		os.Exit(1)
	}
}

// Each gateway uses other addresses of the world: this machine's kernel remembers path MTUs.
var gateways = []gateway{
	{name: "vnic", mac: "02:76:6e:69:00:01", world: "10.99.2.2", world6: "fd99:2::2", forward: 7011},
	{name: "slirp", mac: "52:54:00:00:02:15", world: "10.99.2.3", world6: "fd99:2::3", forward: 7012},
	{name: "passt", mac: "52:54:00:00:03:15", world: "10.99.2.4", world6: "fd99:2::4", forward: 7013},
}

type gateway struct {
	name          string
	mac           string // of the guest's NIC
	world, world6 string
	forward       int // UDP port of this machine's loopback that is forwarded to the guest's burstPort
}

// router is the world's router, one hop behind this machine. search is this machine's search list.
const router = "10.99.1.1"

var search = []string{"corp.example.test", "example.test"}

// Ports of the world, or of the guest where that is written.
const (
	tftpPort    = 69
	controlPort = 7000 // HTTP: see controls
	echoPort    = 7001 // TCP and UDP
	talkPort    = 7002 // UDP: see talk
	closedPort  = 7999
	burstPort   = 7010  // in the guest
	flowsPort   = 20000 // the first one of flows in the guest
)

const (
	flows      = 1000
	bursts     = 128
	burstBytes = 8 << 10
	rateBytes  = 32 << 20
	rateFrames = 20000
	frameBytes = 1200
	pathMTU    = 1280
	silence    = 35 // seconds that talk waits before its second answer
)

// row is a line of what serve prints.
type row struct {
	Gateway string `json:"gateway"`
	Name    string `json:"name"`
	Verdict string `json:"verdict"` // one of verdicts, or empty for a rate
	Text    string `json:"text"`
}

// verdicts has the verdicts from worst to best.
var verdicts = []string{"no", "some", "yes"}
