package qemu

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

func sized(t *testing.T, size uint64) *os.File {
	t.Helper()
	f := testkit.Must(NewMemory("test", size))(t)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func made(t *testing.T) inherited {
	in := inherited{ram: []*os.File{sized(t, 1)}, initrd: sized(t, 1)}
	for _, name := range []string{consoleChannel, resultsChannel, qmpChannel} {
		in.channels = append(in.channels, channel{name, sized(t, 1)})
	}
	return in
}

func TestArguments(t *testing.T) {
	gpu, disk := sized(t, 1<<20), sized(t, 1024)
	c := Config{
		Name: "a,b", QEMU: assets.Binary{Args: []string{"qemu"}}, Kernel: assets.Kernel{Image: "/k"}, Append: "extra",
		GPUs: []GPU{{File: gpu, Size: 1 << 20}},
		Netdevs: []Netdev{
			{Connected: func(*net.UnixConn) {}, Queues: 4, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, MTU: 9000,
				abstract: "vnic-x"},
			{Path: "/s,1", Options: "packed=on"},
		},
		Disks: []Disk{{File: disk, Serial: "a,b"}, {File: disk, ReadOnly: true}},
		Args:  []string{"-device", "edu"},
	}
	testkit.OK(t, c.complete())
	in := made(t)
	args, files := arguments(&c, AccelTCG, in)
	want := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-name", "guest=a,,b,debug-threads=on",
		"-smp", "1,maxcpus=2",
		"-M", "q35,usb=off,sata=off,smm=off,vmport=off,memory-backend=ram", "-m", "size=512M",
		"-object", "memory-backend-file,id=ram,size=536870912,mem-path=/proc/self/fd/3,share=on",
		"-kernel", "/k", "-initrd", "/proc/self/fd/4", "-append", kernelArgs + " extra",
		"-chardev", "socket,id=console,fd=5", "-serial", "chardev:console",
		"-chardev", "socket,id=results,fd=6", "-serial", "chardev:results",
		"-chardev", "socket,id=qmp,fd=7", "-qmp", "chardev:qmp",
		"-accel", "tcg,thread=multi", "-cpu", "max",
		"-object", "memory-backend-file,id=gpu0,size=1048576,mem-path=/proc/self/fd/8,share=on",
		"-device", "ivshmem-plain,id=dev-gpu0,memdev=gpu0",
		"-chardev", "socket,id=net0,path=vnic-x,abstract=on",
		"-netdev", "vhost-user,id=net0,chardev=net0,queues=4",
		"-device",
		"virtio-net-pci,id=dev-net0,netdev=net0,disable-legacy=on,mq=on,vectors=10," +
			"rx_queue_size=1024,tx_queue_size=1024,ctrl_guest_offloads=off,romfile=,mac=02:00:00:00:00:01,host_mtu=9000",
		"-chardev", "socket,id=net1,path=/s,,1,reconnect-ms=1000",
		"-netdev", "vhost-user,id=net1,chardev=net1,queues=1",
		"-device",
		"virtio-net-pci,id=dev-net1,netdev=net1,disable-legacy=on,mq=off,vectors=4," +
			"rx_queue_size=1024,tx_queue_size=1024,ctrl_guest_offloads=off,romfile=,packed=on",
		"-blockdev", "driver=file,node-name=disk0,filename=/proc/self/fd/9,read-only=off,cache.direct=off," +
			"cache.no-flush=off",
		"-device", "virtio-blk-pci,id=dev-disk0,drive=disk0,disable-legacy=on,serial=a,,b",
		"-blockdev", "driver=file,node-name=disk1,filename=/proc/self/fd/10,read-only=on,cache.direct=off," +
			"cache.no-flush=off",
		"-device", "virtio-blk-pci,id=dev-disk1,drive=disk1,disable-legacy=on",
		"-device", "edu",
	}
	if d := cmp.Diff(want, args); d != "" {
		t.Error(d)
	}
	if len(files) != 8 || files[0] != in.ram[0] || files[5] != gpu || files[6] != disk {
		t.Errorf("descriptors: %v", files)
	}
	args, _ = arguments(&c, AccelKVM, in)
	if !strings.Contains(strings.Join(args, " "), "-accel kvm -cpu host") {
		t.Errorf("KVM: %q", args)
	}
}

