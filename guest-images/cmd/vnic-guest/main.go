// Command vnic-guest is the one program of vnic's guests: see package boot.
package main

import (
	"os"

	"vnic.dev/vnic/guest-images/boot"
	"vnic.dev/vnic/guest-images/transfer"
)

func main() {
	transfer.Ops()
	os.Exit(boot.Main(os.Args))
}
