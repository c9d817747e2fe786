package guestnet

import "context"

// Configure configures the network of this machine.
func Configure(ctx context.Context, c Config) (Result, error) { return c.apply(ctx, "/") }

// PCIAddress returns the address of the PCI device of an interface of this machine: "0000:00:02.0"; "": none.
func PCIAddress(name string) string { return pciAddress("/", name) }