// Invariant: qemu: An emulated guest whose host bridges must forward gets a CPU with which Linux
// assumes that.
func TestCPUWhoseHostBridgesForward(t *testing.T) {
	for _, c := range []struct {
		forwards bool
		accel    Accel
		want     string
	}{
		{false, AccelTCG, "max"}, {true, AccelTCG, "max,family=23"}, {false, AccelKVM, "host"}, {true, AccelKVM, "host"},
	} {
		conf := Config{QEMU: assets.Binary{Args: []string{"qemu"}}, Kernel: assets.Kernel{Image: "/k"},
			ForwardsP2P: c.forwards}
		testkit.OK(t, conf.complete())
		args, _ := arguments(&conf, c.accel, made(t))
		i := slices.Index(args, "-cpu")
		testkit.Equal(t, fmt.Sprintf("CPU with %v, %v", c.accel, c.forwards), strings.Join(args[i:i+2], " "), "-cpu "+c.want)
	}
	// for a QEMU that another program starts
	for _, forwards := range []bool{false, true} {
		conf := Config{RAMSize: 256 << 20, CPUs: 1, ForwardsP2P: forwards}
		text := strings.Join(testkit.Must(conf.MachineArgs())(t), " ")
		testkit.Equal(t, "CPU in "+text, strings.Contains(text, "-cpu max,family=23"), forwards)
	}
}

func TestArgumentsOfNodesAndVFIOUser(t *testing.T) {
	gpu, sock := sized(t, 6<<20), sized(t, 1)
	c := Config{
		QEMU: assets.Binary{Args: []string{"qemu"}, Version: "10.1.0"}, Kernel: assets.Kernel{Image: "/k"},
		GPUs: []GPU{{File: gpu, Size: 4 << 20}, {File: gpu, Size: 6 << 20, Node: true},
			{File: gpu, Size: 2 << 20, Node: true}},
		Netdevs: []Netdev{
			{Connected: func(*net.UnixConn) {}, VFIOUser: true, socket: sock},
			{Path: "/s,1", VFIOUser: true},
		},
	}
	testkit.OK(t, c.complete())
	in := made(t)
	args, files := arguments(&c, AccelTCG, in)
	for _, want := range []string{
		"-M q35,usb=off,sata=off,smm=off,vmport=off -m size=520M " +
			"-object memory-backend-file,id=ram,size=536870912,mem-path=/proc/self/fd/3,share=on " +
			"-object memory-backend-file,id=gpu1,size=6291456,mem-path=/proc/self/fd/4,share=on " +
			"-object memory-backend-file,id=gpu2,size=2097152,mem-path=/proc/self/fd/5,share=on " +
			"-numa node,nodeid=0,cpus=0-1,memdev=ram -numa node,nodeid=1,memdev=gpu1 -numa node,nodeid=2,memdev=gpu2 ",
		"-device ivshmem-plain,id=dev-gpu0,memdev=gpu0 ",
		`-device {"driver":"vfio-user-pci","id":"dev-net0","socket":{"path":"/proc/self/fd/11","type":"unix"}} `,
		`-device {"driver":"vfio-user-pci","id":"dev-net1","socket":{"path":"/s,1","type":"unix"}}`,
	} {
		if got := strings.Join(args, " ") + " "; !strings.Contains(got, want) {
			t.Errorf("no %s\nin %s", want, got)
		}
	}
	if len(files) != 9 || files[1] != gpu || files[8] != sock {
		t.Errorf("descriptors: %v", files)
	}
	args, _ = arguments(&c, AccelKVM, in)
	if !strings.Contains(strings.Join(args, " "), ",cpus=0-0,") {
		t.Errorf("KVM has no spare CPU: %q", args)
	}
}

