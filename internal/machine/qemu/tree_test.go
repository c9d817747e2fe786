package qemu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// treeConfig makes the configuration of a machine with two sockets, a switch, NICs of both models, a removable GPU and
// a GPU that is a NUMA node.
func treeConfig(t *testing.T) Config {
	link := pcie.Link{Gen: 4, Width: 16}
	tree := testkit.Must(pcie.New([]pcie.Node{
		{Name: "s0"}, {Name: "s1"},
		{Name: "sw0", Kind: pcie.Switch, Below: "s0", Link: pcie.Link{Gen: 5, Width: 16}},
		{Name: "nic0", Kind: pcie.Endpoint, Below: "sw0", Link: link},
		{Name: "nic1", Kind: pcie.Endpoint, Below: "sw0", Link: pcie.Link{Gen: 1, Width: 1}},
		{Name: "gpu0", Kind: pcie.Endpoint, Below: "sw0", Link: link},
		{Name: "gpu1", Kind: pcie.Endpoint, Below: "s1"},
	}))(t)
	return Config{QEMU: assets.Binary{Args: []string{"qemu"}, Version: "11.1.2"}, Kernel: assets.Kernel{Image: "/k"},
		RAMSize: 6 << 20, CPUs: 2, Tree: tree,
		GPUs: []GPU{{File: sized(t, 4096), Size: 4096, Place: "gpu0", Hotplug: true},
			{File: sized(t, 6<<20), Size: 6 << 20, Node: true, Place: "gpu1"}},
		Netdevs: []Netdev{{Path: "/s", Place: "nic0"}, {Path: "/t", VFIOUser: true, Place: "nic1"}}}
}

func TestArgumentsOfATree(t *testing.T) {
	c := treeConfig(t)
	testkit.OK(t, c.complete())
	in := made(t)
	in.ram = append(in.ram, sized(t, 1))
	args, files := arguments(&c, AccelTCG, in)
	var devices, memory []string
	for i, a := range args {
		switch a {
		case "-device":
			devices = append(devices, args[i+1])
		case "-object", "-numa", "-m":
			memory = append(memory, args[i+1])
		}
	}
	if d := gocmp.Diff([]string{
		"pxb-pcie,id=pcie.s0,bus=pcie.0,bus_nr=16,numa_node=0,addr=0x10",
		"pcie-root-port,id=pcie-port.sw0,bus=pcie.s0,chassis=1,slot=0,hotplug=off,io-reserve=0,x-speed=32,x-width=16",
		"cxl-upstream,id=pcie.sw0,bus=pcie-port.sw0,x-speed=32,x-width=16",
		"cxl-downstream,id=pcie-port.nic0,bus=pcie.sw0,chassis=2,slot=0,hotplug=off,x-speed=16,x-width=16",
		"cxl-downstream,id=pcie-port.nic1,bus=pcie.sw0,chassis=3,slot=0,hotplug=off,x-speed=2_5,x-width=1",
		"xio3130-downstream,id=pcie-port.gpu0,bus=pcie.sw0,chassis=4,slot=0,hotplug=on",
		"pxb-pcie,id=pcie.s1,bus=pcie.0,bus_nr=138,numa_node=1,addr=0x11",
		"pcie-root-port,id=pcie-port.gpu1,bus=pcie.s1,chassis=5,slot=0,hotplug=off,io-reserve=0",
		"ivshmem-plain,id=dev-gpu0,memdev=gpu0,bus=pcie-port.gpu0",
		"ivshmem-plain,id=dev-place-gpu1,memdev=place-gpu1,bus=pcie-port.gpu1",
		"virtio-net-pci,id=dev-net0,netdev=net0,disable-legacy=on,mq=off,vectors=4,rx_queue_size=1024,tx_queue_size=1024," +
			"ctrl_guest_offloads=off,romfile=,bus=pcie-port.nic0",
		`{"bus":"pcie-port.nic1","driver":"vfio-user-pci","id":"dev-net1","socket":{"path":"/t","type":"unix"}}`,
	}, devices); d != "" {
		t.Error(d)
	}
	if d := gocmp.Diff([]string{"size=12M",
		"memory-backend-file,id=ram0,size=2097152,mem-path=/proc/self/fd/3,share=on",
		"memory-backend-file,id=ram1,size=4194304,mem-path=/proc/self/fd/4,share=on",
		"memory-backend-file,id=gpu1,size=6291456,mem-path=/proc/self/fd/5,share=on",
		"node,nodeid=0,cpus=0,memdev=ram0", "node,nodeid=1,cpus=1,memdev=ram1", "node,nodeid=2,memdev=gpu1",
		"dist,src=0,dst=0,val=10", "dist,src=0,dst=1,val=40", "dist,src=0,dst=2,val=40",
		"dist,src=1,dst=0,val=40", "dist,src=1,dst=1,val=10", "dist,src=1,dst=2,val=20",
		"dist,src=2,dst=0,val=40", "dist,src=2,dst=1,val=20", "dist,src=2,dst=2,val=10",
		"memory-backend-file,id=gpu0,size=4096,mem-path=/proc/self/fd/10,share=on",
		"memory-backend-file,id=place-gpu1,size=4194304,mem-path=/proc/self/fd/11,share=on",
	}, memory); d != "" {
		t.Error(d)
	}
	if len(files) != 9 || files[2] != files[8] {
		t.Errorf("descriptors: %v", files)
	}
}

