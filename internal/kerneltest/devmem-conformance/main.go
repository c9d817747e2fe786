// Command devmem-conformance runs the conformance suite of package devmem over the kernel's device memory TCP.
package main

import (
	"os"

	"vnic.dev/vnic/internal/kerneltest"
)

func main() { os.Exit(kerneltest.Main(os.Args[1:])) }
