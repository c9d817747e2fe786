// Command guest is the program of servelab's stock guests.
package main

import "vnic.dev/vnic/test/internal/servelab"

func main() { servelab.Main() }