func TestNetdevArgs(t *testing.T) {
	for want, n := range map[string]Netdev{
		"-chardev socket,id=a,path=/x,,y,reconnect-ms=1000 -netdev vhost-user,id=a,chardev=a,queues=2 -device " +
			"virtio-net-pci,id=dev-a,netdev=a,": {Path: "/x,y", Queues: 2},
		"-chardev socket,id=a,path=/x,server=on -netdev vhost-user,id=a,chardev=a,queues=1 -device " +
			"virtio-net-pci,id=dev-a,netdev=a,": {Path: "/x", Listens: true},
		`-device {"driver":"vfio-user-pci","id":"dev-a","socket":{"path":"/x,y","type":"unix"}}`: {Path: "/x,y",
			VFIOUser: true},
	} {
		if got := strings.Join(n.Args("a"), " "); !strings.HasPrefix(got, want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// Invariant: virtio: A driver's receive offloads are fixed with its features, because QEMU reports
// no later change to a backend.
func TestOffloadsAreSettledOnce(t *testing.T) {
	off := []string{"guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo", "guest_uso4", "guest_uso6"}
	for _, xdp := range []bool{false, true} {
		n := Netdev{Path: "/s", XDP: xdp}
		device := n.Args("a")[5] + ","
		testkit.Equal(t, "offloads can be switched", strings.Contains(device, ",ctrl_guest_offloads=off,"), true)
		for _, name := range off {
			testkit.Equal(t, fmt.Sprintf("%s is off, XDP %t", name, xdp), strings.Contains(device, ","+name+"=off,"), xdp)
		}
	}
	n := Netdev{Path: "/s", VFIOUser: true, XDP: true}
	testkit.Equal(t, "a gVNIC's", strings.Contains(strings.Join(n.Args("a"), " "), "guest_"), false)
}

func TestBadConfigIsRefused(t *testing.T) {
	small, closed := sized(t, 4096), sized(t, 4096)
	testkit.OK(t, closed.Close())
	pipe, other, err := os.Pipe()
	testkit.OK(t, err)
	defer func() { _, _ = pipe.Close(), other.Close() }()
	good := func() Config {
		return Config{QEMU: assets.Binary{Args: []string{"qemu"}}, Kernel: assets.Kernel{Image: "/k"}}
	}
	for name, change := range map[string]func(*Config){
		"no QEMU":       func(c *Config) { c.QEMU = assets.Binary{} },
		"no kernel":     func(c *Config) { c.Kernel = assets.Kernel{} },
		"odd RAM":       func(c *Config) { c.RAMSize = 1<<20 + 1 },
		"GPU no file":   func(c *Config) { c.GPUs = []GPU{{Size: 4096}} },
		"GPU size":      func(c *Config) { c.GPUs = []GPU{{File: small, Size: 5000}} },
		"node no file":  func(c *Config) { c.GPUs = []GPU{{Size: 2 << 20, Node: true}} },
		"node size":     func(c *Config) { c.GPUs = []GPU{{File: small, Size: 1 << 20, Node: true}} },
		"node short":    func(c *Config) { c.GPUs = []GPU{{File: small, Size: 2 << 20, Node: true}} },
		"old QEMU":      func(c *Config) { c.Netdevs, c.QEMU.Version = []Netdev{{Path: "/x", VFIOUser: true}}, "10.0.13" },
		"GPU short":     func(c *Config) { c.GPUs = []GPU{{File: small, Size: 8192}} },
		"no backend":    func(c *Config) { c.Netdevs = []Netdev{{}} },
		"two backends":  func(c *Config) { c.Netdevs = []Netdev{{Path: "/x", Connected: func(*net.UnixConn) {}}} },
		"multicast MAC": func(c *Config) { c.Netdevs = []Netdev{{Path: "/x", MAC: net.HardwareAddr{1, 0, 0, 0, 0, 0}}} },
		"disk no file":  func(c *Config) { c.Disks = []Disk{{}} },
		"disk closed":   func(c *Config) { c.Disks = []Disk{{File: closed}} },
		"disk pipe":     func(c *Config) { c.Disks = []Disk{{File: pipe}} },
		"disk empty":    func(c *Config) { c.Disks = []Disk{{File: sized(t, 0)}} },
		"disk odd":      func(c *Config) { c.Disks = []Disk{{File: sized(t, 1000)}} },
		"long serial":   func(c *Config) { c.Disks = []Disk{{File: small, Serial: "123456789012345678901"}} },
		"serial twice":  func(c *Config) { c.Disks = []Disk{{File: small, Serial: "a"}, {File: small, Serial: "a"}} },
		"long MAC":      func(c *Config) { c.Netdevs = []Netdev{{Path: "/x", MAC: make([]byte, 8)}} },
	} {
		c := good()
		change(&c)
		if err := c.complete(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	c := good()
	if err := c.complete(); err != nil || c.RAMSize != 512<<20 || c.CPUs != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Disks of a guest with a tree are on the root complex.
func TestArgumentsOfDisks(t *testing.T) {
	disk := sized(t, 512)
	c := Config{CPUs: 1, RAMSize: 2 << 20, Disks: []Disk{{File: disk, Serial: "x"}}}
	args := testkit.Must(c.MachineArgs())(t)
	for _, want := range []string{fmt.Sprintf("filename=/proc/%d/fd/%d,", os.Getpid(), disk.Fd()),
		"-device virtio-blk-pci,id=dev-disk0,drive=disk0,disable-legacy=on,serial=x"} {
		if got := strings.Join(args, " "); !strings.Contains(got, want) {
			t.Errorf("no %s\nin %s", want, got)
		}
	}
	c.Tree = &pcie.Tree{}
	if got := strings.Join(c.disks(&files{}), " "); !strings.Contains(got, ",bus=pcie.0,serial=x") {
		t.Error(got)
	}
	c.Tree, c.Disks[0].Serial = nil, strings.Repeat("x", 21)
	testkit.ErrorSays(t, testkit.Err(c.MachineArgs()), "disk 0", "serial number")
}

// Several CPUs need another clock if they are emulated, or may be.
func TestKernelDoesNotTrustEmulatedClocks(t *testing.T) {
	for _, c := range []struct {
		cpus  int
		accel Accel
		want  bool
	}{{1, AccelTCG, false}, {2, AccelTCG, true}, {2, AccelKVM, false}} {
		conf := Config{CPUs: c.cpus, QEMU: assets.Binary{Args: []string{"qemu"}}, Kernel: assets.Kernel{Image: "/k"}}
		testkit.OK(t, conf.complete())
		args, _ := arguments(&conf, c.accel, made(t))
		if got := strings.Contains(strings.Join(args, " "), " tsc=unstable"); got != c.want {
			t.Errorf("%+v: %q", c, args)
		}
	}
	testkit.Equal(t, "an unknown machine", KernelArgs(false, "a b"), kernelArgs+" tsc=unstable a b")
	for _, c := range []struct {
		line  string
		cpus  int
		accel Accel
		want  string
	}{
		{"a tsc=unstable b", 2, AccelTCG, "a tsc=unstable b"},
		{"a b", 2, AccelTCG, "a b tsc=unstable"}, // a line of an older image, without the word
		{"a  b=\"c  d\"", 4, AccelAuto, "a  b=\"c  d\" tsc=unstable"},
		{"a tsc=unstable b", 1, AccelTCG, "a b"},
		{"a tsc=unstable b", 2, AccelKVM, "a b"},
		{"a tsc=unstablex b", 2, AccelKVM, "a tsc=unstablex b"},
		{"", 2, AccelTCG, "tsc=unstable"},
	} {
		testkit.Equal(t, c.line, ForMachine(c.line, c.cpus, c.accel), c.want)
	}
}
