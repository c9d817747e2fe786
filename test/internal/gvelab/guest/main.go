// Command guest is the guest's program of gvelab's tests.
package main

import "vnic.dev/vnic/test/internal/gvelab"

func main() { gvelab.Main() }
