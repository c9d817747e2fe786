// Package guesttree reads the PCI devices that a guest's kernel sees, with the properties that decide about
// peer to peer. In the guest, Ops registers the operation with package agent; on the host, Read calls it.
//
// The package is not API (README, Stability).
package guesttree

import (
	"context"
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/lab/pcie/host"
)

// Tree is the tree of PCI devices that a guest's kernel sees.
type Tree struct {
	*pcie.Tree
	Ends []string // PCI addresses of the NICs and GPUs, as 0000:13:00.0, sorted
}

// seen is a Tree as the guest's operation returns it.
type seen struct {
	Nodes []pcie.Node `json:"nodes"`
	Ends  []string    `json:"ends"`
}

var readTree = agent.NewOperation[agent.None, seen]("tree")

// Ops registers the guest's operation with package agent.
func Ops() {
	readTree.Serve(func(context.Context, agent.None) (seen, error) { return read("/proc", "/sys") })
}

func read(proc, sys string) (s seen, err error) {
	m, err := host.Read(proc, sys)
	if err != nil {
		return s, err
	}
	s.Nodes = m.Tree.Nodes()
	for _, d := range slices.Concat(m.NICs, m.GPUs) {
		s.Ends = append(s.Ends, d.Name)
	}
	slices.Sort(s.Ends)
	return s, nil
}

// Read asks a guest for its tree of PCI devices.
func Read(ctx context.Context, c *agent.Client) (*Tree, error) {
	s, err := readTree.Call(ctx, c, agent.None{})
	if err != nil {
		return nil, err
	}
	return s.tree()
}

func (s *seen) tree() (*Tree, error) {
	t, err := pcie.New(s.Nodes)
	if err != nil {
		return nil, fmt.Errorf("tree: %w", err)
	}
	for _, name := range s.Ends {
		if !slices.ContainsFunc(s.Nodes, func(n pcie.Node) bool { return n.Name == name && n.Kind == pcie.Endpoint }) {
			return nil, fmt.Errorf("tree: %q is no endpoint of the guest's tree", name)
		}
	}
	return &Tree{t, s.Ends}, nil
}

// Bus returns the bus number of a PCI address, as 0000:13:00.0; -1: no domain and bus are at its start.
func Bus(name string) int {
	var domain, bus int
	if n, _ := fmt.Sscanf(name, "%x:%x:", &domain, &bus); n < 2 {
		return -1
	}
	return bus
}