// Each place for a CPU belongs to one node.
func TestCPUsOfATree(t *testing.T) {
	for n, want := range map[int]string{1: ",cpus=0 ,cpus=1 - -", 3: ",cpus=0 ,cpus=1 ,cpus=2 -",
		4: ",cpus=0 ,cpus=1 ,cpus=2 ,cpus=3", 6: ",cpus=0,cpus=1 ,cpus=2 ,cpus=3,cpus=4 ,cpus=5"} {
		c := treeConfig(t)
		c.CPUs, c.GPUs, c.Netdevs = n, nil, nil
		c.Tree = testkit.Must(pcie.New([]pcie.Node{{Name: "s0"}, {Name: "s1"}, {Name: "s2"}, {Name: "s3"}}))(t)
		in := made(t)
		in.ram = slices.Repeat(in.ram, 4)
		args, _ := arguments(&c, AccelTCG, in)
		var got []string
		for _, a := range args {
			if rest, ok := strings.CutPrefix(a, "node,nodeid="); ok {
				cpus, _, _ := strings.Cut(rest[1:], ",memdev")
				got = append(got, cmp.Or(cpus, "-"))
			}
		}
		testkit.Equal(t, "CPUs", strings.Join(got, " "), want)
	}
}

func TestTreesThatNoMachineHas(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		`nothing in the PCIe tree has the name "nic9"`: func(c *Config) { c.Netdevs[0].Place = "nic9" },
		`the name "nic1", or two devices have it`:      func(c *Config) { c.Netdevs[0].Place = "nic1" },
		`the name "sw0"`:                       func(c *Config) { c.GPUs[0].Place = "sw0" },
		"network device 1 cannot be taken out": func(c *Config) { c.Netdevs[1].Hotplug = true },
		"network device 0 cannot be taken out": func(c *Config) { c.Netdevs[0].Hotplug, c.Netdevs[0].Place = true, "" },
		"GPU 1 cannot be taken out":            func(c *Config) { c.GPUs[1].Hotplug = true },
		"GPU 0 cannot be taken out":            func(c *Config) { c.Tree, c.GPUs[0].Place = nil, "" },
		"RAM of 2097152 bytes for 2 sockets":   func(c *Config) { c.RAMSize = 2 << 20 },
		"t6: more than 8 sockets": func(c *Config) {
			nodes := c.Tree.Nodes()
			for i := range 7 {
				nodes = append(nodes, pcie.Node{Name: "t" + string(rune('0'+i))})
			}
			c.Tree, _ = pcie.New(nodes)
		},
		"x: more than 32 below sw0": func(c *Config) {
			nodes := c.Tree.Nodes()
			for i := range 238 {
				nodes = append(nodes, pcie.Node{Name: strings.Repeat("x", i+1), Kind: pcie.Endpoint, Below: "sw0"})
			}
			c.Tree, _ = pcie.New(nodes)
		},
	} {
		c := treeConfig(t)
		change(&c)
		testkit.ErrorSays(t, c.complete(), want)
	}
}

func TestDeviceBesideATree(t *testing.T) {
	c := treeConfig(t)
	c.Netdevs = append(c.Netdevs, Netdev{Path: "/u"})
	testkit.OK(t, c.complete())
	in := made(t)
	in.ram = append(in.ram, sized(t, 1))
	args, _ := arguments(&c, AccelTCG, in)
	last := args[len(args)-1]
	if !strings.HasPrefix(last, "virtio-net-pci,id=dev-net2") || !strings.HasSuffix(last, ",bus=pcie.0") {
		t.Error(last)
	}
}

// The port of a removable device has hotplug=on, another one hotplug=off.
func TestPortsThatLetGo(t *testing.T) {
	c := treeConfig(t)
	c.Tree = testkit.Must(pcie.New([]pcie.Node{{Name: "s0"}, {Name: "sw0", Kind: pcie.Switch, Below: "s0"},
		{Name: "nic0", Kind: pcie.Endpoint, Below: "s0", Link: pcie.Link{Gen: 4, Width: 8}},
		{Name: "nic1", Kind: pcie.Endpoint, Below: "sw0"}, {Name: "gpu0", Kind: pcie.Endpoint, Below: "s0"},
		{Name: "gpu1", Kind: pcie.Endpoint, Below: "s0"}}))(t)
	c.Netdevs[0].Hotplug, c.GPUs[0].Hotplug = true, false
	testkit.OK(t, c.complete())
	args := strings.Join(c.tree(), " ")
	for _, want := range []string{"id=pcie-port.nic0,bus=pcie.s0,chassis=3,slot=0,hotplug=on,io-reserve=0,x-speed=16,x-width=8",
		"id=pcie-port.gpu0,bus=pcie.s0,chassis=4,slot=0,hotplug=off"} {
		if !strings.Contains(args, want) {
			t.Errorf("no %s in %s", want, args)
		}
	}
	var u unplugs
	u.init(&c)
	testkit.Equal(t, "devices", fmt.Sprint(u.removable), "map[dev-gpu0:false dev-gpu1:false dev-net0:true dev-net1:false]")
}
