package guesttree

import (
	"slices"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/pcie"
)

// What a guest says is checked before anybody asks for paths in it.
func TestTreesOfGuests(t *testing.T) {
	root := pcie.Node{Name: "pci0000:10", Kind: pcie.Socket}
	end := pcie.Node{Name: "0000:12:00.0", Kind: pcie.Endpoint, Below: root.Name}
	good := seen{Nodes: []pcie.Node{root, end}, Ends: []string{end.Name}}
	tree := testkit.Must(good.tree())(t)
	testkit.Equal(t, "socket", tree.SocketOf(end.Name), root.Name)
	for want, bad := range map[string]seen{
		"is below pci0000:10, which is no": {Nodes: []pcie.Node{end}},
		`"pci0000:10" is no endpoint`:      {Nodes: good.Nodes, Ends: []string{root.Name}},
		`"0000:13:00.0" is no endpoint`:    {Nodes: good.Nodes, Ends: []string{"0000:13:00.0"}},
	} {
		testkit.ErrorSays(t, testkit.Err(bad.tree()), want)
	}
	for name, want := range map[string]int{"0000:12:00.0": 0x12, "10000:ff:1f.7": 0xff, "": -1, "0000:": -1, "eth0": -1} {
		testkit.Equal(t, name, Bus(name), want)
	}
}

// This machine's own tree can be read, and sent.
func TestOwnTree(t *testing.T) {
	s := testkit.Must(read("/proc", "/sys"))(t)
	tree := testkit.Must(s.tree())(t)
	if !slices.IsSorted(tree.Ends) || len(tree.Nodes()) < len(tree.Ends) {
		t.Errorf("%+v", s)
	}
	testkit.ErrorSays(t, testkit.Err(read(t.TempDir(), "/sys")), "no such file")
}
