package guesttree

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/testkit"
)

func TestTreesOfGuests(t *testing.T) {
	root := pcie.Node{Name: "pci0000:10", Kind: pcie.Socket}
	end := pcie.Node{Name: "0000:12:00.0", Kind: pcie.Endpoint, Below: root.Name}
	good := seen{Nodes: []pcie.Node{root, end}, Ends: []string{end.Name}}
	tree := testkit.Must(good.tree())(t)
	testkit.Equal(t, "socket", tree.SocketOf(end.Name), root.Name)
	for want, bad := range map[string]seen{
		"is below pci0000:10, which is neither": {Nodes: []pcie.Node{end}},
		`"pci0000:10" is no endpoint`:           {Nodes: good.Nodes, Ends: []string{root.Name}},
		`"0000:13:00.0" is no endpoint`:         {Nodes: good.Nodes, Ends: []string{"0000:13:00.0"}},
	} {
		testkit.ErrorSays(t, testkit.Err(bad.tree()), want)
	}
	for name, want := range map[string]int{"0000:12:00.0": 0x12, "10000:ff:1f.7": 0xff, "": -1, "0000:": -1, "eth0": -1} {
		testkit.Equal(t, name, Bus(name), want)
	}
}

// The test uses an invented /proc and /sys, because a machine may have no PCI.
func TestOwnTree(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(dir, name)
		testkit.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testkit.OK(t, os.WriteFile(name, []byte(text), 0o644))
	}
	write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n\n")
	testkit.OK(t, os.MkdirAll(filepath.Join(dir, "sys/bus/pci/devices"), 0o755))
	for place, class := range map[string]string{"0000:11:00.0": "0x030200", "0000:10:00.0": "0x020000"} {
		for file, text := range map[string]string{"class": class, "vendor": "0x8086", "device": "0x1021", "revision": "0x00",
			"subsystem_vendor": "0x0000", "subsystem_device": "0x0000", "numa_node": "0", "config": string(make([]byte, 64))} {
			write(filepath.Join("sys/devices/pci"+place[:7], place, file), text)
		}
		testkit.OK(t, os.Symlink("../../../devices/pci"+place[:7]+"/"+place, filepath.Join(dir, "sys/bus/pci/devices", place)))
	}
	s := testkit.Must(read(dir+"/proc", dir+"/sys"))(t)
	tree := testkit.Must(s.tree())(t)
	testkit.Equal(t, "ends", strings.Join(tree.Ends, " "), "0000:10:00.0 0000:11:00.0")
	testkit.Equal(t, "nodes", len(tree.Nodes()), 4)
	testkit.ErrorIs(t, testkit.Err(read(t.TempDir(), dir+"/sys")), fs.ErrNotExist)
	testkit.ErrorIs(t, testkit.Err(read(dir+"/proc", t.TempDir())), fs.ErrNotExist)
}
