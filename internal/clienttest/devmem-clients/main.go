// Command devmem-clients runs one job of package clienttest, such as a client of package devmem over the kernel's
// device memory TCP and a mapped dma-buf.
package main

import (
	"os"

	"vnic.dev/vnic/internal/clienttest"
)

func main() { os.Exit(clienttest.Main(os.Args[1:])) }
